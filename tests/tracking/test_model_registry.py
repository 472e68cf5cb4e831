"""Models that are registered in a real MLflow and loaded back."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from rltune.tracking import model_registry as module
from rltune.tracking.model_registry import ModelRegistry, RegistryError
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


def open_registry(sweep):
    """Return a registry of the sweep's MLflow and the run of its first trial there, as the end of a sweep has them."""
    sweep.settle()
    return ModelRegistry(sweep.uri), sweep.ledger.trials.record(0).mlflow_run_id


@pytest.mark.parametrize("where", ["sqlite", "server"])
def test_a_registered_policy_loads_back_without_pickle(folder, server, where, monkeypatch, capfd):
    import mlflow
    import numpy as np

    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    monkeypatch.setenv("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "false")
    sweep = Sweep(folder, server.uri if where == "server" else None, f"model-{where}").begin()
    tracker, (registry, run_id) = sweep.tracker, open_registry(sweep)
    assert registry.look_up("cartpole-ppo", "champion") == (None, 0)
    about = {"name": "cartpole-ppo", "run_id": run_id, "tags": {"objective": "475"}, "description": "a *winner*"}
    about["about"] = "winners in CartPole"
    first = registry.register(model=tiny_model(folder, 1.0), alias="champion", **about)
    again = registry.register(model=tiny_model(folder, 1.0), alias="champion", **about)
    worse = registry.register(model=tiny_model(folder, 2.0), **about)
    assert (first.version, again.version, worse.version) == ("1", "1", "2")
    assert (first.alias, worse.alias) == ("champion", None)
    champion, newest = registry.look_up("cartpole-ppo", "champion")
    assert newest == 2
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
    opened = [open_registry(sweep) for sweep in sweeps]
    assert [registry.look_up("m", "champion") for registry, _ in opened] == [(None, 0)] * 3
    about = {"name": "m", "description": "", "alias": "champion"}
    about["rank"] = lambda version: float(version.tags["score"])
    versions = [
        registry.register(model=tiny_model(folder, score), run_id=run_id, tags={"score": str(score)}, **about)
        for (registry, run_id), score in zip(opened, (200.0, 300.0, 100.0), strict=True)
    ]
    assert [version.alias for version in versions] == ["champion", "champion", None]
    assert opened[0][0].look_up("m", "champion")[0].version == versions[1].version
    assert all(sweep.tracker.close("FINISHED") for sweep in sweeps)


def test_a_server_that_does_not_answer_is_called_until_a_limit(monkeypatch):
    from requests import ConnectionError

    calls = []

    def fail(*_):
        calls.append(1)
        raise ConnectionError("http://me:s3cret@host is away")

    monkeypatch.setattr(module, "connect_mlflow", fail)
    monkeypatch.setattr(module, "LOOK_UP_S", 0.2)
    monkeypatch.setattr(module, "RETRY_S", 0.05)
    with pytest.raises(RegistryError) as error:
        ModelRegistry("http://host").look_up("m", "champion")
    assert len(calls) > 1
    assert "s3cret" not in str(error.value)
    calls.clear()
    with pytest.raises(RegistryError):
        ModelRegistry("http://host", is_urgent=lambda: True).look_up("m", "champion")
    assert len(calls) == 1, "after a signal nobody waits"


def test_a_server_that_hangs_is_left_after_the_limit(monkeypatch):
    released = threading.Event()
    monkeypatch.setattr(module, "connect_mlflow", lambda _: released.wait(60.0))
    monkeypatch.setattr(module, "LOOK_UP_S", 0.2)
    began = time.monotonic()
    with pytest.raises(RegistryError):
        ModelRegistry("postgresql://host/db").look_up("m", "champion")
    assert time.monotonic() - began < 20.0
    released.set()


def test_one_version_has_one_logged_model_after_a_lost_end(folder, monkeypatch):
    """A driver may end between a model's log and its registration; the next one registers what was logged."""
    sweep = Sweep(folder).begin(trials=1)
    registry, run_id = open_registry(sweep)
    call = {"name": "m", "run_id": run_id, "model": tiny_model(folder, 1.0), "tags": {}, "description": ""}
    with monkeypatch.context() as patch:
        patch.setattr("mlflow.MlflowClient.create_model_version", lambda *_, **__: 1 / 0)
        with pytest.raises(RegistryError):
            registry.register(**call, alias="champion")
    assert registry.register(**call, alias="champion").version == "1"
    assert sweep.tracker.close("FINISHED")
    experiment = sweep.client.get_experiment_by_name("cartpole")
    assert len(sweep.client.search_logged_models([experiment.experiment_id])) == 1


def test_a_version_gets_its_alias_after_a_lost_end(folder):
    """A driver may end between a version's registration and its alias; the next one sets the alias."""
    sweep = Sweep(folder).begin(trials=1)
    registry, run_id = open_registry(sweep)
    call = {"name": "m", "run_id": run_id, "model": tiny_model(folder, 1.0), "tags": {}, "description": ""}
    assert registry.register(**call).version == "1"
    assert registry.look_up("m", "champion") == (None, 1)
    again = registry.register(**call, alias="champion", newest=1)
    assert (again.version, again.alias) == ("1", "champion")
    assert registry.look_up("m", "champion")[0].version == "1"
    assert sweep.tracker.close("FINISHED")
