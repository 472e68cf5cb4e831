"""Models that are registered in a real MLflow and loaded back."""

from __future__ import annotations

from pathlib import Path

import pytest

from rltune.records import RunKey
from tests.tracking.tracked_sweep import Sweep

pytestmark = pytest.mark.filterwarnings("ignore:.*noload")  # SQLAlchemy about MLflow

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
    about = {"name": "cartpole-ppo", "key": RunKey(0), "tags": {"objective": "475"}, "description": "a *winner*"}
    about["about"] = "winners in CartPole"
    first = tracker.register(model=tiny_model(folder, 1.0), alias="champion", **about)
    again = tracker.register(model=tiny_model(folder, 1.0), alias="champion", **about)
    worse = tracker.register(model=tiny_model(folder, 2.0), alias=None, **about)
    assert (first.version, again.version, worse.version) == ("1", "1", "2"), tracker.warnings()
    assert (first.alias, worse.alias) == ("champion", None)
    champion = tracker.champion("cartpole-ppo")
    assert (champion.uri, champion.tags["objective"]) == ("models:/cartpole-ppo/1", "475")
    assert tracker.close("FINISHED")
    assert tracker.warnings() == []
    assert sweep.client.get_registered_model("cartpole-ppo").description == about["about"]
    assert sweep.client.get_model_version("cartpole-ppo", "1").run_id == sweep.runs()["trial-000"].info.run_id
    for run in (sweep.runs()[sweep.name], sweep.runs()["trial-000"]):
        assert run.data.tags["rltune.model"] == "models:/cartpole-ppo/2"
        assert len(run.outputs.model_outputs) == 2, "the sweep's run leads to what it registered"
    assert capfd.readouterr() == ("", "")  # the console belongs to the sweep

    mlflow.set_tracking_uri(sweep.uri)
    try:
        policy = mlflow.pyfunc.load_model("models:/cartpole-ppo@champion")
        assert policy.predict(np.ones((1, 2), np.float32)).tolist() == [[2.0, 2.0]]
        assert policy.metadata.signature is not None
        assert policy.metadata.run_id == sweep.ledger.trials.records()[0].mlflow_run_id
        files = {path.name for path in Path(mlflow.artifacts.download_artifacts(champion.uri)).rglob("*")}
        assert not any(name.endswith((".pkl", ".pickle")) for name in files)
        assert "input_example.json" in files
    finally:
        mlflow.set_tracking_uri(None)


def test_the_better_of_two_sweeps_that_end_together_keeps_the_alias(folder):
    sweeps = [Sweep(folder, None, name).begin(trials=1) for name in ("first", "second", "third")]
    trackers = [sweep.tracker for sweep in sweeps]
    assert [tracker.champion("m") for tracker in trackers] == [None] * 3
    about = {"name": "m", "key": RunKey(0), "description": "", "alias": "champion"}
    about["rank"] = lambda version: float(version.tags["score"])
    versions = [
        tracker.register(model=tiny_model(folder, score), tags={"score": str(score)}, **about)
        for tracker, score in zip(trackers, (200.0, 300.0, 100.0), strict=True)
    ]
    assert [version.alias for version in versions] == ["champion", "champion", None]
    assert trackers[0].champion("m").version == versions[1].version
    assert all(tracker.close("FINISHED") for tracker in trackers)


def test_the_alias_stays_when_mlflow_does_not_answer(folder, monkeypatch):
    about = {"name": "m", "key": RunKey(0), "tags": {}, "description": ""}
    before = Sweep(folder, name="before").begin(trials=1)
    assert before.tracker.champion("m") is None
    before.tracker.register(model=tiny_model(folder, 1.0), alias="champion", **about)
    assert before.tracker.close("FINISHED")
    sweep = Sweep(folder).begin(trials=1)
    with monkeypatch.context() as patch:
        patch.setattr("rltune.tracking.feed.CHAMPION_S", 0.0)
        patch.setattr("mlflow.MlflowClient.get_model_version_by_alias", lambda *_: 1 / 0)
        assert sweep.tracker.champion("m") is None
    second = sweep.tracker.register(model=tiny_model(folder, 2.0), alias="champion", **about)
    assert (second.version, second.alias) == ("2", None)
    assert sweep.tracker.champion("m").version == "1"
    assert any("'champion' of m" in message for message in sweep.tracker.warnings())
    assert sweep.tracker.close("FINISHED")


def test_one_version_has_one_logged_model_after_a_lost_end(folder, monkeypatch):
    """A driver may end between a model's log and its registration; the next one registers what was logged."""
    sweep = Sweep(folder).begin(trials=1)
    call = {"name": "m", "key": RunKey(0), "model": tiny_model(folder, 1.0), "tags": {}, "description": ""}
    call["alias"] = "champion"
    assert sweep.tracker.champion("m") is None
    with monkeypatch.context() as patch:
        patch.setattr("mlflow.MlflowClient.create_model_version", lambda *_, **__: 1 / 0)
        assert sweep.tracker.register(**call) is None
    assert sweep.tracker.register(**call).version == "1"
    assert sweep.tracker.close("FINISHED")
    experiment = sweep.client.get_experiment_by_name("cartpole")
    assert len(sweep.client.search_logged_models([experiment.experiment_id])) == 1


def test_a_version_gets_its_alias_after_a_lost_end(folder, monkeypatch):
    """A driver may end between a version's registration and its alias; the next one sets the alias."""
    sweep = Sweep(folder).begin(trials=1)
    call = {"name": "m", "key": RunKey(0), "model": tiny_model(folder, 1.0), "tags": {}, "description": ""}
    assert sweep.tracker.register(**call, alias=None).version == "1"
    assert sweep.tracker.champion("m") is None
    again = sweep.tracker.register(**call, alias="champion")
    assert (again.version, again.alias) == ("1", "champion")
    assert sweep.tracker.champion("m").version == "1"
    assert sweep.tracker.close("FINISHED")
