"""A ledger shown as TensorBoard's event files, read back as TensorBoard does."""

from __future__ import annotations

import struct
from collections import Counter

from tensorboardX.proto.event_pb2 import Event

from rltune.checkpoints.store import open_store
from rltune.ledger.ledger import Ledger
from rltune.records import Report, RunKey
from rltune.tracking.feed import Feeds
from rltune.tracking.tensorboard import TensorBoardTracker
from rltune.tracking.tracker import SweepDescription


def open_sweep(folder):
    path = folder / "ledger.db"
    ledger = Ledger(f"sqlite:///{path}", "first", create=not path.exists())
    sweep = SweepDescription("first", ledger.sweep().key, folder, ledger, "cartpole", params={"algo": "ppo"})
    return ledger, Feeds(ledger, open_store(folder), [TensorBoardTracker(sweep)])


def read_points(folder, run):
    """Every scalar of a run's files with how often it stands there, and the hyperparameters."""
    points, values = Counter(), {}
    for path in (folder / "tensorboard" / run).glob("events*"):
        content, at = path.read_bytes(), 0
        while at < len(content):
            (length,) = struct.unpack_from("<Q", content, at)
            for one in Event.FromString(content[at + 12 : at + 12 + length]).summary.value:
                if one.WhichOneof("value") == "simple_value":
                    step = Event.FromString(content[at + 12 : at + 12 + length]).step
                    points[one.tag, step, one.simple_value] += 1
                elif one.tag == "_hparams_/session_start_info":
                    values[one.tag] = one.metadata.plugin_data.content
            at += 12 + length + 4
    return points, values


def report(ledger, number, step, value):
    ledger.trials.add_report(Report(number, step, value, {"score": value, "learner/loss": 0.5}))


def test_a_resumed_sweep_writes_each_point_once(tmp_path):
    ledger, tracker = open_sweep(tmp_path)
    ledger.trials.add({"lr": 0.25, "layers": [64, 64]}, [7])
    report(ledger, 0, 100, 1.0)
    assert tracker.close("KILLED")
    assert tracker.warnings() == []
    ledger.close()
    ledger, tracker = open_sweep(tmp_path)
    report(ledger, 0, 200, 3.0)
    ledger.trials.end(0, "COMPLETE", "whole budget")
    tracker.describe(RunKey(0), {"certified_score": 5.0}, {})
    tracker.describe(None, {"certified_score": 5.0}, {})
    assert tracker.close("FINISHED")
    assert tracker.warnings() == []
    points, values = read_points(tmp_path, "trial-000")
    curve = {("score", 100, 1.0), ("score", 200, 3.0), ("learner/loss", 100, 0.5), ("learner/loss", 200, 0.5)}
    assert points == Counter(curve | {("certified_score", 0, 5.0)})
    assert b"lr" in values["_hparams_/session_start_info"]
    assert read_points(tmp_path, "first")[0] == Counter({("certified_score", 0, 5.0): 1})
