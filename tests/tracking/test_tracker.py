"""MLflow as a person finds it after a sweep."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tracked_sweep import Sweep, end

from rltune.tracking.tracker import MLflowTracker, NoTracker, TrackingSettings

pytestmark = pytest.mark.filterwarnings("ignore:.*noload")  # SQLAlchemy about MLflow


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


def test_a_ledger_that_fails_does_not_stop_the_reports(folder):
    def broken(number, run_id):
        raise RuntimeError("study is locked")

    tracker = MLflowTracker(TrackingSettings(None, "cartpole", "first", folder / "spool"), broken)
    tracker.start(run_id=None, params={}, tags={}, config_text="", packages="")
    assert tracker.close("FINISHED")
    assert "study is locked" in tracker.warnings()[0]


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
