"""A model or a run leads to its files, or to the nearest name."""

from __future__ import annotations

import os
import subprocess
import sys

import mlflow
import pytest
from checkpoints import OBSERVATIONS
from mlflow import MlflowClient

from rltune.errors import PolicyError
from rltune.policies import mlflow_artifacts
from rltune.policies.policy import load_policy
from rltune.policies.uri import Source, keep_with_run, locate_policy


@pytest.mark.parametrize("uri", ["models:/cartpole-ppo@champion", "models:/cartpole-ppo/1", "run", "model_only"])
def test_a_model_and_a_run_load_the_same_policy(store, actions, uri):
    policy = load_policy(uri if ":" in uri else f"runs:/{store[uri]}")
    assert (policy.act(OBSERVATIONS) == actions).all()
    assert policy.info["trial"] == 7


@pytest.mark.parametrize(
    ("uri", "allowed"),
    [
        ("models:/cartpole-pp@champion", "'cartpole-ppo'"),
        ("models:/cartpole-ppo@chmpion", "alias"),
        ("models:/cartpole-ppo/12", "alias"),
        ("empty", "a trial"),
        ("runs:/0123456789abcdef0123456789abcdef", "a trial"),
    ],
)
def test_a_missing_model_or_run_is_refused_in_three_parts(store, uri, allowed):
    with pytest.raises(PolicyError) as caught:
        load_policy(uri if ":" in uri else f"runs:/{store[uri]}")
    assert allowed in caught.value.allowed
    assert caught.value.fix


def test_looking_for_a_model_makes_no_new_store(store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    try:
        with pytest.raises(PolicyError, match="models:/cartpole-ppo@champion"):
            load_policy("models:/cartpole-ppo@champion")
    finally:
        mlflow.set_tracking_uri(store["uri"])
    assert not list(tmp_path.iterdir())


def test_a_trusted_model_leads_to_its_runs_checkpoint(store):
    source = Source("models:/cartpole-ppo@champion")
    with locate_policy(source, "algorithm") as folder:
        assert (folder / "rllib_checkpoint.json").is_file()


@pytest.mark.parametrize("uri", ["models:/cartpole-ppo@champion", "models:/cartpole-ppo/1", "run"])
def test_files_are_kept_with_the_run_that_a_policy_came_from(store, uri, tmp_path):
    (tmp_path / "best.mp4").write_text("film")
    source = Source(uri if ":" in uri else f"runs:/{store[uri]}")
    assert keep_with_run(source, tmp_path, "videos/here") == store["run"]
    assert "videos/here/best.mp4" in [file.path for file in MlflowClient().list_artifacts(store["run"], "videos/here")]


def test_a_policy_without_a_run_keeps_nothing_and_makes_no_store(store, tmp_path, monkeypatch):
    assert keep_with_run(Source(str(tmp_path)), tmp_path, "videos") is None
    assert keep_with_run(Source("runs:/0123456789abcdef0123456789abcdef"), tmp_path, "videos") is None
    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")  # the fixture puts its own back
    assert keep_with_run(Source(f"runs:/{store['run']}"), tmp_path, "videos") is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.fast
def test_an_error_without_words_is_told_by_its_name(tmp_path, monkeypatch):
    def fail(**arguments):
        raise FileNotFoundError

    monkeypatch.setattr(mlflow_artifacts, "_has_store", lambda: True)
    monkeypatch.setattr(mlflow_artifacts, "_find_artifact", lambda uri, part: uri)
    monkeypatch.setattr("mlflow.artifacts.download_artifacts", fail)
    with pytest.raises(PolicyError, match="policy=runs:/1: FileNotFoundError"):
        mlflow_artifacts.download_part(Source("runs:/1"), "policy", str(tmp_path))


@pytest.mark.slow
def test_mlflow_is_imported_with_its_telemetry_off():
    ask = """
import importlib, os, sys
import rltune.policies.mlflow_artifacts as module

print(os.environ["MLFLOW_DISABLE_TELEMETRY"], "mlflow" in sys.modules)
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "false"
importlib.reload(module)
print(os.environ["MLFLOW_DISABLE_TELEMETRY"], "mlflow" in sys.modules)
"""
    environment = {name: value for name, value in os.environ.items() if name != "MLFLOW_DISABLE_TELEMETRY"}
    done = subprocess.run([sys.executable, "-c", ask], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["true", "False", "false", "False"]
