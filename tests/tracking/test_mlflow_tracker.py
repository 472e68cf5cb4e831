"""A ledger shown in a real MLflow store: sent twice, killed, moved, with answers that are lost."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import parse_qsl, urlsplit

import pytest
from server import put_store

from rltune.config.criteria import Criteria, parse_constraints
from rltune.records import TRIALS, Direction, Report, RunKey
from rltune.tracking.feed import Feeds
from rltune.tracking.mlflow_tracker import BestScoreCurve, MLflowTracker
from tests.tracking.tracked_sweep import Sweep

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*noload")]  # MLflow's store; SQLAlchemy about it

STALLED_S = 1.0  # for a request to a server that stands still


def end_all(sweep, trials):
    for number in range(trials):
        sweep.end(number, "COMPLETE", checkpoint=sweep.write_checkpoint(number))
    return sweep


@pytest.mark.parametrize("where", ["sqlite", "server"])
def test_what_was_sent_but_not_marked_is_not_doubled(folder, server, where):
    uri = server.uri if where == "server" else None
    name = f"twice-{where}"
    before = end_all(Sweep(folder, uri, name).begin().reports([1, 2, 3]), 2).settle()
    before.kill()
    ids = {record.number: record.mlflow_run_id for record in before.ledger.trials.records()}
    after = Sweep(folder, uri, name)
    parent = after.ledger.sweep().mlflow_run_id
    after.ledger.forget_mlflow(
        MLflowTracker.name
    )  # a kill came between each operation and its mark, the runs' ids among them
    after.start().reports([], 0)
    assert after.tracker.close("FINISHED")
    assert after.check_curves() == 12
    assert not after.is_behind()
    assert after.statuses() == {name: "FINISHED", "trial-000": "FINISHED", "trial-001": "FINISHED"}
    assert {record.number: record.mlflow_run_id for record in after.ledger.trials.records()} == ids
    assert after.ledger.sweep().mlflow_run_id == parent


def test_many_reports_go_on_after_a_mark(folder, monkeypatch):
    monkeypatch.setattr("rltune.tracking.mlflow_tracker.MLflowTracker.batch_size", 7)
    before = Sweep(folder).begin(trials=3).reports(range(1, 6), 3).settle().reports(range(6, 9), 3)
    before.kill()  # before these were sent
    after = Sweep(folder).start()
    after.report(1, 20)
    after.end(0, "PRUNED")
    assert after.tracker.close("FINISHED")
    assert after.check_curves() == 2 * (3 * 8 + 1)


def test_a_resumed_sweep_continues_its_runs(folder):
    before = Sweep(folder).begin(budget=24).reports([100, 200])
    for number in range(2):
        before.interrupt(number)
    assert before.tracker.close("KILLED")
    assert set(before.statuses().values()) == {"KILLED"}
    before.ledger.close()

    after = Sweep(folder).start(budget=48)
    for number in range(2):
        after.ledger.trials.start(number, params={"lr": 0.001, "batch": 64})  # one value has changed, one is new
    after.settle()
    assert set(after.statuses().values()) == {"RUNNING"}
    after.reports([300])
    after.end(0, "COMPLETE")
    after.end(1, "PRUNED")
    assert after.tracker.close("FINISHED")
    assert set(after.statuses().values()) == {"FINISHED"}
    assert after.check_curves() == 12
    assert after.steps("trial-000", "score") == [100, 200, 300]
    runs = after.runs()
    assert runs["first"].data.params["budget"] == "24"
    assert runs["first"].data.tags["resumed.budget"] == "48"
    assert runs["trial-001"].data.params == {"lr": "0.002", "batch": "64"}
    assert runs["trial-001"].data.tags["resumed.lr"] == "0.001"
    tags = [runs[name].data.tags for name in sorted(runs)[1:]]
    assert [tag["rltune.state"] for tag in tags] == ["complete", "stopped"], "no longer interrupted"
    assert all(" 300 " in tag["mlflow.note.content"] for tag in tags)
    assert "resumed.lr" not in runs["trial-000"].data.tags


def test_runs_that_a_killed_driver_left_open_are_ended(folder):
    before = Sweep(folder).begin().reports([100])
    before.add_run(None, 0)
    before.settle().kill()
    after = Sweep(folder)
    assert set(after.statuses().values()) == {"RUNNING"}
    experiment = after.client.get_experiment_by_name("cartpole").experiment_id
    mine = after.client.create_run(experiment, tags={"mlflow.parentRunId": after.runs()["first"].info.run_id})
    after.start()
    assert after.tracker.close("FINISHED")
    ended = {"trial-000": "KILLED", "trial-001": "KILLED", "baseline-seed-1": "KILLED"}
    assert after.statuses() == {"first": "FINISHED", "baseline": "FINISHED", **ended}
    assert after.client.get_run(mine.info.run_id).info.status == "RUNNING"  # a user's own


def test_a_sweep_taken_over_leaves_the_old_drivers_runs(folder):
    before = Sweep(folder).begin().reports([1, 2])
    before.end(0, "COMPLETE")
    before.settle()
    old = before.runs()
    shutil.copytree(before.folder, folder / "there/outputs/first")
    after = Sweep(folder / "there", f"sqlite:///{folder}/mlflow.db")
    after.ledger.forget_mlflow()
    after.ledger.change_sweep(key="another", mlflow_run_id=before.ledger.sweep().mlflow_run_id)
    before.report(1, 3)  # the other ledger lacks it
    after.start().report(1, 3)
    after.settle()
    assert {run.info.status for run in before.runs().values()} == {"KILLED", "FINISHED"}
    before.report(1, 4)  # it is still there
    before.settle()
    after.end(1, "COMPLETE")
    assert after.tracker.close("FINISHED")
    assert set(after.statuses().values()) == {"FINISHED"}
    assert after.check_curves() == 10
    ids = {run.info.run_id for run in after.runs().values()}
    assert not ids & {run.info.run_id for run in old.values()}
    before.kill()


@pytest.mark.parametrize("ahead", [0, 1], ids=["best", "not the best"])
def test_a_run_of_a_newer_ledger_is_left_alone(folder, ahead):
    """A backup was restored, or the original of a copy was moved: both ledgers have the sweep's key."""

    def report(sweep, number, steps, score):
        clock_s = next(times)
        sweep.ledger.trials.add_report(Report(number, steps, score, {"score": score}, clock_s))
        sweep.wake()

    times = itertools.count(1_000)
    newer = Sweep(folder).begin()
    for number in range(2):
        report(newer, number, 100, 2.0 - number)
    newer.settle()
    uri = f"sqlite:///{folder}/mlflow.db"
    shutil.copytree(newer.folder, folder / "there/outputs/first")
    report(newer, ahead, 200, 4.0 - 3.5 * ahead)
    newer.settle().kill()
    older = Sweep(folder / "there", uri).start()
    for number in range(2):
        report(older, number, 200, 3.0)
        older.end(number, "COMPLETE")
    assert older.tracker.close("FINISHED")
    newer = Sweep(folder, uri).start()
    report(newer, 1 - ahead, 200, 5.0)
    assert newer.tracker.close("FINISHED")
    owned = []
    for sweep in (older, newer):
        for record in sweep.ledger.trials.records():
            points = sweep.client.get_metric_history(record.mlflow_run_id, "score")
            wanted = [(one.nominal_steps, one.time_s) for one in sweep.ledger.trials.read_reports(record.number)]
            assert [(point.step, point.timestamp / 1000) for point in points] == wanted
            owned.append(record.mlflow_run_id)
    assert len(set(owned)) == 4, "each ledger's trials have runs of their own"
    assert not query(folder / "mlflow.db", "SELECT 1 FROM metrics GROUP BY run_uuid, key, step HAVING count(*) > 1")
    assert not query(folder / "mlflow.db", "SELECT 1 FROM runs WHERE status = 'RUNNING'")


def test_another_mlflow_gets_everything_again(folder):
    before = end_all(Sweep(folder).begin().reports([1, 2]), 2)
    assert before.tracker.close("FINISHED")
    before.ledger.close()
    put_store(folder, "other.db")
    after = Sweep(folder, f"sqlite:///{folder}/other.db").start()
    after.add_trial(lr=0.5)
    assert after.tracker.close("FINISHED")
    assert after.check_curves() == 8
    assert after.statuses() == {
        "first": "FINISHED",
        "trial-000": "FINISHED",
        "trial-001": "FINISHED",
        "trial-002": "KILLED",
    }
    kept = after.client.list_artifacts(after.runs()["trial-001"].info.run_id, "checkpoint")
    assert [file.path for file in kept] == ["checkpoint/weights.bin"]


def test_an_mlflow_emptied_meanwhile_gets_everything_again(folder):
    sweep = end_all(Sweep(folder).begin().reports([1, 2]), 1).settle()
    for table in ("metrics", "latest_metrics", "params", "tags", "runs", "experiment_tags", "experiments"):
        execute(folder / "mlflow.db", f"DELETE FROM {table}")
    sweep.report(1, 3)
    assert sweep.tracker.close("FINISHED")
    assert sweep.check_curves() == 10
    assert sweep.statuses() == {"first": "FINISHED", "trial-000": "FINISHED", "trial-001": "KILLED"}
    parent = sweep.runs()["first"]
    assert {file.path for file in sweep.client.list_artifacts(parent.info.run_id)} == {"config.yaml", "packages.txt"}


def query(path, statement):
    with contextlib.closing(sqlite3.connect(path)) as store:
        return store.execute(statement).fetchall()


def execute(path, statement):
    with contextlib.closing(sqlite3.connect(path)) as store, store:
        store.execute(statement)


@pytest.mark.parametrize("gone", ["deleted", "erased"])
def test_a_trial_that_is_gone_from_mlflow_is_shown_again(folder, gone):
    sweep = end_all(Sweep(folder).begin().reports([1, 2]), 1).settle()
    for number in range(2):
        run_id = sweep.ledger.trials.records()[number].mlflow_run_id
        if gone == "deleted":
            sweep.client.delete_run(run_id)
        else:
            for table in ("metrics", "latest_metrics", "params", "tags", "runs"):
                execute(folder / "mlflow.db", f"DELETE FROM {table} WHERE run_uuid = '{run_id}'")
    sweep.report(1, 3)
    sweep.tracker.describe(RunKey(0), {"certified_low": 1.0}, {})  # nothing else would touch it
    assert sweep.tracker.close("FINISHED")
    assert sweep.check_curves() == 10
    assert sweep.statuses() == {"first": "FINISHED", "trial-000": "FINISHED", "trial-001": "KILLED"}
    run = sweep.runs()["trial-000"]
    assert (run.data.params, run.data.metrics["certified_low"]) == ({"lr": "0.001"}, 1.0)
    assert sweep.client.list_artifacts(run.info.run_id, "checkpoint")


def test_checkpoints_are_sent_once_and_missing_ones_are_left(folder):
    sweep = Sweep(folder).begin(trials=3)
    sweep.reports([1], 3)
    kept, gone = sweep.write_checkpoint(0), sweep.write_checkpoint(1)
    shutil.rmtree(sweep.folder / gone.path)
    for number, record in enumerate((kept, gone, None)):
        sweep.end(number, "COMPLETE", checkpoint=record)
    sweep.settle()
    (sweep.folder / kept.path / "weights.bin").write_text("another sweep's")
    assert sweep.tracker.close("FINISHED")
    assert sweep.tracker.warnings() == []
    run_id = sweep.runs()["trial-000"].info.run_id
    assert Path(sweep.client.download_artifacts(run_id, "checkpoint/weights.bin", str(folder))).read_text() == "1.0"
    assert not sweep.client.list_artifacts(sweep.runs()["trial-001"].info.run_id)


def test_every_name_of_a_number_is_made_fit_for_mlflow(folder):
    sweep = Sweep(folder).begin(trials=1)
    sweep.report(0, 1, **{"a//b": 1.0, "loss [kl=0.1]": 0.5, "nan": float("nan")})
    sweep.report(0, 2, **{"a//b": 2.0})
    sweep.end(0, "COMPLETE")
    assert sweep.tracker.close("FINISHED")
    assert sweep.tracker.warnings() == []
    metrics = {"score": 2.0, "learner/loss": 0.5, "loss _kl_0.1_": 0.5, "a/b": 2.0}
    assert sweep.runs()["trial-000"].data.metrics == metrics | {"compare/score": 2.0}
    assert sweep.steps("trial-000") == sweep.steps("trial-000", "learner/loss") == [1, 2]


def test_the_users_own_active_run_is_left_alone(folder):
    import mlflow

    with mlflow.start_run(run_name="mine") as mine:
        sweep = Sweep(folder).begin(trials=1).reports([10], trials=1)
        assert sweep.tracker.close("FINISHED")
        assert mlflow.active_run().info.run_id == mine.info.run_id
    assert mlflow.get_run(mine.info.run_id).data.metrics == {}


@pytest.fixture
def short_pauses(monkeypatch):
    """Let a tracker try again soon after a failure."""
    for name, seconds in {"LINGER_S": 0.1, "FIRST_PAUSE_S": 0.05, "LONGEST_PAUSE_S": 0.1}.items():
        monkeypatch.setattr(f"rltune.tracking.feed.{name}", seconds)


class Proxy(BaseHTTPRequestHandler):
    """Passes requests on to a server."""

    target = ("127.0.0.1", 0)
    timeout = 5

    def pass_on(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        upstream = http.client.HTTPConnection(*self.target, timeout=20)
        headers = {key: value for key, value in self.headers.items() if key.lower() != "host"}
        upstream.request(self.command, self.path, body, headers)
        answer = upstream.getresponse()
        content = answer.read()
        self.answer(answer.status, answer.headers.get("Content-Type", "application/json"), content)

    def answer(self, status, kind, content):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_POST(self):
        self.pass_on()

    do_GET = do_PUT = do_DELETE = do_PATCH = do_POST

    def log_message(self, *args):
        pass

    @classmethod
    @contextlib.contextmanager
    def serve(cls, server):
        """Pass requests on to a server, and return the proxy's address."""
        cls.target = ("127.0.0.1", server.port)
        proxy = ThreadingHTTPServer(("127.0.0.1", 0), cls)
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{proxy.server_port}"
        finally:
            proxy.shutdown()


class Forgetful(Proxy):
    """Loses every seventh answer or so: what was asked has happened all the same."""

    num_lost = 0
    chance = random.Random(1)

    def answer(self, status, kind, content):
        if self.chance.random() < 0.15:
            type(self).num_lost += 1
            status, content = 500, b"no"
        super().answer(status, kind, content)


class FailsToWrite(Proxy):
    """Answers every batch of points with the next of these statuses; all other requests are passed on."""

    statuses = itertools.cycle([500, 502, 503, 413, 429, 403, 404, 400])
    has_failed: ClassVar[set[int]] = set()
    is_broken = False

    def do_POST(self):
        if not (self.is_broken and self.path.endswith("/runs/log-batch")):
            return self.pass_on()
        status = next(self.statuses)
        self.has_failed.add(status)
        content = b'{"error_code": "INTERNAL_ERROR", "message": "deadlock detected"}' if status == 500 else b"<html>"
        return self.answer(status, "application/json" if status == 500 else "text/html", content)


@pytest.mark.nightly
@pytest.mark.usefixtures("short_pauses")
def test_lost_answers_double_neither_runs_nor_points(folder, server):
    with Forgetful.serve(server) as uri:
        sweep = Sweep(folder, uri, "lossy").begin(trials=3)
        steps = itertools.count(1)
        while (step := next(steps)) <= 6 or (Forgetful.num_lost <= 5 and step < 300):
            sweep.reports([step], trials=3)
            time.sleep(0.1)
        for number in range(3):
            sweep.end(number, "COMPLETE")
        sweep.settle()
        assert sweep.tracker.close("FINISHED", 120.0)
    assert Forgetful.num_lost > 5
    sweep.uri = server.uri
    assert set(sweep.statuses().items()) == {
        (name, "FINISHED") for name in ("lossy", "trial-000", "trial-001", "trial-002")
    }
    assert sweep.check_curves() == 2 * 3 * (step - 1)


@pytest.mark.usefixtures("short_pauses")
def test_a_server_that_fails_on_writes_alone_loses_no_point(folder, server):
    with FailsToWrite.serve(server) as uri:
        sweep = Sweep(folder, uri, "writes").begin(trials=3).reports([1, 2], trials=3).settle()
        FailsToWrite.is_broken = True
        steps, deadline = itertools.count(3), time.monotonic() + 60
        while len(FailsToWrite.has_failed) < 8 and time.monotonic() < deadline:
            sweep.reports([step := next(steps)], trials=3)
            time.sleep(0.2)
        FailsToWrite.is_broken = False
        sweep.wait_for("has now received")
        for number in range(3):
            sweep.end(number, "COMPLETE")
        assert sweep.tracker.close("FINISHED", 120.0)
    assert sorted(FailsToWrite.has_failed) == [400, 403, 404, 413, 429, 500, 502, 503]
    assert sweep.tracker.warnings() == []
    assert not sweep.is_behind()
    sweep.uri = server.uri
    assert set(sweep.statuses().values()) == {"FINISHED"}
    assert sweep.check_curves() == 2 * 3 * step


class RefusesFiles(Proxy):
    """Keeps no artifacts; all other requests are passed on."""

    def do_PUT(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return self.answer(403, "text/html", b"<html>") if "artifacts" in self.path else self.pass_on()


@pytest.mark.usefixtures("short_pauses")
def test_files_that_are_refused_hold_up_no_point_and_no_end(folder, server):
    with RefusesFiles.serve(server) as uri:
        sweep = Sweep(folder, uri, "nofiles").begin(trials=2).reports([1, 2], trials=2).settle()
        for number in range(2):
            sweep.end(number, "COMPLETE")
        sweep.tracker.artifact(folder / "nofiles" / "config.yaml")
        assert not sweep.tracker.close("FINISHED", 60.0), "the files are left"
    sweep.uri = server.uri
    assert set(sweep.statuses().items()) == {(name, "FINISHED") for name in ("nofiles", "trial-000", "trial-001")}
    assert sweep.check_curves() == 2 * 2 * 2


def test_a_trial_that_breaks_a_constraint_says_so_in_mlflow(folder):
    """And the sweep's best score is none of its."""
    sweep = Sweep(folder)
    sweep.ledger.judge_by(Criteria(parse_constraints({"learner/loss": "< 1"}), env_steps=200))
    sweep.begin()
    for number, loss in ((0, 2.0), (1, 0.5)):
        sweep.report(number, 200, score=10.0 - number, **{"learner/loss": loss})
        sweep.end(number, "COMPLETE")
    assert sweep.tracker.close("FINISHED")
    runs = sweep.runs()
    for tag in ("rltune.breaks", "mlflow.note.content"):
        assert "learner/loss=2, " in runs["trial-000"].data.tags[tag]
    assert "rltune.breaks" not in runs["trial-001"].data.tags
    assert runs[sweep.name].data.metrics["best_score"] == 9.0


def test_a_sweep_is_a_parent_with_one_child_per_trial(folder):
    sweep = Sweep(folder).begin(trials=5, **{"budget.env_steps": 1000}).reports([100, 200], trials=5)
    sweep.end(0, "COMPLETE", checkpoint=sweep.write_checkpoint(0))
    sweep.end(1, "PRUNED", reason="stopped by the scheduler")
    sweep.end(2, "FAIL", reason="KeyError", traceback="line 1", log="trials/2/error.txt")
    sweep.end(3, "PRUNED", reason="non-finite loss", diverged=True, traceback="line 2")
    sweep.interrupt(4)
    page = folder / "summary.json"
    page.write_text("{}")
    sweep.tracker.artifact(page, "report")
    sweep.tracker.describe(None, {"certified_low": 9.0}, {"rltune.winner": "trial 0"})
    sweep.tracker.describe(RunKey(0), {"certified_score": 9.0}, {"rltune.certified": "yes"})
    assert sweep.tracker.close("FINISHED")
    assert sweep.tracker.warnings() == []

    assert sweep.statuses() == {
        "first": "FINISHED",
        "trial-000": "FINISHED",
        "trial-001": "FINISHED",
        "trial-002": "FAILED",
        "trial-003": "FAILED",
        "trial-004": "KILLED",
    }
    assert sweep.check_curves() == 20
    runs = sweep.runs()
    parent = runs.pop("first")
    assert parent.data.metrics == {"best_score": 204.0, "compare/best_score": 204.0, "certified_low": 9.0}
    assert parent.data.params == {"algo": "ppo", "budget.env_steps": "1000"}
    assert parent.data.tags["rltune.winner"] == "trial 0"
    assert parent.info.run_id == sweep.ledger.sweep().mlflow_run_id
    paths = {file.path for file in sweep.client.list_artifacts(parent.info.run_id)}
    assert paths == {"config.yaml", "packages.txt", "report"}
    assert {run.data.tags["mlflow.parentRunId"] for run in runs.values()} == {parent.info.run_id}
    first = runs["trial-000"]
    assert first.data.params == {"lr": "0.001"}  # the sampled values and nothing else
    shown = {"score": 200.0, "learner/loss": 0.5, "certified_score": 9.0}
    first_of_all = {"compare/score": 200.0, "compare/certified_score": 9.0}
    assert first.data.metrics == shown | first_of_all
    sections = {name.rpartition("/")[0] for name in first.data.metrics} - {""}  # those without one come last
    assert min(sections) == "compare", "MLflow's page sorts the charts' sections by their code points"
    assert (first.data.tags["rltune.trial"], first.data.tags["rltune.seeds"]) == ("0", "7,8")
    assert first.data.tags["rltune.checkpoint"] == "best-200"
    kept = sweep.client.list_artifacts(first.info.run_id, "checkpoint")
    assert [file.path for file in kept] == ["checkpoint/weights.bin"]
    assert {name: run.data.tags["rltune.state"] for name, run in runs.items()} == {
        "trial-000": "complete",
        "trial-001": "stopped",
        "trial-002": "failed",
        "trial-003": "diverged",
        "trial-004": "interrupted",
    }
    assert all("200 of 1,000" in run.data.tags["mlflow.note.content"] for run in runs.values())
    tags = {name: run.data.tags.get("rltune.stop_reason") for name, run in runs.items()}
    assert tags["trial-002"] == "KeyError"
    assert tags["trial-004"] == "interrupted"
    assert runs["trial-002"].data.tags["rltune.log"] == "trials/2/error.txt"
    assert runs["trial-003"].data.tags["rltune.traceback"] == "line 2"
    experiment = sweep.client.get_experiment_by_name("cartpole")
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"


def test_certified_runs_stand_below_their_configuration(folder):
    sweep = Sweep(folder).begin(trials=1).reports([100], trials=1)
    sweep.end(0, "COMPLETE")
    for of_trial, seed_index in ((0, 0), (0, 1), (None, 0)):
        number = sweep.add_run(of_trial, seed_index, lr=0.1)
        sweep.report(number, 100, sweep.ledger.runs)
        sweep.end(number, "COMPLETE", sweep.ledger.runs, returns=(4.0, 6.0))
    sweep.tracker.describe(RunKey(None), {"certified_low": 3.0}, {})
    assert sweep.tracker.close("FINISHED")
    assert sweep.check_curves() == 8
    runs = sweep.runs()
    assert set(sweep.statuses().values()) == {"FINISHED"}
    ids = {name: run.info.run_id for name, run in runs.items()}
    above = {name: run.data.tags.get("mlflow.parentRunId") for name, run in runs.items()}
    assert above == {
        "first": None,
        "trial-000": ids["first"],
        "baseline": ids["first"],
        "trial-000-seed-1": ids["trial-000"],
        "trial-000-seed-2": ids["trial-000"],
        "baseline-seed-1": ids["baseline"],
    }
    assert runs["baseline-seed-1"].data.tags["rltune.trial"] == "baseline-seed-1"
    assert runs["baseline-seed-1"].data.tags["rltune.root"] == ids["first"]
    assert runs["baseline"].data.metrics == {"certified_low": 3.0}
    assert runs["baseline-seed-1"].data.metrics["certified_score"] == 5.0, "not what its training ended with"
    assert runs["baseline-seed-1"].data.metrics["compare/certified_score"] == 5.0


def test_seeds_of_the_control_stand_below_the_trial_of_its_values(folder):
    sweep = Sweep(folder).begin(trials=2).reports([100], trials=2)
    sweep.end(1, "COMPLETE")
    number = sweep.add_run(None, 0, lr=0.002)  # those of trial 1
    sweep.report(number, 100, sweep.ledger.runs)
    sweep.end(number, "COMPLETE", sweep.ledger.runs)
    sweep.tracker.describe(RunKey(None), {"certified_low": 3.0}, {})
    assert sweep.tracker.close("FINISHED")
    runs = sweep.runs()
    assert set(runs) == {"first", "trial-000", "trial-001", "baseline-seed-1"}
    assert runs["baseline-seed-1"].data.tags["mlflow.parentRunId"] == runs["trial-001"].info.run_id
    assert runs["trial-001"].data.metrics["certified_low"] == 3.0


def test_the_page_of_a_run_is_known_to_its_description(folder):
    sweep = Sweep(folder).begin(trials=0)
    sweep.tracker.describe(None, {}, {"mlflow.note.content": "[report]({page}/artifacts/report) [charts]({trials})"})
    assert sweep.tracker.close("FINISHED")
    (run,) = sweep.runs().values()
    page, run_id = f"#/experiments/{run.info.experiment_id}/runs", run.info.run_id
    report, charts = run.data.tags["mlflow.note.content"].split(" ")
    assert report == f"[report]({page}/{run_id}/artifacts/report)"
    address = urlsplit(charts.removeprefix("[charts](#").removesuffix(")"))
    assert f"#{address.path}" == page
    assert dict(parse_qsl(address.query)) == {
        "searchFilter": f"tags.`rltune.entry` LIKE '{sweep.ledger.sweep().key}/trials/%'",
        "orderByKey": "metrics.`compare/score`",
        "orderByAsc": "false",
        "compareRunsMode": "CHART",
        "workflowType": "machine_learning",
    }
    store = {"uri": f"sqlite:///{folder}/mlflow.db", "experiment": run.info.experiment_id}
    assert sweep.ledger.sweep().mlflow == store


def test_a_run_is_described_anew_when_a_value_has_changed(folder):
    sweep = Sweep(folder).begin(trials=0)
    for value in (1.0, 1.0, 2.0):
        sweep.tracker.describe(None, {"certified_low": value}, {"rltune.winner": f"trial {value:.0f}"})
    assert sweep.tracker.close("FINISHED")
    (run,) = sweep.runs().values()
    assert (run.data.metrics, run.data.tags["rltune.winner"]) == ({"certified_low": 2.0}, "trial 2")
    history = sweep.client.get_metric_history(run.info.run_id, "certified_low")
    assert sorted(point.value for point in history) == [1.0, 2.0]


@pytest.mark.slow
def test_plain_mlflow_in_the_folder_finds_the_default_store(folder):
    sweep = Sweep(folder).begin(trials=1)
    assert sweep.tracker.close("FINISHED")
    # In a process of its own: MLflow keeps the store that it took first.
    code = (
        "import mlflow; print(mlflow.get_tracking_uri());"
        "runs = mlflow.search_runs(experiment_names=['cartpole'], output_format='list');"
        "print(sorted(run.info.run_name for run in runs))"
    )
    shown = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True).stdout
    assert shown.splitlines() == [f"sqlite:///{folder}/mlflow.db", "['first', 'trial-000']"]
    assert (folder / "mlruns").is_dir()


def test_without_tracking_every_call_does_nothing(folder):
    tracker = Feeds()
    tracker.wake()
    tracker.artifact(folder)
    tracker.describe(None, {}, {})
    assert tracker.wait_until_sent()
    assert not tracker.has_registry
    assert tracker.close("FINISHED")
    assert tracker.warnings() == []
    assert not (folder / "mlruns").exists()


@pytest.mark.usefixtures("short_pauses")
def test_a_password_appears_nowhere(folder, server):
    secret = "hunter2hunter2"
    away = f"http://me:{secret}@127.0.0.1:9"
    before = Sweep(folder, away, "secret").begin(store=away, dsn=f"postgresql://u:{secret}@db/x")
    before.wait_for("does not accept everything")
    assert not before.tracker.close("KILLED", timeout_s=0.1)
    texts = "".join(before.tracker.warnings())
    assert "sweep=secret" in texts
    after = Sweep(folder, server.uri.replace("://", f"://me:{secret}@"), "secret")
    after.show(params={"store": away}, tags={"uri": f"{away}/?password={secret}"}, texts={"c.yaml": away})
    failed = after.add_trial(lr=1.0, where=away)
    after.end(failed, "FAIL", reason=f"no {away}", traceback=f"at {away}")
    after.tracker.describe(None, {}, {"where": away})
    after.tracker.artifact(folder / "missing")
    assert after.tracker.close("FINISHED")
    assert "trial-002" in after.runs()
    texts += "".join(after.tracker.warnings()) + "".join(str(run.data) for run in after.runs().values())
    for path in (server.folder / "artifacts").rglob("*"):
        texts += path.read_text() if path.is_file() else ""
    assert secret not in texts
    assert secret.encode() not in (server.folder / "mlflow.db").read_bytes()


def test_a_trial_tried_again_keeps_its_run_without_the_failure(folder):
    sweep = Sweep(folder).begin(trials=1).reports([100], trials=1)
    request = sweep.ledger.add_request("enqueue", {"lr": 0.5}, "maria@host")
    sweep.ledger.trials.add({"lr": 0.5}, [1], request)
    sweep.end(0, "FAIL", reason="KeyError", traceback="line 2", log="trials/0/failure.txt")
    sweep.settle()
    sweep.ledger.add_request("retry", {"trials": [0], "certify": []}, "maria@host")
    sweep.ledger.reopen_failed(sweep.ledger.read_requests()[0])
    sweep.ledger.trials.start(0)
    sweep.report(0, 200)
    sweep.settle()
    sweep.end(0, "COMPLETE")
    assert sweep.tracker.close("FINISHED")
    runs = sweep.runs()
    assert set(runs) == {"first", "trial-000", "trial-001"}, "none is doubled"
    first = runs["trial-000"]
    assert (first.info.status, first.data.tags["rltune.state"]) == ("FINISHED", "complete")
    assert not {"rltune.traceback", "rltune.log"} & first.data.tags.keys()
    assert sweep.steps("trial-000", "score") == [100, 200]
    assert runs["trial-001"].data.tags["rltune.enqueued_by"] == "maria@host"
    assert "rltune.enqueued_by" not in first.data.tags


def test_a_stalled_server_delays_nobody_and_loses_nothing(folder, server, monkeypatch):
    monkeypatch.setattr("rltune.tracking.feed.LINGER_S", 0.1)
    sweep = Sweep(folder, server.uri, "stalled").begin().reports([1, 2]).settle()
    patience = os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"]
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", str(STALLED_S))
    server.signal(signal.SIGSTOP)
    try:
        sweep.reports(range(3, 30))
        sweep.add_trial(lr=0.003)  # its creation may be answered into the void
        sweep.reports([30], trials=3)
        sweep.wait_for("does not accept everything")
    finally:
        server.signal(signal.SIGCONT)
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", patience)
    sweep.wait_for("has now received")
    sweep.reports([31], trials=3)
    for number in range(3):
        sweep.end(number, "COMPLETE")
    assert sweep.tracker.close("FINISHED")
    assert sweep.tracker.warnings() == []  # each was said once

    assert sweep.longest_s < STALLED_S  # 0.01 ms on a quiet machine
    assert set(sweep.statuses().items()) == {
        (name, "FINISHED") for name in ("stalled", "trial-000", "trial-001", "trial-002")
    }
    assert sweep.check_curves() == 2 * (31 + 31 + 2)
    assert not sweep.is_behind()


@pytest.mark.nightly  # A server that is started again takes ten seconds.
def test_the_next_driver_sends_what_a_dead_server_did_not_get(folder, server):
    sweep = Sweep(folder, server.uri, "dead").begin().reports([1, 2]).settle()
    server.kill()
    try:
        sweep.reports([3, 4])
        sweep.add_trial(lr=0.003)
        sweep.reports([5], trials=3)
        sweep.end(0, "COMPLETE", checkpoint=sweep.write_checkpoint(0))
        began = time.monotonic()
        assert not sweep.tracker.close("KILLED", timeout_s=1.0)
        assert time.monotonic() - began < 60, "MLflow's own client tries for minutes"
        sweep.wait_for("sweep=dead")
        assert sweep.is_behind()
        sweep.ledger.close()
    finally:
        server.start().wait()
    after = Sweep(folder, server.uri, "dead").start()
    assert after.tracker.close("FINISHED")
    assert not after.is_behind()
    assert after.statuses() == {
        "dead": "FINISHED",
        "trial-000": "FINISHED",
        "trial-001": "KILLED",
        "trial-002": "KILLED",
    }
    assert after.check_curves() == 2 * (5 + 5 + 1)
    kept = after.client.list_artifacts(after.runs()["trial-000"].info.run_id, "checkpoint")
    assert [file.path for file in kept] == ["checkpoint/weights.bin"]


@pytest.mark.nightly
@pytest.mark.usefixtures("short_pauses")
def test_a_server_that_dies_while_it_is_sent_to_loses_nothing(folder, server):
    sweep = Sweep(folder, server.uri, "dies").begin(trials=8)
    stop = threading.Event()

    def report():
        for step in range(1, 400):  # a slow machine must send them all
            if stop.wait(0.05):
                return
            sweep.reports([step], trials=8)

    driver = threading.Thread(target=report)
    driver.start()
    try:
        for _ in range(2):
            time.sleep(2.0)
            server.kill()
            time.sleep(0.5)
            server.start().wait()
    finally:
        stop.set()
        driver.join()
    for number in range(8):
        sweep.end(number, "COMPLETE")
    sweep.settle(240.0)
    assert sweep.tracker.close("FINISHED", 120.0), sweep.tracker.warnings()
    assert set(sweep.statuses().values()) == {"FINISHED"}
    assert sweep.check_curves() > 100


def test_an_artifact_that_is_gone_holds_up_nothing_else(folder):
    sweep = Sweep(folder).begin(trials=1)
    sweep.tracker.artifact(folder / "not-there")
    sweep.reports([1], trials=1)
    assert sweep.tracker.close("FINISHED")
    sweep.wait_for("not-there")
    assert sweep.check_curves() == 2
    assert sweep.runs()["first"].info.status == "FINISHED"


def test_the_curve_of_the_best_score_of_costs_falls():
    curve = BestScoreCurve(Criteria(direction=Direction.MIN), replicates=1)
    costs = [(0, 9.0), (1, 5.0), (1, 6.0), (0, 20.0)]
    curve.add((place, TRIALS, Report(number, 100 * place, cost)) for place, (number, cost) in enumerate(costs, 1))
    assert [value for name, value, *_ in curve.points if name == "best_score"] == [9.0, 5.0, 6.0]
