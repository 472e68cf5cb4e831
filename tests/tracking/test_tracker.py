"""MLflow as a person finds it after a sweep."""

from __future__ import annotations

import subprocess
import sys
from urllib.parse import parse_qsl, urlsplit

import pytest
from tracked_sweep import Sweep

from rltune.records import RunKey
from rltune.tracking.tracker import NoTracker

pytestmark = pytest.mark.filterwarnings("ignore:.*noload")  # SQLAlchemy about MLflow


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
    sweep.tracker.describe(None, {"certified_iqm": 9.0}, {"rltune.winner": "trial 0"})
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
    assert parent.data.metrics == {"best_score": 154.0, "compare/best_score": 154.0, "certified_iqm": 9.0}
    assert parent.data.params == {"algo": "ppo", "budget.env_steps": "1000"}
    assert parent.data.tags["rltune.winner"] == "trial 0"
    assert parent.info.run_id == sweep.ledger.sweep().mlflow_run_id
    paths = {file.path for file in sweep.client.list_artifacts(parent.info.run_id)}
    assert paths == {"config.yaml", "packages.txt", "report"}
    assert {run.data.tags["mlflow.parentRunId"] for run in runs.values()} == {parent.info.run_id}
    first = runs["trial-000"]
    assert first.data.params == {"lr": "0.001"}  # the sampled values and nothing else
    shown = {"objective": 200.0, "learner/loss": 0.5, "score": 150.0, "certified_score": 9.0}
    first_of_all = {"compare/objective": 200.0, "compare/score": 150.0, "compare/certified_score": 9.0}
    assert first.data.metrics == shown | first_of_all
    sections = {name.rpartition("/")[0] for name in first.data.metrics} - {""}  # those without one come last
    assert min(sections) == "compare", "MLflow's page sorts the charts' sections by their code points"
    assert sweep.steps("trial-000", "score") == [200]
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
    sweep.tracker.describe(RunKey(None), {"certified_iqm": 3.0}, {})
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
    assert runs["baseline"].data.metrics == {"certified_iqm": 3.0}
    assert runs["baseline-seed-1"].data.metrics["certified_score"] == 5.0, "not what its training ended with"
    assert runs["baseline-seed-1"].data.metrics["compare/certified_score"] == 5.0


def test_seeds_of_the_control_stand_below_the_trial_of_its_values(folder):
    sweep = Sweep(folder).begin(trials=2).reports([100], trials=2)
    sweep.end(1, "COMPLETE")
    number = sweep.add_run(None, 0, lr=0.002)  # those of trial 1
    sweep.report(number, 100, sweep.ledger.runs)
    sweep.end(number, "COMPLETE", sweep.ledger.runs)
    sweep.tracker.describe(RunKey(None), {"certified_iqm": 3.0}, {})
    assert sweep.tracker.close("FINISHED")
    runs = sweep.runs()
    assert set(runs) == {"first", "trial-000", "trial-001", "baseline-seed-1"}
    assert runs["baseline-seed-1"].data.tags["mlflow.parentRunId"] == runs["trial-001"].info.run_id
    assert runs["trial-001"].data.metrics["certified_iqm"] == 3.0


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
        "searchFilter": f"tags.`mlflow.parentRunId` = '{run_id}'",
        "compareRunsMode": "CHART",
        "workflowType": "machine_learning",
    }


def test_a_run_is_described_anew_when_a_value_has_changed(folder):
    sweep = Sweep(folder).begin(trials=0)
    for value in (1.0, 1.0, 2.0):
        sweep.tracker.describe(None, {"certified_iqm": value}, {"rltune.winner": f"trial {value:.0f}"})
    assert sweep.tracker.close("FINISHED")
    (run,) = sweep.runs().values()
    assert (run.data.metrics, run.data.tags["rltune.winner"]) == ({"certified_iqm": 2.0}, "trial 2")
    history = sweep.client.get_metric_history(run.info.run_id, "certified_iqm")
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
    tracker = NoTracker()
    tracker.start(params={}, tags={}, texts={"config.yaml": ""})
    tracker.wake()
    tracker.artifact(folder)
    tracker.describe(None, {}, {})
    tracker.wait_until_sent()
    assert tracker.champion("cartpole-ppo") is None
    about = {"name": "m", "key": RunKey(0), "model": {}, "tags": {}, "description": ""}
    assert tracker.register(alias="champion", **about) is None
    assert tracker.close("FINISHED")
    assert tracker.warnings() == []
    assert not (folder / "mlruns").exists()


def test_a_password_appears_nowhere(folder, server):
    secret = "hunter2hunter2"
    away = f"http://me:{secret}@127.0.0.1:9"
    before = Sweep(folder, away, "secret").begin(store=away, dsn=f"postgresql://u:{secret}@db/x")
    before.wait_for("does not answer")
    assert not before.tracker.close("KILLED", timeout_s=0.1)
    texts = "".join(before.tracker.warnings())
    assert "sweep=secret" in texts
    after = Sweep(folder, server.uri.replace("://", f"://me:{secret}@"), "secret")
    after.tracker.start(params={"store": away}, tags={"uri": f"{away}/?password={secret}"}, texts={"c.yaml": away})
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
    request = sweep.ledger.ask("enqueue", {"lr": 0.5}, "maria@host")
    sweep.ledger.trials.add({"lr": 0.5}, [1], request)
    sweep.end(0, "FAIL", reason="KeyError", traceback="line 2", log="trials/0/failure.txt")
    sweep.settle()
    sweep.ledger.ask("retry", {"trials": [0], "certify": []}, "maria@host")
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
    assert sweep.steps("trial-000", "objective") == [100, 200]
    assert runs["trial-001"].data.tags["rltune.enqueued_by"] == "maria@host"
    assert "rltune.enqueued_by" not in first.data.tags
