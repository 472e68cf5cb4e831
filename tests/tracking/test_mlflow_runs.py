"""A sweep's runs in a real MLflow store: repeated, resumed, with answers that are lost."""

from __future__ import annotations

import atexit
import http.client
import random
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tracked_sweep import Sweep, end

from rltune.tracking.mlflow_runs import MLflowRuns
from rltune.tracking.tracker import TrialEnd

pytestmark = pytest.mark.filterwarnings("ignore:.*noload")  # SQLAlchemy about MLflow


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


@pytest.mark.parametrize("ids_known", [True, False], ids=["ids from the ledger", "ids lost"])
def test_a_resumed_sweep_continues_its_runs(folder, ids_known):
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


def test_a_resume_ends_runs_that_a_killed_driver_left_running(folder):
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


def test_a_resume_sends_what_only_the_ledger_has(folder):
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


@pytest.mark.parametrize("kind", ["registry", "find_or_create", "nonsense"])
def test_a_file_can_name_no_other_method(kind):
    runs = MLflowRuns("sqlite:///x", "cartpole", "first", "key", print)
    with pytest.raises(KeyError, match=kind):
        runs.apply([{"op": kind, "trial": 1, "t": 0}])
