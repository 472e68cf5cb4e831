"""MLflow as a person finds it after a sweep: real stores, a server that stalls, dies and loses answers."""

from __future__ import annotations

import atexit
import http.client
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from server import Server

from rltune.config.uris import resolve_uri
from rltune.errors import ConfigError
from rltune.tracking import outbox
from rltune.tracking.outbox import Outbox
from rltune.tracking.tracker import NoTracker, Tracker, TrackingSettings, TrialEnd
from rltune.tracking.uri_check import check_uri

pytestmark = pytest.mark.filterwarnings("ignore:.*noload")  # SQLAlchemy about MLflow

PUT_BOUND_S = 0.05  # 0.01 ms on a quiet machine; two shared cores may pause a thread

TINY_MODEL = """
import mlflow
from mlflow.pyfunc import PythonModel
class Tiny(PythonModel):
    def load_context(self, context):
        with open(context.artifacts["weights"]) as file:
            self.offset = float(file.read())
    def predict(self, context, model_input, params=None):
        return model_input + self.offset
mlflow.models.set_model(Tiny())
"""


@pytest.fixture(scope="module")
def empty_store(tmp_path_factory):
    """A migrated MLflow database, made once: the migrations take seconds."""
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    from mlflow import MlflowClient

    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def folder(tmp_path, monkeypatch, empty_store):
    """A project folder whose default store is ready."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    return tmp_path


@pytest.fixture(scope="module")
def starting_server(tmp_path_factory, empty_store):
    folder = tmp_path_factory.mktemp("server")
    shutil.copy(empty_store, folder / "mlflow.db")
    server = Server(folder).start()
    yield server
    server.kill()


@pytest.fixture
def server(starting_server):
    return starting_server.wait()


class Sweep:
    """What a conductor would keep: the runs' ids and the longest call."""

    def __init__(self, folder, uri=None, name="first"):
        self.ids, self.longest_s = {}, 0.0
        self.name = name
        settings = TrackingSettings(uri, "cartpole", name, folder / "outputs" / name / "tracking")
        self.uri, self.spool_dir = resolve_uri(uri), settings.spool_dir
        self.tracker = Tracker(settings, self.ids.__setitem__)

    def __getattr__(self, method):
        def timed(*args, **kwargs):
            began = time.perf_counter()
            getattr(self.tracker, method)(*args, **kwargs)
            self.longest_s = max(self.longest_s, time.perf_counter() - began)

        return timed

    def begin(self, run_id=None, trials=2, **params):
        self.start(
            run_id=run_id,
            params={"algo": "ppo", **params},
            tags={"seed": "1"},
            config_text="algo: ppo\n",
            packages="ray==2.60.0\n",
        )
        for number in range(trials):
            self.trial_started(number, {"lr": 0.001 * (number + 1)}, {}, None)
        return self

    def reports(self, steps, trials=2):
        for step in steps:
            for number in range(trials):
                self.report(number, {"objective": float(step + number), "learner/loss": 0.5}, step)
        return self

    def settle(self, timeout_s=20.0):
        deadline = time.monotonic() + timeout_s
        while self.tracker.num_pending and time.monotonic() < deadline:
            time.sleep(0.01)
        assert self.tracker.num_pending == 0
        return self

    @property
    def client(self):
        from mlflow import MlflowClient

        return MlflowClient(self.uri)

    def runs(self):
        """The sweep's runs as they stand in MLflow, by name: a doubled name fails."""
        experiment = self.client.get_experiment_by_name("cartpole")
        runs = self.client.search_runs(
            [experiment.experiment_id], f"tags.`rltune.sweep` = '{self.name}'", max_results=1000
        )
        names = [run.info.run_name for run in runs]
        assert len(names) == len(set(names)), names
        return {run.info.run_name: run for run in runs}

    def steps(self, name, metric="objective"):
        history = self.client.get_metric_history(self.runs()[name].info.run_id, metric)
        return sorted(point.step for point in history)

    def wait_for(self, words, timeout_s=20.0):
        deadline = time.monotonic() + timeout_s
        heard = []
        while time.monotonic() < deadline:
            heard += self.tracker.warnings()
            if any(words in message for message in heard):
                return
            time.sleep(0.02)
        raise AssertionError(f"'{words}' was not among {heard}")


def end(sweep, number, state, **more):
    sweep.trial_ended(number, state, **{"metrics": {}, "tags": {}, "artifacts": None, **more})


# --- what a person sees ---


def test_a_sweep_is_a_parent_with_one_child_per_trial(folder):
    checkpoint = folder / "best"
    checkpoint.mkdir()
    (checkpoint / "weights").write_text("1.0")
    sweep = Sweep(folder).begin(trials=4).reports([100, 200], trials=4)
    sweep.progress(201.0, 400)
    end(sweep, 0, "COMPLETE", metrics={"final": 1.5}, artifacts=checkpoint)
    end(sweep, 1, "PRUNED", tags={"stop_reason": "asha"})
    end(sweep, 2, "FAIL", tags={"stop_reason": "nan loss"})
    end(sweep, 3, "INTERRUPTED")
    sweep.artifact(checkpoint / "weights", "report")
    assert sweep.tracker.close("FINISHED")

    runs = sweep.runs()
    parent = runs.pop("first")
    assert parent.info.status == "FINISHED"
    assert parent.data.metrics == {"best_objective": 201.0}
    assert parent.data.params == {"algo": "ppo"}
    paths = {file.path for file in sweep.client.list_artifacts(parent.info.run_id)}
    assert paths == {"config.yaml", "packages.txt", "report"}
    statuses = {name: run.info.status for name, run in runs.items()}
    assert statuses == {
        "trial-000": "FINISHED",
        "trial-001": "KILLED",
        "trial-002": "FAILED",
        "trial-003": "KILLED",
    }
    assert {run.data.tags["mlflow.parentRunId"] for run in runs.values()} == {parent.info.run_id}
    first = runs["trial-000"]
    assert first.data.params == {"lr": "0.001"}  # the sampled values and nothing else
    assert first.data.metrics == {"objective": 200.0, "learner/loss": 0.5, "final": 1.5}
    assert sweep.steps("trial-000") == [100, 200]
    assert sweep.steps("trial-000", "final") == [200]
    assert runs["trial-002"].data.tags["stop_reason"] == "nan loss"
    kept = sweep.client.list_artifacts(first.info.run_id, "checkpoint")
    assert [file.path for file in kept] == ["checkpoint/weights"]
    assert sweep.ids == {None: parent.info.run_id} | {
        number: runs[f"trial-{number:03d}"].info.run_id for number in range(4)
    }


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


@pytest.mark.slow
def test_a_driver_killed_while_it_makes_the_store_leaves_none_that_is_half_made(tmp_path):
    store = tmp_path / "mlflow.db"
    code = "import sys; from rltune.tracking import mlflow_client; mlflow_client.make_store(sys.argv[1])"
    process = subprocess.Popen([sys.executable, "-c", code, f"sqlite:///{store}"])
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob(".mlflow.db-*/mlflow.db")) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert list(tmp_path.glob(".mlflow.db-*/mlflow.db")), "it was at work"
    assert not store.exists()


def test_values_that_are_not_finite_are_left_out(folder):
    sweep = Sweep(folder).begin(trials=1)
    sweep.report(0, {"objective": float("nan"), "return_max": float("inf"), "episodes": 3}, 100)
    sweep.report(0, {"loss [kl=0.1]": 0.5}, 100)  # nor does a name that MLflow forbids cost the point
    assert sweep.tracker.close("FINISHED")
    assert sweep.runs()["trial-000"].data.metrics == {"episodes": 3.0, "loss _kl_0.1_": 0.5}


def test_closing_ends_the_trials_that_are_still_open(folder):
    sweep = Sweep(folder).begin(trials=3)
    end(sweep, 0, "COMPLETE")
    assert sweep.tracker.close("KILLED")
    assert [run.info.status for _, run in sorted(sweep.runs().items())] == [
        "KILLED",
        "FINISHED",
        "KILLED",
        "KILLED",
    ]
    sweep.report(1, {"objective": 1.0}, 5)  # too late, and no error
    assert sweep.tracker.close("FINISHED")


def test_the_users_own_active_run_is_left_alone(folder):
    import mlflow

    with mlflow.start_run(run_name="mine") as mine:
        sweep = Sweep(folder).begin(trials=1).reports([10], trials=1)
        assert sweep.tracker.close("FINISHED")
        assert mlflow.active_run().info.run_id == mine.info.run_id
    assert mlflow.get_run(mine.info.run_id).data.metrics == {}


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


def test_without_tracking_every_call_does_nothing(folder):
    tracker = NoTracker()
    tracker.start(run_id=None, params={}, tags={}, config_text="", packages="")
    tracker.trial_started(0, {}, {}, None)
    tracker.report(0, {"objective": 1.0}, 1)
    tracker.progress(1.0, 1)
    tracker.trial_ended(0, "COMPLETE", metrics={}, tags={}, artifacts=None)
    tracker.artifact(folder)
    assert tracker.champion("cartpole-ppo") is None
    assert tracker.register(name="m", number=0, model={}, tags={}, description="", alias="champion") is None
    assert tracker.close("FINISHED")
    assert tracker.warnings() == []
    assert not (folder / "mlruns").exists()


# --- resume ---


@pytest.mark.parametrize("ids_known", [True, False], ids=["ids from the ledger", "ids lost"])
def test_a_resumed_sweep_continues_its_runs_and_doubles_no_point(folder, ids_known):
    before = Sweep(folder).begin(budget=24).reports([100, 200])
    end(before, 0, "INTERRUPTED")
    end(before, 1, "INTERRUPTED")
    assert before.tracker.close("KILLED")

    after = Sweep(folder)
    known = before.ids if ids_known else {}
    after.start(run_id=known.get(None), params={"algo": "ppo", "budget": 48}, tags={}, config_text="x", packages="y")
    for number in range(2):
        after.trial_started(number, {"lr": 0.001 * (number + 1)}, {}, known.get(number))
    after.reports([200, 300])  # 200 again, with a new time: the checkpoint was older than the last report
    after.reports([300])  # and a retry within this driver
    end(after, 0, "COMPLETE")
    end(after, 1, "PRUNED")
    assert after.tracker.close("FINISHED")

    assert after.ids == before.ids
    runs = after.runs()
    assert set(runs) == {"first", "trial-000", "trial-001"}
    assert {name: run.info.status for name, run in runs.items()} == {
        "first": "FINISHED",
        "trial-000": "FINISHED",
        "trial-001": "KILLED",
    }
    assert after.steps("trial-000") == after.steps("trial-001", "learner/loss") == [100, 200, 300]
    assert runs["first"].data.params["budget"] == "24"
    assert runs["first"].data.tags["resumed.budget"] == "48"


def test_runs_that_a_killed_driver_left_running_are_ended_by_the_resume(folder):
    before = Sweep(folder).begin().reports([100]).settle()
    atexit.unregister(before.tracker.close)  # killed: no more is heard of it
    after = Sweep(folder)
    assert {run.info.status for run in after.runs().values()} == {"RUNNING"}
    after.begin(trials=0)
    assert after.tracker.close("FINISHED")
    assert {name: run.info.status for name, run in after.runs().items()} == {
        "first": "FINISHED",
        "trial-000": "KILLED",
        "trial-001": "KILLED",
    }


def test_what_only_the_ledger_had_heard_of_is_told_mlflow_by_the_resume(folder):
    kept = folder / "best-200"
    kept.mkdir()
    (kept / "weights.bin").write_text("w")
    before = Sweep(folder).begin(trials=4).reports([100], trials=4)
    before.trial_started("trial-000-seed-1", {}, {}, None)
    end(before, 2, "COMPLETE")  # its checkpoint was to follow
    end(before, 3, "COMPLETE", artifacts=kept)
    before.settle()
    atexit.unregister(before.tracker.close)  # killed after it had told the ledger, before it told anybody else
    after = Sweep(folder).begin(trials=0)
    whole = {"reports": {100: 100.0, 200: 7.0}, "tags": {"rltune.stop_reason": "whole budget"}}
    ended = TrialEnd("COMPLETE", {"best_objective": 100.0}, whole["tags"], kept, {"lr": 0.5}, whole["reports"])
    after.tracker.settle(dict.fromkeys([0, 2, 3, 7, "trial-000-seed-1"], ended))
    after.settle()
    (kept / "weights.bin").write_text("another sweep's")
    after.tracker.settle({3: ended})  # is whole: nothing is done again
    assert after.tracker.close("FINISHED")
    runs = after.runs()
    assert {name: run.info.status for name, run in runs.items()} == {
        "first": "FINISHED",
        "trial-001": "KILLED",
        **dict.fromkeys(["trial-000", "trial-002", "trial-003", "trial-007", "trial-000-seed-1"], "FINISHED"),
    }
    assert after.steps("trial-000") == after.steps("trial-007") == [100, 200]
    assert runs["trial-007"].data.params == {"lr": "0.5"}
    assert runs["trial-000"].data.tags["rltune.stop_reason"] == "whole budget"
    for number in (0, 2, 3, 7):
        run_id = runs[f"trial-{number:03d}"].info.run_id
        there = after.client.download_artifacts(run_id, "checkpoint/weights.bin", str(folder))
        assert Path(there).read_text() == "w"


# --- outages ---


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


def test_what_a_dead_server_did_not_get_is_sent_by_the_next_driver(folder, server):
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


class Forgetful(BaseHTTPRequestHandler):
    """Passes requests on and loses every fourth answer or so: what was asked has happened all the same."""

    target = ("127.0.0.1", 0)
    count = num_lost = 0
    chance = random.Random(1)
    timeout = 5

    def pass_on(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        upstream = http.client.HTTPConnection(*self.target, timeout=20)
        headers = {key: value for key, value in self.headers.items() if key.lower() != "host"}
        upstream.request(self.command, self.path, body, headers)
        answer = upstream.getresponse()
        content = answer.read()
        type(self).count += 1
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


def test_lost_answers_double_neither_runs_nor_points(folder, server):
    Forgetful.target = ("127.0.0.1", server.port)
    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Forgetful)
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    try:
        sweep = Sweep(folder, f"http://127.0.0.1:{proxy.server_port}", "lossy").begin(trials=3)
        for step in range(6):
            sweep.reports([step], trials=3)
            time.sleep(0.05)
        for number in range(3):
            end(sweep, number, "COMPLETE")
        assert sweep.tracker.close("FINISHED")
    finally:
        proxy.shutdown()
    assert Forgetful.num_lost > 5
    sweep.uri = server.uri
    assert set(sweep.runs()) == {"lossy", "trial-000", "trial-001", "trial-002"}
    assert {run.info.status for run in sweep.runs().values()} == {"FINISHED"}
    for number in range(3):
        assert sweep.steps(f"trial-{number:03d}") == list(range(6))


def test_a_damaged_spool_is_named_put_aside_and_the_rest_is_sent(folder):
    sweep = Sweep(folder, "http://127.0.0.1:9", "damaged").begin(trials=1).reports([1, 2, 3], trials=1)
    assert not sweep.tracker.close("KILLED", timeout_s=0.1)
    journal = sweep.spool_dir / "reports.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    assert len(lines) == 8
    lines[5] = lines[5].replace('"objective": 2', '"objective": 7')  # a flipped bit
    journal.write_text("".join(lines)[:-20])  # and a line cut short
    after = Sweep(folder, None, "damaged").settle()
    after.wait_for("2 damaged lines")
    assert after.tracker.close("FINISHED")
    assert after.steps("trial-000") == [1, 3]
    assert len((sweep.spool_dir / "reports.damaged").read_text().splitlines()) == 2


def test_a_spool_that_cannot_be_written_costs_no_report(folder):
    (folder / "outputs" / "full").mkdir(parents=True)
    (folder / "outputs" / "full" / "tracking").write_text("a file where the folder should be")
    sweep = Sweep(folder, None, "full").begin(trials=1).reports([1, 2], trials=1)
    sweep.wait_for("they wait in memory")
    assert sweep.tracker.close("FINISHED")
    assert sweep.steps("trial-000") == [1, 2]


def test_an_operation_that_mlflow_refuses_does_not_hold_up_the_others(folder):
    sweep = Sweep(folder).begin(trials=1)
    sweep.artifact(folder / "not-there")
    sweep.reports([1], trials=1)
    assert sweep.tracker.close("FINISHED")
    sweep.wait_for("refused 'artifact'")
    assert sweep.steps("trial-000") == [1]
    assert sweep.runs()["first"].info.status == "FINISHED"


def test_a_ledger_that_fails_does_not_stop_the_reports(folder):
    def broken(number, run_id):
        raise RuntimeError("study is locked")

    tracker = Tracker(TrackingSettings(None, "cartpole", "first", folder / "spool"), broken)
    tracker.start(run_id=None, params={}, tags={}, config_text="", packages="")
    assert tracker.close("FINISHED")
    assert "study is locked" in tracker.warnings()[0]


# --- models ---


def tiny_model(folder, offset):
    import numpy as np
    from mlflow.models import infer_signature

    (folder / "tiny.py").write_text(TINY_MODEL)
    weights = folder / f"weights-{offset}"
    weights.write_text(str(offset))
    example = np.zeros((1, 2), np.float32)
    return {
        "python_model": str(folder / "tiny.py"),
        "artifacts": {"weights": str(weights)},
        "signature": infer_signature(example, example),
        "input_example": example,
        "pip_requirements": ["mlflow"],
    }


@pytest.mark.parametrize("where", ["sqlite", "server"])
def test_a_registered_policy_loads_back_without_pickle(folder, server, where, monkeypatch, capfd):
    import mlflow
    import numpy as np

    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    monkeypatch.setenv("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "false")
    sweep = Sweep(folder, server.uri if where == "server" else None, f"model-{where}").begin()
    tracker = sweep.tracker
    assert tracker.champion("cartpole-ppo") is None
    about = {"name": "cartpole-ppo", "number": 0, "tags": {"objective": "475"}, "description": "a *winner*"}
    first = tracker.register(model=tiny_model(folder, 1.0), alias="champion", **about)
    again = tracker.register(model=tiny_model(folder, 1.0), alias="champion", **about)
    worse = tracker.register(model=tiny_model(folder, 2.0), alias=None, **about)
    assert (first.version, again.version, worse.version) == ("1", "1", "2"), tracker.warnings()
    assert (first.alias, worse.alias) == ("champion", None)
    champion = tracker.champion("cartpole-ppo")
    assert (champion.uri, champion.tags["objective"]) == ("models:/cartpole-ppo/1", "475")
    assert tracker.close("FINISHED")
    assert tracker.warnings() == []
    assert capfd.readouterr() == ("", "")  # the console belongs to the sweep

    mlflow.set_tracking_uri(sweep.uri)
    try:
        policy = mlflow.pyfunc.load_model("models:/cartpole-ppo@champion")
        assert policy.predict(np.ones((1, 2), np.float32)).tolist() == [[2.0, 2.0]]
        assert policy.metadata.signature is not None
        assert policy.metadata.run_id == sweep.ids[0]
        files = {path.name for path in Path(mlflow.artifacts.download_artifacts(champion.uri)).rglob("*")}
        assert not any(name.endswith((".pkl", ".pickle")) for name in files)
        assert "input_example.json" in files
    finally:
        mlflow.set_tracking_uri(None)


def test_the_champion_stays_when_mlflow_did_not_say_who_it_is(folder, monkeypatch):
    sweep = Sweep(folder).begin(trials=1)
    about = {"name": "m", "number": 0, "tags": {}, "description": ""}
    sweep.tracker.register(model=tiny_model(folder, 1.0), alias="champion", **about)
    with monkeypatch.context() as patch:
        patch.setattr("rltune.tracking.tracker.CHAMPION_TIMEOUT_S", 0.0)
        patch.setattr("mlflow.MlflowClient.get_model_version_by_alias", lambda *_: 1 / 0)
        assert sweep.tracker.champion("m") is None
    second = sweep.tracker.register(model=tiny_model(folder, 2.0), alias="champion", **about)
    assert (second.version, second.alias) == ("2", None)
    assert sweep.tracker.champion("m").version == "1"
    assert any("stays where it is" in message for message in sweep.tracker.warnings())
    assert sweep.tracker.close("FINISHED")


# --- the address ---


def test_a_password_appears_nowhere(folder, server):
    secret = "hunter2hunter2"
    away = f"http://me:{secret}@127.0.0.1:9"
    before = Sweep(folder, away, "secret").begin(store=away, dsn=f"postgresql://u:{secret}@db/x")
    before.trial_started(7, {"lr": 1.0, "where": away}, {"uri": f"{away}/?password={secret}"}, None)
    before.wait_for("does not answer")
    assert not before.tracker.close("KILLED", timeout_s=0.1)
    kept = (before.spool_dir / "reports.jsonl").read_text()
    assert "trial" in kept
    after = Sweep(folder, server.uri.replace("://", f"://me:{secret}@"), "secret")
    after.artifact(folder / "missing")
    assert after.tracker.close("FINISHED")
    shown = kept + "".join(before.tracker.warnings() + after.tracker.warnings())
    shown += "".join(str(run.data) for run in after.runs().values())
    for path in [*(folder / "outputs").rglob("*"), *(server.folder / "artifacts").rglob("*")]:
        shown += path.read_text() if path.is_file() else ""
    assert "trial-007" in after.runs()
    assert secret not in shown
    assert secret.encode() not in (server.folder / "mlflow.db").read_bytes()


def test_a_server_that_answers_passes_the_check(server):
    check_uri(server.uri)


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("http://me:hunter2@127.0.0.1:9", "cannot be reached"),
        ("http://no-such-host.invalid:5000", "cannot be reached"),
        ("postgresql://me:hunter2@127.0.0.1:9/mlflow", "cannot be reached"),
        ("sqlite:////etc/hostname/mlflow.db", "cannot be written"),
        ("./mlruns", "plain folder"),
        ("htp://localhost:5000", "did you mean 'http'?"),
    ],
)
def test_a_wrong_address_is_refused_at_once_in_three_parts(uri, words):
    began = time.monotonic()
    with pytest.raises(ConfigError) as caught:
        check_uri(uri)
    assert time.monotonic() - began < 3
    message = caught.value.pretty()
    assert "tracking.uri=" in message
    assert words in message
    assert "try:" in message
    assert "hunter2" not in message


def test_a_server_that_never_answers_is_refused_in_time():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        began = time.monotonic()
        with pytest.raises(ConfigError):
            check_uri(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.5)
    assert time.monotonic() - began < 2


def test_the_check_leaves_nothing_behind_and_does_not_import_mlflow(tmp_path):
    program = (
        "import sys; from rltune.tracking.uri_check import check_uri; check_uri(None); print('mlflow' in sys.modules)"
    )
    path = str(Path(__file__).parents[2] / "src")
    env = {**os.environ, "PYTHONPATH": path}
    env.pop("MLFLOW_TRACKING_URI", None)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"
    assert list(tmp_path.iterdir()) == []


def test_mlflow_is_imported_when_the_first_trial_reports_which_it_would_hold_up_before(tmp_path, monkeypatch):
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
