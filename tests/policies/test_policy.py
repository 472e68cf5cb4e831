import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import gymnasium
import mlflow
import numpy as np
import optuna
import pytest
from mlflow import MlflowClient
from mlflow.entities import LoggedModelOutput

from rltune.algorithms.restore import load_algorithm
from rltune.errors import PolicyError
from rltune.policies.bundle_reader import load_bundle
from rltune.policies.bundle_writer import write_bundle
from rltune.policies.evaluation import Evaluation, evaluate
from rltune.policies.mlflow_model import make_model_arguments
from rltune.policies.policy import load_playable, load_policy
from rltune.policies.uri import Source, locate_policy
from rltune.study.checkpoints import compute_digest

CARTPOLE = {"id": "CartPole-v1", "kwargs": {}, "wrappers": []}
OBSERVATIONS = np.random.default_rng(0).normal(size=(1000, 4)).astype(np.float32)


class Countdown(gymnasium.Env):
    """An episode's length is drawn from its seed, 1 to 50 steps; every step pays 1."""

    observation_space = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 1 + seed % 50
        return np.zeros(4, np.float32), {}

    def step(self, action):
        self.left -= 1
        return np.zeros(4, np.float32), 1.0, self.left == 0, False, {}


gymnasium.register("Countdown-v0", Countdown)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A real RLlib checkpoint with its bundle, of a briefly trained PPO on CartPole."""
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    import ray
    from ray.rllib.algorithms.ppo import PPOConfig

    folder = tmp_path_factory.mktemp("checkpoint")
    config = PPOConfig().environment("CartPole-v1").env_runners(num_env_runners=0, num_envs_per_env_runner=8)
    config.training(train_batch_size_per_learner=512, minibatch_size=128, num_epochs=2, lr=1e-3)
    ours = not ray.is_initialized()
    algorithm = config.rl_module(model_config={"fcnet_hiddens": [32, 32]}).build_algo()
    algorithm.train()
    algorithm.save_to_path(folder / "algorithm")
    info = {"algo": "ppo", "env": CARTPOLE, "trial": 7, "params": {"lr": 1e-3}, "env_steps": 512}
    write_bundle(algorithm.get_module(), folder / "policy", info=info)
    (folder / "state.json").write_text("{}")
    algorithm.stop()
    yield folder
    if ours:
        ray.shutdown()


@pytest.fixture(scope="module")
def actions(checkpoint):
    return load_bundle(checkpoint / "policy").act(OBSERVATIONS)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory, checkpoint):
    """Two sweeps' folders: one finished, an older one interrupted before it had a winner."""
    root = tmp_path_factory.mktemp("outputs")
    for name in ("cartpole-stopped", "cartpole-done"):
        sweep = root / name
        study = _study(sweep)
        for objective in (None, 150.0, 90.0, 170.0):
            trial = study.ask()
            if objective is not None:
                path = f"trials/{trial.number}/best-000000002048"
                shutil.copytree(checkpoint, sweep / path)
                _relabel(sweep / path / "policy", trial.number)
                record = {
                    "path": path,
                    "env_steps": 2048,
                    "objective": objective,
                    "digest": compute_digest(sweep / path),
                }
                trial.set_user_attr("checkpoint", record)
                trial.report(objective, 2048)
            if trial.number == 3:
                study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            else:
                study.tell(trial, objective or 0.0)
    winner = {"trial": 2, "params": {}, "objective": 90.0, "checkpoint": "trials/2/best-000000002048"}
    (sweep / "summary.json").write_text(json.dumps({"winner": winner}))
    os.utime(root / "cartpole-stopped" / "config.yaml", (1, 1))
    return root


def _study(sweep: Path) -> optuna.Study:
    sweep.mkdir()
    (sweep / "config.yaml").write_text("study: {storage: null}\n")
    return optuna.create_study(storage=f"sqlite:///{sweep}/study.db", study_name=sweep.name, direction="maximize")


def _relabel(folder: Path, number: int) -> None:
    spec = json.loads((folder / "policy.json").read_text())
    spec["info"]["trial"] = number
    (folder / "policy.json").write_text(json.dumps(spec))


@pytest.fixture(scope="module")
def store(tmp_path_factory, checkpoint):
    """A real MLflow store: a run with the checkpoint, a model registered from it, and a run with nothing."""
    folder = tmp_path_factory.mktemp("mlflow")
    before = mlflow.get_tracking_uri()
    uri = f"sqlite:///{folder}/mlflow.db"
    mlflow.set_tracking_uri(uri)
    experiment = mlflow.create_experiment("cartpole", artifact_location=str(folder / "artifacts"))
    with mlflow.start_run(experiment_id=experiment) as run:
        mlflow.log_artifacts(str(checkpoint), "checkpoint")
        arguments = make_model_arguments(checkpoint / "policy")
        model = mlflow.pyfunc.log_model(name="policy", registered_model_name="cartpole-ppo", **arguments)
    MlflowClient().set_registered_model_alias("cartpole-ppo", "champion", 1)
    with mlflow.start_run(experiment_id=experiment) as other:
        MlflowClient().log_outputs(other.info.run_id, [LoggedModelOutput(model.model_id, 0)])
    with mlflow.start_run(experiment_id=experiment) as empty:
        pass
    yield {
        "run": run.info.run_id,
        "model_only": other.info.run_id,
        "empty": empty.info.run_id,
        "model": model,
        "uri": uri,
    }
    mlflow.set_tracking_uri(before)


@pytest.mark.parametrize("part", ["", "policy"])
def test_a_checkpoint_folder_and_its_bundle_load_the_same_policy(checkpoint, actions, part):
    policy = load_policy(checkpoint / part)
    assert (policy.act(OBSERVATIONS) == actions).all()
    assert policy.info["params"] == {"lr": 1e-3}


def test_a_damaged_summary_is_named(outputs, tmp_path):
    shutil.copytree(outputs / "cartpole-done", tmp_path / "torn")
    (tmp_path / "torn" / "summary.json").write_text('{"winner": {"tri')
    with pytest.raises(PolicyError, match=r"summary\.json is damaged"):
        load_policy("sweep:torn", output_dir=tmp_path)


def test_loading_takes_less_than_a_second_and_imports_neither_ray_nor_mlflow(checkpoint):
    code = f"""
import sys, time
sys.modules["ray"] = sys.modules["mlflow"] = None
from rltune.policies.policy import load_policy
began = time.perf_counter()
policy = load_policy({str(checkpoint)!r})
env = policy.env()
action = policy.act(env.reset(seed=0)[0])
print(time.perf_counter() - began, env.action_space.contains(action))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    seconds, allowed = done.stdout.split()
    assert float(seconds) < 1
    assert allowed == "True"


@pytest.mark.parametrize(
    ("uri", "trial"),
    [
        ("sweep:cartpole-done", 2),
        ("sweep:latest", 2),
        ("sweep:cartpole-done/1", 1),
        ("sweep:cartpole-stopped", 1),  # the best that ran to its end, not the pruned one above it
        ("sweep:cartpole-stopped/3", 3),
    ],
)
def test_a_sweep_address_finds_winner_and_trial(outputs, actions, uri, trial):
    policy = load_policy(uri, output_dir=outputs)
    assert policy.info["trial"] == trial
    assert (policy.act(OBSERVATIONS) == actions).all()


@pytest.mark.parametrize("uri", ["models:/cartpole-ppo@champion", "models:/cartpole-ppo/1", "run", "model_only"])
def test_a_model_and_a_run_load_the_same_policy(store, actions, uri):
    policy = load_policy(uri if ":" in uri else f"runs:/{store[uri]}")
    assert (policy.act(OBSERVATIONS) == actions).all()
    assert policy.info["trial"] == 7


def test_a_registered_model_acts_alike_where_neither_ray_nor_rltune_is_installed(store, actions, tmp_path):
    np.save(tmp_path / "obs.npy", OBSERVATIONS)
    code = f"""
import sys
for name in ("ray", "rltune", "gymnasium", "optuna"):
    sys.modules[name] = None
import mlflow, numpy as np
mlflow.set_tracking_uri({store["uri"]!r})
model = mlflow.pyfunc.load_model("models:/cartpole-ppo@champion")
obs = np.load({str(tmp_path / "obs.npy")!r})
import pandas as pd
forms = [obs, obs.astype(float), obs.tolist(), {{"obs": obs}}, pd.DataFrame(obs)]
answers = [model.predict(form) for form in forms]
assert all((answer == answers[0]).all() for answer in answers)
assert model.predict(obs[0]).shape == (1,)
np.save({str(tmp_path / "actions.npy")!r}, answers[0])
"""
    settings = os.environ | {"MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false", "PYTHONPATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=settings, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert (np.load(tmp_path / "actions.npy") == actions).all()


def test_a_registered_model_carries_signature_example_origin_and_exact_requirements(store):
    info = mlflow.models.get_model_info(store["model"].model_uri)
    assert info.signature.outputs.inputs[0].shape == (-1,)
    assert info.metadata["rltune"]["info"]["env"]["id"] == "CartPole-v1"
    folder = Path(mlflow.artifacts.download_artifacts(store["model"].model_uri))
    assert json.loads((folder / "input_example.json").read_text())
    requirements = (folder / "requirements.txt").read_text().split()
    assert sorted(line.split("==")[0] for line in requirements) == ["mlflow", "numpy", "torch"]
    assert "+" not in "".join(requirements)
    assert not [path for path in folder.rglob("*") if path.suffix in (".pkl", ".pickle", ".pt")]


REFUSED = [
    ("sweep:cartpole-dne", "no such sweep", "did you mean 'cartpole-done'"),
    ("sweep:cartpole-done/0", "trial 0 (COMPLETE) has no checkpoint", "trials with a checkpoint: 1, 2, 3"),
    ("sweep:cartpole-done/99", "has 4 trials", "trials with a checkpoint"),
    ("sweep:cartpole-done/best", "'best' is no trial", "a number"),
    ("s3://bucket/policy", "unknown kind of address 's3:'", "models:/<name>@champion"),
    ("nowhere/at/all", "there is no folder", "sweep:<name or latest>"),
]


@pytest.mark.parametrize(("uri", "what", "allowed"), REFUSED)
def test_an_address_without_a_policy_is_refused_in_three_parts(outputs, uri, what, allowed):
    with pytest.raises(PolicyError) as caught:
        load_policy(uri, output_dir=outputs)
    assert what in caught.value.what
    assert allowed in caught.value.allowed
    assert caught.value.fix


@pytest.mark.parametrize(
    ("uri", "allowed"),
    [
        ("models:/cartpole-pp@champion", "did you mean 'cartpole-ppo'"),
        ("models:/cartpole-ppo@chmpion", "an alias or version"),
        ("models:/cartpole-ppo/12", "an alias or version"),
        ("empty", "a trial"),
        ("runs:/0123456789abcdef0123456789abcdef", "a trial"),
    ],
)
def test_a_model_or_run_that_is_not_there_is_refused_in_three_parts(store, uri, allowed):
    with pytest.raises(PolicyError) as caught:
        load_policy(uri if ":" in uri else f"runs:/{store[uri]}")
    assert allowed in caught.value.allowed
    assert caught.value.fix


def test_looking_for_a_model_makes_no_new_store(store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    try:
        with pytest.raises(PolicyError, match="no MLflow store"):
            load_policy("models:/cartpole-ppo@champion")
    finally:
        mlflow.set_tracking_uri(store["uri"])
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_changed_after_it_was_recorded_is_taken_only_with_trust(outputs, tmp_path):
    shutil.copytree(outputs / "cartpole-done", tmp_path / "changed")
    _relabel(tmp_path / "changed" / "trials" / "1" / "best-000000002048" / "policy", 1234)
    with pytest.raises(PolicyError, match="not those that the ledger recorded"):
        load_policy("sweep:changed/1", output_dir=tmp_path)
    assert load_policy("sweep:changed/1", output_dir=tmp_path, trust=True).info["trial"] == 1234


def test_a_network_without_a_bundle_says_why_and_what_else_works(tmp_path):
    (tmp_path / "policy-missing.txt").write_text("a bundle cannot express the layer TorchLSTMEncoder\n")
    with pytest.raises(PolicyError, match="TorchLSTMEncoder") as caught:
        load_policy(tmp_path)
    assert "load_algorithm" in caught.value.fix
    assert "sweeps.evaluate" in caught.value.fix
    with pytest.raises(PolicyError, match="TorchLSTMEncoder"):
        load_playable(tmp_path)  # RLlib's parts would run code
    with pytest.raises(PolicyError, match="no algorithm in"):
        load_playable(tmp_path, trust=True)


def test_a_damaged_bundle_is_refused_with_its_address(checkpoint, tmp_path):
    shutil.copytree(checkpoint / "policy", tmp_path / "policy")
    (tmp_path / "policy" / "weights.npz").write_bytes(b"PK\x03\x04 cut short")
    with pytest.raises(PolicyError, match=str(tmp_path)):
        load_policy(tmp_path)


def test_a_wrong_observation_names_the_right_shape(checkpoint):
    with pytest.raises(PolicyError, match=r"shape \(4,\)"):
        load_policy(checkpoint).act(np.zeros(5))


def test_the_environment_comes_with_its_arguments_and_wrappers(checkpoint, tmp_path):
    shutil.copytree(checkpoint / "policy", tmp_path / "policy")
    spec = json.loads((tmp_path / "policy" / "policy.json").read_text())
    wrapper = {"entry_point": "gymnasium.wrappers:TimeAwareObservation", "kwargs": {}}
    spec["info"]["env"] = {
        "id": "CartPole-v1",
        "kwargs": {"sutton_barto_reward": True},
        "wrappers": [wrapper],
    }
    (tmp_path / "policy" / "policy.json").write_text(json.dumps(spec))
    env = load_policy(tmp_path).env(render_mode="rgb_array")
    assert env.render_mode == "rgb_array"
    assert env.unwrapped._sutton_barto_reward
    assert env.observation_space.shape == (5,)


@pytest.mark.parametrize("episodes", [1, 7, 100])
def test_an_evaluation_counts_every_seeds_episode_once_however_long(checkpoint, episodes):
    done = []
    result = evaluate(checkpoint, episodes, seed=3, env="Countdown-v0", progress=lambda n, of: done.append((n, of)))
    expected = [1 + (3 + i) % 50 for i in range(episodes)]
    assert list(result.lengths) == expected
    assert list(result.returns) == expected
    assert done == [(i + 1, episodes) for i in range(episodes)]


def test_an_evaluation_is_the_same_as_playing_the_episodes_one_by_one(checkpoint):
    policy = load_policy(checkpoint)
    env, returns = policy.env(), []
    for i in range(5):
        obs, _ = env.reset(seed=11 + i)
        total, over = 0.0, False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(policy.act(obs))
            total, over = total + reward, terminated or truncated
        returns.append(total)
    assert list(evaluate(policy, 5, seed=11).returns) == returns


def test_the_same_seed_gives_the_same_evaluation_and_another_does_not(checkpoint):
    policy = load_policy(checkpoint)
    for deterministic in (True, False):
        first = evaluate(policy, 20, seed=1, deterministic=deterministic)
        assert evaluate(policy, 20, seed=1, deterministic=deterministic) == first
        assert evaluate(policy, 20, seed=2, deterministic=deterministic) != first


def test_a_hundred_episodes_take_a_few_seconds(checkpoint):
    began = time.perf_counter()
    result = evaluate(checkpoint, episodes=100)
    assert time.perf_counter() - began < 10
    assert len(result.returns) == 100
    assert result.min <= result.low <= result.mean <= result.high <= result.max
    assert json.loads(json.dumps(result.to_dict()))["mean"] == result.mean


def test_the_interval_covers_the_true_mean_about_as_often_as_it_says():
    from rltune.policies.evaluation import _summarise

    rng, hits = np.random.default_rng(0), 0
    for seed in range(60):
        result: Evaluation = _summarise(rng.normal(10, 3, 40), np.ones(40, int), seed)
        hits += result.low <= 10 <= result.high
    assert 51 <= hits <= 60


@pytest.mark.parametrize(
    ("arguments", "what"),
    [({"episodes": 0}, "episodes=0"), ({"env": "Pendulum-v1"}, r"Box\(3,\)")],
)
def test_an_evaluation_that_cannot_be_is_refused(checkpoint, arguments, what):
    with pytest.raises(PolicyError, match=what):
        evaluate(checkpoint, **arguments)


def test_an_algorithm_can_be_trained_on(checkpoint, outputs):
    algorithm = load_algorithm("sweep:cartpole-done/2", output_dir=outputs)
    try:
        # The first half was sampled before; a rollout may be a few steps longer than asked for.
        assert 2 * 512 <= algorithm.train()["num_env_steps_sampled_lifetime"] < 2 * 512 + 16
    finally:
        algorithm.stop()


def test_a_checkpoint_with_pickles_from_elsewhere_needs_trust(checkpoint, store, monkeypatch):
    with pytest.raises(PolicyError, match="trust=True"):
        load_algorithm("models:/cartpole-ppo@champion")
    monkeypatch.setattr(os, "getuid", lambda: 54321)  # as if the files were somebody else's
    with pytest.raises(PolicyError, match="belongs to another user"):
        load_algorithm(checkpoint)


def test_a_trusted_model_leads_to_its_runs_checkpoint(store):
    source = Source("models:/cartpole-ppo@champion", Path())
    with locate_policy(source, "algorithm") as folder:
        assert (folder / "rllib_checkpoint.json").is_file()
