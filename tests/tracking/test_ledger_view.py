"""A ledger shown in a real MLflow store: sent twice, killed, moved, with answers that are lost."""

from __future__ import annotations

import http.client
import itertools
import random
import shutil
import sqlite3
import threading
import time
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from server import put_store
from sqlalchemy.exc import OperationalError
from tracked_sweep import Sweep

from rltune.config.criteria import Criteria, parse_constraints
from rltune.records import TRIALS, RunKey
from rltune.study.ledger import Ledger

pytestmark = pytest.mark.filterwarnings("ignore:.*noload")  # SQLAlchemy about MLflow


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
    after.ledger.forget_sent()  # a kill came between each operation and its mark, the runs' ids among them
    after.ledger.change_sweep(mlflow_run_id=None)
    after.start().reports([], 0)
    assert after.tracker.close("FINISHED")
    assert after.check_curves() == 12
    assert not after.is_behind()
    assert after.statuses() == {name: "FINISHED", "trial-000": "FINISHED", "trial-001": "FINISHED"}
    assert {record.number: record.mlflow_run_id for record in after.ledger.trials.records()} == ids
    assert after.ledger.sweep().mlflow_run_id == parent


def test_many_reports_go_on_after_a_mark(folder, monkeypatch):
    monkeypatch.setattr("rltune.tracking.ledger_view.MAX_REPORTS", 7)
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
    assert after.steps("trial-000", "score") == [200, 300]
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


def test_a_ledger_put_back_to_an_older_state_gets_runs_of_its_own(folder):
    """Its trials train again what it has lost, and new ones take lost ones' numbers."""
    before = Sweep(folder).begin().reports([1, 2]).settle()
    copy = folder / "copy.db"
    with closing(sqlite3.connect(before.folder / "ledger.db")) as ledger, closing(sqlite3.connect(copy)) as kept:
        ledger.backup(kept)
    before.reports([3])
    before.report(before.add_trial(lr=0.9), 5)
    assert before.tracker.close("FINISHED")
    lost, steps = before.runs(), {run.info.run_id for run in before.runs().values()}
    before.ledger.close()
    for path in before.folder.glob("ledger.db*"):
        path.unlink()
    shutil.copy(copy, before.folder / "ledger.db")

    after = Sweep(folder).start()
    after.report(0, 3, objective=-5.0)
    after.report(after.add_trial(lr=0.7), 5, objective=-7.0)
    after.end(2, "COMPLETE")
    assert after.tracker.close("FINISHED")
    assert after.check_curves() > 0
    assert any("MLflow" in line for line in after.tracker.warnings())
    runs = after.runs()
    assert not steps & {run.info.run_id for run in runs.values()}
    assert runs["trial-002"].data.params == {"lr": "0.7"}
    old = after.client.get_run(lost["first"].info.run_id)
    assert "rltune.superseded" in old.data.tags
    assert old.info.status == "KILLED"
    history = after.client.get_metric_history(lost["trial-002"].info.run_id, "objective")
    assert [point.step for point in history] == [5], "what was there is left as it was"
    assert Sweep(folder).start().settle().runs().keys() == runs.keys(), "once is enough"


def test_an_mlflow_emptied_meanwhile_gets_everything_again(folder):
    sweep = end_all(Sweep(folder).begin().reports([1, 2]), 1).settle()
    sweep.tracker.describe(None, {"certified_iqm": 1.0}, {})
    sweep.settle()
    for table in ("metrics", "latest_metrics", "params", "tags", "runs", "experiment_tags", "experiments"):
        execute(folder / "mlflow.db", f"DELETE FROM {table}")
    sweep.reports([], 0)
    sweep.report(1, 3)
    assert sweep.tracker.close("FINISHED")
    assert sweep.check_curves() == 10
    assert sweep.statuses() == {"first": "FINISHED", "trial-000": "FINISHED", "trial-001": "KILLED"}
    parent = sweep.runs()["first"]
    assert parent.data.metrics["certified_iqm"] == 1.0  # what the driver had handed over, too
    assert {file.path for file in sweep.client.list_artifacts(parent.info.run_id)} == {"config.yaml", "packages.txt"}


def execute(path, statement):
    import contextlib
    import sqlite3

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
    sweep.tracker.describe(RunKey(0), {"certified_iqm": 1.0}, {})  # nothing else would touch it
    assert sweep.tracker.close("FINISHED")
    assert sweep.check_curves() == 10
    assert sweep.statuses() == {"first": "FINISHED", "trial-000": "FINISHED", "trial-001": "KILLED"}
    run = sweep.runs()["trial-000"]
    assert (run.data.params, run.data.metrics["certified_iqm"]) == ({"lr": "0.001"}, 1.0)
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


def test_a_point_that_mlflow_refuses_holds_up_no_other(folder, monkeypatch):
    monkeypatch.setattr("rltune.tracking.outbox.LINGER_S", 0.1)
    sweep = Sweep(folder).begin(trials=1)
    sweep.report(0, 1, **{"a//b": 1.0, "loss [kl=0.1]": 0.5, "nan": float("nan")})
    sweep.report(0, 2, **{"a//b": 2.0})
    sweep.end(0, "COMPLETE")
    sweep.wait_for("a//b")
    assert sweep.tracker.close("FINISHED")
    assert sweep.tracker.warnings() == []
    metrics = {"objective": 2.0, "learner/loss": 0.5, "score": 1.5, "loss _kl_0.1_": 0.5}
    assert sweep.runs()["trial-000"].data.metrics == metrics | {"compare/objective": 2.0, "compare/score": 1.5}
    assert sweep.steps("trial-000") == sweep.steps("trial-000", "learner/loss") == [1, 2]


def test_a_ledger_that_takes_no_mark_stops_no_report(folder, monkeypatch):
    def refuse(*_):
        raise OperationalError("UPDATE", {}, OSError("database or disk is full"))

    monkeypatch.setattr("rltune.tracking.outbox.LINGER_S", 0.1)
    sweep = Sweep(folder).begin(trials=1)
    for name in ("mark_trial_sent", "mark_reports_sent"):
        monkeypatch.setattr(Ledger, name, refuse)
    sweep.reports([1], 1)
    sweep.wait_for("the ledger")
    sweep.reports([2], 1)
    sweep.end(0, "COMPLETE")
    assert sweep.tracker.close("FINISHED")
    assert sweep.tracker.warnings() == []
    assert sweep.check_curves() == 4
    assert sweep.ledger.read_unsent_trials()[0].kind == TRIALS


def test_the_users_own_active_run_is_left_alone(folder):
    import mlflow

    with mlflow.start_run(run_name="mine") as mine:
        sweep = Sweep(folder).begin(trials=1).reports([10], trials=1)
        assert sweep.tracker.close("FINISHED")
        assert mlflow.active_run().info.run_id == mine.info.run_id
    assert mlflow.get_run(mine.info.run_id).data.metrics == {}


class Forgetful(BaseHTTPRequestHandler):
    """Passes requests on and loses every fourth answer or so: what was asked has happened all the same."""

    target = ("127.0.0.1", 0)
    num_lost = 0
    chance = random.Random(1)
    timeout = 5

    def pass_on(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        upstream = http.client.HTTPConnection(*self.target, timeout=20)
        headers = {key: value for key, value in self.headers.items() if key.lower() != "host"}
        upstream.request(self.command, self.path, body, headers)
        answer = upstream.getresponse()
        content = answer.read()
        lost = self.chance.random() < 0.25
        type(self).num_lost += lost
        self.send_response(500 if lost else answer.status)
        self.send_header("Content-Type", answer.headers.get("Content-Type", "application/json"))
        self.send_header("Content-Length", "2" if lost else str(len(content)))
        self.end_headers()
        self.wfile.write(b"no" if lost else content)

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = pass_on

    def log_message(self, *args):
        pass


def test_lost_answers_double_neither_runs_nor_points(folder, server, monkeypatch):
    for name, seconds in {"LINGER_S": 0.1, "FIRST_WAIT_S": 0.05, "LONGEST_WAIT_S": 0.2}.items():
        monkeypatch.setattr(f"rltune.tracking.outbox.{name}", seconds)
    monkeypatch.setattr("rltune.tracking.outbox.MAX_ATTEMPTS", 50)  # it is one server in four, not the operation
    Forgetful.target = ("127.0.0.1", server.port)
    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Forgetful)
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    try:
        sweep = Sweep(folder, f"http://127.0.0.1:{proxy.server_port}", "lossy").begin(trials=3)
        steps = itertools.count(1)
        while (step := next(steps)) <= 6 or (Forgetful.num_lost <= 5 and step < 300):
            sweep.reports([step], trials=3)
            time.sleep(0.1)
        for number in range(3):
            sweep.end(number, "COMPLETE")
        sweep.settle()
        assert sweep.tracker.close("FINISHED", 120.0)
    finally:
        proxy.shutdown()
    assert Forgetful.num_lost > 5
    sweep.uri = server.uri
    assert set(sweep.statuses().items()) == {
        (name, "FINISHED") for name in ("lossy", "trial-000", "trial-001", "trial-002")
    }
    assert sweep.check_curves() == 2 * 3 * (step - 1)


def test_a_round_that_comes_after_the_end_leaves_it(folder, monkeypatch):
    """The sender may carry the end out before the driver asks whether it has."""
    monkeypatch.setattr("rltune.tracking.outbox.LINGER_S", 0.0)
    sweep = Sweep(folder).begin(trials=1).settle()
    outbox, view = sweep.tracker._outbox, sweep.tracker._view
    outbox.put("the end", lambda: view.end_sweep("FINISHED", 1))
    for _ in range(200):
        if sweep.statuses()["first"] == "FINISHED":
            break
        time.sleep(0.05)
    outbox.call(lambda: None, 20.0)
    assert sweep.statuses() == {"first": "FINISHED", "trial-000": "KILLED"}
    sweep.kill()


def test_a_trial_that_breaks_a_constraint_says_so_in_mlflow(folder):
    """And the sweep's best score is none of its."""
    sweep = Sweep(folder)
    sweep.ledger.judge_by(Criteria(parse_constraints({"learner/loss": "< 1"}), env_steps=200))
    sweep.begin()
    for number, loss in ((0, 2.0), (1, 0.5)):
        sweep.report(number, 200, objective=10.0 - number, **{"learner/loss": loss})
        sweep.end(number, "COMPLETE")
    assert sweep.tracker.close("FINISHED")
    runs = sweep.runs()
    for tag in ("rltune.breaks", "mlflow.note.content"):
        assert "learner/loss=2, " in runs["trial-000"].data.tags[tag]
    assert "rltune.breaks" not in runs["trial-001"].data.tags
    assert runs[sweep.name].data.metrics["best_score"] == 9.0
