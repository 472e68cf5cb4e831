"""A real checkpoint, two sweeps' folders with it, and an MLflow store with it; imported by the tests' conftest."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rltune.config.settings_file import FORMAT

CARTPOLE = {"id": "CartPole-v1", "kwargs": {}, "wrappers": []}
OBSERVATIONS = np.random.default_rng(0).uniform(-0.4, 0.4, size=(1000, 4)).astype(np.float32)  # as CartPole has them


@pytest.fixture(scope="session")
def checkpoint(ray_cluster: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real RLlib checkpoint with its bundle, of a briefly trained PPO on CartPole."""
    from ray.rllib.algorithms.ppo import PPOConfig

    from rltune.policies.bundle_writer import write_bundle

    folder = tmp_path_factory.mktemp("checkpoint")
    config = PPOConfig().environment("CartPole-v1").env_runners(num_env_runners=0, num_envs_per_env_runner=8)
    config.training(train_batch_size_per_learner=512, minibatch_size=128, num_epochs=2, lr=1e-3)
    algorithm = config.rl_module(model_config={"fcnet_hiddens": [32, 32]}).build_algo()
    algorithm.train()
    algorithm.save_to_path(folder / "algorithm")
    info = {"algo": "ppo", "env": CARTPOLE, "trial": 7, "params": {"lr": 1e-3}, "env_steps": 512}
    write_bundle(algorithm.get_module(), folder / "policy", info=info)
    (folder / "state.json").write_text("{}")
    algorithm.stop()
    return folder


@pytest.fixture(scope="session")
def actions(checkpoint: Path) -> Any:
    """What the checkpoint's policy does with `OBSERVATIONS`."""
    from rltune.policies.bundle_reader import BundlePolicy

    return BundlePolicy.load(checkpoint / "policy").act(OBSERVATIONS)


@pytest.fixture(scope="session")
def outputs(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Path:
    """Two sweeps' folders: one finished, an older one interrupted before it had a winner."""
    root = tmp_path_factory.mktemp("outputs")
    for name in ("cartpole-stopped", "cartpole-done"):
        sweep = root / name
        make_sweep(sweep, checkpoint)
    winner = {"trial": 2, "params": {}, "objective": 90.0, "checkpoint": "trials/2/first/best-000000002048"}
    (sweep / "summary.json").write_text(json.dumps({"winner": winner}))
    os.utime(root / "cartpole-stopped" / "config.yaml", (1, 1))
    return root


def make_sweep(sweep: Path, checkpoint: Path, storage: str | None = None, remote_storage: str | None = None) -> None:
    """Leave a sweep of four trials: 0 without a checkpoint, 1 to 3 with one, 3 pruned.

    Args:
        sweep: Its folder, to be made.
        checkpoint: What each trial's is a copy of; its policy is told the trial's number.
        storage: The ledger's address; None is a file in the folder.
        remote_storage: The sweep's setting ``storage``.
    """
    from rltune.checkpoints.store import open_store
    from rltune.config.authorship import mark_own
    from rltune.ledger.ledger import Ledger
    from rltune.records import CheckpointRecord, Report

    sweep.mkdir()
    settings = json.dumps({"format": FORMAT, "storage": remote_storage, "study": {"storage": storage}})
    (sweep / "config.yaml").write_text(settings)
    mark_own(sweep, hashlib.sha256(settings.encode()).hexdigest())
    ledger = Ledger(storage or f"sqlite:///{sweep}/ledger.db", sweep.name, create=True)
    store = open_store(sweep)
    for number, objective in enumerate((None, 150.0, 90.0, 170.0)):
        ledger.trials.add({"lr": 1e-3}, [number])
        if objective is not None:
            path = f"trials/{number}/first/best-000000002048"
            with store.make_draft(path) as draft:
                shutil.copytree(checkpoint, draft, dirs_exist_ok=True)
                relabel(draft / "policy", number)
                record = CheckpointRecord(path, 2048, objective, store.save(draft, path))
            ledger.trials.add_report(Report(number, 2048, objective), {"checkpoint": record})
            ledger.trials.set_mlflow_run(number, f"run-{number}")
        ledger.trials.end(number, "PRUNED" if number == 3 else "COMPLETE", "done")
    ledger.close()


def relabel(folder: Path, number: int) -> None:
    """Let a bundle say that it is another trial's."""
    spec = json.loads((folder / "policy.json").read_text())
    spec["info"]["trial"] = number
    (folder / "policy.json").write_text(json.dumps(spec))


@pytest.fixture(scope="session")
def made_store(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> dict[str, Any]:
    """A real MLflow store: a run with the checkpoint, a model registered from it, and a run with nothing."""
    import mlflow
    from mlflow.entities import LoggedModelOutput

    from rltune.policies.mlflow_model import make_model_arguments

    folder = tmp_path_factory.mktemp("mlflow")
    before = mlflow.get_tracking_uri()
    uri = f"sqlite:///{folder}/mlflow.db"
    mlflow.set_tracking_uri(uri)
    client = mlflow.MlflowClient()
    experiment = mlflow.create_experiment("cartpole", artifact_location=str(folder / "artifacts"))
    with mlflow.start_run(experiment_id=experiment) as run:
        mlflow.log_artifacts(str(checkpoint), "checkpoint")
        arguments = make_model_arguments(checkpoint / "policy")
        model = mlflow.pyfunc.log_model(name="policy", registered_model_name="cartpole-ppo", **arguments)
    client.set_registered_model_alias("cartpole-ppo", "champion", 1)
    with mlflow.start_run(experiment_id=experiment) as other:
        client.log_outputs(other.info.run_id, [LoggedModelOutput(model.model_id, 0)])
    with mlflow.start_run(experiment_id=experiment) as empty:
        pass
    mlflow.set_tracking_uri(before)
    ids = {"run": run.info.run_id, "model_only": other.info.run_id, "empty": empty.info.run_id}
    return {**ids, "model": model, "uri": uri}


@pytest.fixture
def store(made_store: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The store, as the one that is used."""
    import mlflow

    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(made_store["uri"])
    yield made_store
    mlflow.set_tracking_uri(before)
