"""Reports are queued, kept and sent: servers that stall, die and refuse."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter

import pytest
from tracked_sweep import Sweep, end

from rltune.tracking import outbox
from rltune.tracking.outbox import Outbox

pytestmark = pytest.mark.filterwarnings("ignore:.*noload")  # SQLAlchemy about MLflow

PUT_BOUND_S = 0.05  # 0.01 ms on a quiet machine; two shared cores may pause a thread


def test_a_stalled_server_delays_nobody_and_loses_nothing(folder, server):
    sweep = Sweep(folder, server.uri, "stalled").begin().reports([1, 2]).settle()
    server.signal(signal.SIGSTOP)
    try:
        sweep.reports(range(3, 30))
        sweep.trial_started(2, {"lr": 0.003}, {}, None)  # its creation may be answered into the void
        sweep.reports([30], trials=3)
        sweep.wait_for("does not answer")
    finally:
        server.signal(signal.SIGCONT)
    sweep.wait_for("answers again")
    sweep.reports([31], trials=3)
    for number in range(3):
        end(sweep, number, "COMPLETE")
    assert sweep.tracker.close("FINISHED")

    assert sweep.longest_s < PUT_BOUND_S
    assert set(sweep.runs()) == {"stalled", "trial-000", "trial-001", "trial-002"}
    assert {run.info.status for run in sweep.runs().values()} == {"FINISHED"}
    assert sweep.steps("trial-000") == sweep.steps("trial-001", "learner/loss") == list(range(1, 32))
    assert sweep.steps("trial-002") == [30, 31]
    assert list(sweep.spool_dir.iterdir()) == [sweep.spool_dir / "sweep.key"]


def test_the_next_driver_sends_what_a_dead_server_did_not_get(folder, server):
    sweep = Sweep(folder, server.uri, "dead").begin().reports([1, 2]).settle()
    server.kill()
    try:
        sweep.reports([3, 4])
        sweep.trial_started(2, {"lr": 0.003}, {}, None)
        sweep.reports([5], trials=3)
        end(sweep, 0, "COMPLETE", metrics={"final": 9.0})
        began = time.monotonic()
        assert not sweep.tracker.close("KILLED", timeout_s=1.0)
        assert time.monotonic() - began < 5
        sweep.wait_for("python -m sweeps.resume sweep=dead")
        journal = (sweep.spool_dir / "reports.jsonl").read_text()
        assert '"op": "end"' in journal
    finally:
        server.start().wait()
    after = Sweep(folder, server.uri, "dead")
    after.begin(trials=0)
    assert after.tracker.close("FINISHED")
    runs = after.runs()
    assert set(runs) == {"dead", "trial-000", "trial-001", "trial-002"}
    assert after.ids[None] == sweep.ids[None]
    assert runs["trial-000"].data.metrics["final"] == 9.0
    assert {name: run.info.status for name, run in runs.items()} == {
        "dead": "FINISHED",
        "trial-000": "FINISHED",
        "trial-001": "KILLED",
        "trial-002": "KILLED",
    }
    assert after.steps("trial-000") == after.steps("trial-001") == [1, 2, 3, 4, 5]
    assert after.steps("trial-002") == [5]


def test_a_journal_that_cannot_be_written_costs_no_report(folder):
    (folder / "outputs" / "full").mkdir(parents=True)
    (folder / "outputs" / "full" / "tracking").write_text("a file where the folder should be")
    sweep = Sweep(folder, None, "full").begin(trials=1).reports([1, 2], trials=1)
    sweep.wait_for("they wait in memory")
    assert sweep.tracker.close("FINISHED")
    assert sweep.steps("trial-000") == [1, 2]


def test_an_operation_that_mlflow_refuses_holds_up_no_other(folder):
    sweep = Sweep(folder).begin(trials=1)
    sweep.artifact(folder / "not-there")
    sweep.reports([1], trials=1)
    assert sweep.tracker.close("FINISHED")
    sweep.wait_for("refused 'artifact'")
    assert sweep.steps("trial-000") == [1]
    assert sweep.runs()["first"].info.status == "FINISHED"


def test_mlflow_is_imported_when_the_first_trial_reports(tmp_path, monkeypatch):
    monkeypatch.setattr(outbox, "OPENING_S", 600.0)
    connected = threading.Event()

    class Server:
        def connect(self):
            connected.set()

        def apply(self, ops):
            pass

    kept = Outbox(tmp_path, Server(), print)
    try:
        kept.put({"op": "start", "trial": None})
        kept.put({"op": "trial", "trial": 0})
        assert not connected.wait(0.5)
        kept.put({"op": "report", "trial": 0, "metrics": {}, "step": 1})
        assert connected.wait(60)
    finally:
        kept.stop()


def test_a_report_costs_at_most_three_transactions(folder, monkeypatch):
    import sqlalchemy

    monkeypatch.setattr(outbox, "LINGER_S", 0.0)  # reports that travel alone, which is the worst case
    sweep = Sweep(folder).begin(trials=1).settle()
    commits = Counter()
    listener = lambda connection: commits.update(["commit"])  # noqa: E731
    sqlalchemy.event.listen(sqlalchemy.Engine, "commit", listener)
    try:
        for step in range(10):
            sweep.reports([step], trials=1).settle()
    finally:
        sqlalchemy.event.remove(sqlalchemy.Engine, "commit", listener)
    assert sweep.tracker.close("FINISHED")
    assert sweep.steps("trial-000") == list(range(10))
    assert 0 < commits["commit"] <= 30
