"""Every algorithm of conf/ in an environment that it can act in: built from the files, trained for two reports."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest
from builds import make_build
from omegaconf import OmegaConf
from plans import preflight
from ray.rllib.algorithms.dqn.dqn import calculate_rr_weights

from rltune.algorithms.arguments import values_of
from rltune.algorithms.build import build_config
from rltune.compose.composing import conf_dir
from rltune.config.capabilities import TABLE, capabilities_of
from rltune.driver.plan import make_plan
from rltune.engine import find_static_obstacle
from rltune.envs.spec import EnvSpec
from rltune.errors import ConfigError
from rltune.policies.evaluation import evaluate
from rltune.policies.policy import load_playable, load_policy
from rltune.policies.rllib_policy import RLlibPolicy, leave_reason
from rltune.policies.uri import Source
from rltune.search.space import parse_space
from rltune.trial.algorithm_runner import AlgorithmRunner
from rltune.trial.metrics import read_result

CONF = conf_dir()
ALGOS = sorted(path.stem for path in (CONF / "algo").glob("*.yaml"))
TUNED = sorted(path.stem for path in (CONF / "tuned").glob("*.yaml"))
ROWS = {row.name: row for row in TABLE.values()}
OFFLINE = tuple(name for name, row in ROWS.items() if row.offline)
CONTINUOUS = tuple(name for name, row in ROWS.items() if row.actions == "continuous")
SHORT = "algo.reporting.min_sample_timesteps_per_iteration=20"  # stock RLlib updates after each of them
SMALL = {  # enough for two updates of each
    "ppo": [
        "algo.training.train_batch_size_per_learner=64",
        "algo.training.minibatch_size=64",
        "algo.normalise=[observations]",
        "~space",
    ],
    "sac": [
        "algo.rl_module.model_config.fcnet_hiddens=[16]",
        "algo.training.num_steps_sampled_before_learning_starts=150",
    ],
    "tqc": [
        "algo.training.num_steps_sampled_before_learning_starts=15",
        "algo.training.train_batch_size_per_learner=8",
        SHORT,
    ],
    "dqn": ["algo.training.num_steps_sampled_before_learning_starts=195"],
    "rainbow": ["algo.training.num_steps_sampled_before_learning_starts=15", SHORT],
    "impala": ["algo.training.train_batch_size_per_learner=64", "algo.env_runners.rollout_fragment_length=8"],
    "dreamerv3": [
        "algo.training.model_size=nano",
        "algo.training.batch_size_B=2",
        "algo.training.batch_length_T=8",
        "algo.training.horizon_H=3",
        "algo.training.training_ratio=16",
        "~space",
    ],
}
FEW = ["algo.offline_data.dataset_num_iters_per_learner=2", "algo.training.train_batch_size_per_learner=16", "~space"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A dataset of each kind of action, by a policy that chooses at random."""
    import gymnasium

    from rltune.algorithms.datasets import record_episodes

    class Drawn:
        def __init__(self, env_id):
            self.id, self.info, self.spaces = env_id, {"env": {"id": env_id}}, {}

        def env(self):
            env = gymnasium.make(self.id)
            env.action_space.seed(0)
            self.draw = env.action_space.sample
            return env

        def predict(self, *_, **__):
            return np.asarray(self.draw()), None

    folder = tmp_path_factory.mktemp("data")
    for env_id in ("CartPole-v1", "Pendulum-v1"):
        record_episodes(Drawn(env_id), folder / f"{env_id}.parquet", episodes=2, seed=0, deterministic=False)
    return folder


RARE = ("appo", "cql", "iql", "marwil", "rainbow")  # Another one of the same kind is trained in each run of the tests.


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.nightly] if name in RARE else []) for name in ALGOS]
)
def test_every_algorithm_is_built_from_its_files_and_trains(name, data, ray_cluster, tmp_path, request_of):
    env, env_id = ("pendulum", "Pendulum-v1") if name in CONTINUOUS else ("cartpole", "CartPole-v1")
    more = [f"algo.offline_data.input_={data / env_id}.parquet", *FEW] if name in OFFLINE else []
    made = make_plan(request_of(f"algo={name}", f"env={env}", *SMALL.get(name, []), *more))
    preflight(made)
    runner = AlgorithmRunner(made.build, {}, seed=1, engine="fast", threads=1, scored_steps=1000)
    try:
        first, second = runner.train(), runner.train()
        for _ in range(4 if name == "appo" else 0):  # whose iterations do not all hold an update
            second = runner.train()
        third = read_result(runner.algorithm.train())
        runner.save(tmp_path, {"env": made.build.env.to_dict()})
    finally:
        runner.stop()
    assert 0 < first.env_steps < second.env_steps
    wanted = set(capabilities_of(type(runner.config)).statistics)
    off = {"curr_kl_coeff", "gradients_default_optimizer_global_norm"}  # where there is no such penalty and no clipping
    assert wanted - off <= set(second.learner) <= wanted
    assert set(third.learner) <= wanted, "the row leaves none out that is there"
    if name in OFFLINE:
        assert math.isfinite(second.return_mean), "it acts in the evaluation environment"
    source = Source(str(tmp_path), trust=True)
    policy = load_playable(source)
    assert isinstance(policy, RLlibPolicy) == (name == "dreamerv3"), (
        "its file says that its policies are not registered"
    )
    assert isinstance(policy, RLlibPolicy) == (capabilities_of(type(runner.config)).network is None)
    if name == "dreamerv3":
        assert evaluate(policy, 3, seed=7).returns == evaluate(load_playable(source), 3, seed=7).returns
        return
    obs, _ = policy.env().reset(seed=0)
    assert policy.action_space.contains(policy.act(obs))
    if name == "ppo":
        (tmp_path / "policy").rename(tmp_path / "bundle")
        leave_reason(tmp_path, "for want of a bundle", policy.info)
        one, other = (evaluate(playable, 2, seed=7).returns for playable in (policy, load_playable(source)))
        assert one == other, "by RLlib's parts it acts as from its bundle"


@pytest.mark.parametrize("name", TUNED)
def test_tuned_settings_are_the_first_trial_exactly_and_name_their_source(name):
    text = (CONF / "tuned" / f"{name}.yaml").read_text()
    package, source = text.splitlines()[:2]
    assert package == "# @package _global_"
    assert "rl_zoo3, hyperparams/" in source, "a comment names the source"
    algo_name, _, env = name.partition("_")
    assert (CONF / "env" / f"{env}.yaml").exists()
    tuned = OmegaConf.load(CONF / "tuned" / f"{name}.yaml")
    assert tuned.published.env_steps >= 20_000, "the steps that its source trains for"
    algo = OmegaConf.to_container(OmegaConf.merge(OmegaConf.load(CONF / "algo" / f"{algo_name}.yaml"), tuned.algo))
    raw, wider = OmegaConf.load(CONF / "space" / f"{algo_name}.yaml"), tuned.get("wider", {})
    assert {key: pair[0] for key, pair in wider.items()} == {key: raw[key] for key in wider}, "of the space as it is"
    searched = parse_space(OmegaConf.to_container(raw) | {key: list(pair[1]) for key, pair in wider.items()})
    for corner in searched.corners():
        assert corner.get("minibatch_size", 1) <= corner.get("train_batch_size_per_learner", 1024), "RLlib refuses it"
    first = values_of(algo, searched.names)
    assert set(searched.encode(first)) == {dimension.label for dimension in searched.dimensions}, "inside the space"
    preset = EnvSpec("Pendulum-v1" if algo_name in CONTINUOUS else "CartPole-v1")
    build = make_build(algo, preset, gpus=0.0)
    config = build_config(build, searched.decode(searched.encode(first)), seed=0)
    config.validate()
    assert find_static_obstacle(config) is None or not capabilities_of(type(config)).engine
    for key, value in tuned.algo.training.items():
        if key not in ("epsilon", "replay_buffer_config"):
            assert getattr(config, key) == pytest.approx(value), key


# Of the files alone, and of those with tuned settings as rl_zoo3 has them: gradient_steps / train_freq.
UPDATES_PER_STEP = {
    "dqn": 1 / 4, "rainbow": 1 / 5, "sac": 1.0, "tqc": 1.0,
    "dqn_acrobot": 4 / 4, "dqn_breakout": 1 / 4, "dqn_cartpole": 128 / 256, "dqn_lunarlander": 4 / 4,
    "dqn_mountaincar": 8 / 16, "dqn_pong": 1 / 4,
}  # fmt: skip
REPLAYING = [name for name in (*ALGOS, *TUNED) if name.partition("_")[0] in UPDATES_PER_STEP]


@pytest.mark.parametrize("name", REPLAYING)
def test_every_n_step_and_batch_gets_as_many_updates(name):
    """Else what a search says of n_step would be the replay ratio's doing."""
    algo_name, _, env = name.partition("_")
    space = OmegaConf.load(CONF / "space" / f"{algo_name}.yaml")
    files = [OmegaConf.load(CONF / "algo" / f"{algo_name}.yaml")]
    if env:
        files.append(OmegaConf.load(CONF / "tuned" / f"{name}.yaml").algo)
    algo = OmegaConf.to_container(OmegaConf.merge(*files))
    # An intensity is of transitions: who sets one, as tuned settings do, wants their number fixed, not the updates'.
    batches = [{}] if algo["training"]["training_intensity"] else [{"train_batch_size_per_learner": 32}, {}]
    ratios = set()
    for n_step in space.get("n_step", ["choice", algo["training"]["n_step"]])[1:]:
        for batch in batches:
            preset = EnvSpec("Pendulum-v1" if algo_name in CONTINUOUS else "CartPole-v1")
            config = build_config(make_build(algo, preset), {"n_step": n_step} | batch, seed=0)
            config.validate()
            rounds, updates = calculate_rr_weights(config)
            sampled = rounds * config.get_rollout_fragment_length() * config.num_envs_per_env_runner
            ratios.add(updates / sampled)
    assert ratios == {UPDATES_PER_STEP.get(name, 1.0)}


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.engine])
def test_the_engine_trains_what_its_algorithms_files_describe(name, request_of):
    """At both ends of the space, too."""
    env = "pendulum" if name in CONTINUOUS else "cartpole"
    assert preflight(make_plan(request_of(f"algo={name}", f"env={env}"))) == ()


def test_the_tuned_values_are_what_a_sweep_tries_first(request_of):
    made = make_plan(request_of("algo=ppo", "env=acrobot"))
    assert made.warm_starts[0]["train_batch_size_per_learner"] == 16 * 256
    assert made.warm_starts[0]["lambda_"] == 0.94
    assert made.warm_starts[0]["normalise"] == ["observations", "rewards"]


def test_tuned_values_are_the_published_ones():
    """Those that once differed from rl_zoo3's files without a word."""
    starts = "num_steps_sampled_before_learning_starts"
    published = {  # Of rl_zoo3 2.9.0.
        ("sac_swimmer", "gamma"): 0.999,
        ("dqn_acrobot", starts): 0,
        ("dqn_lunarlander", starts): 0,
        ("a2c_pendulum", "gamma"): 0.9,
    }
    ours = {(name, key): OmegaConf.load(CONF / "tuned" / f"{name}.yaml").algo.training[key] for name, key in published}
    assert ours == published


def test_at_least_thirty_pairs_have_tuned_settings():
    assert len(TUNED) >= 30


def test_every_algorithm_has_a_space_whose_first_comment_names_its_source():
    for name in ALGOS:
        assert (CONF / "space" / f"{name}.yaml").read_text().startswith("# What a"), name


def test_noisy_layers_are_refused_because_rllib_would_leave_them_out(request_of):
    with pytest.raises(ConfigError) as refused:
        make_plan(request_of("algo=rainbow", "+algo.training.noisy=true", "~space"))
    assert refused.value.key == "algo.training.noisy"


@pytest.mark.parametrize(
    ("overrides", "what"),
    [
        (("algo=sac", "env=cartpole"), "algo=sac cannot act in env.id=CartPole-v1"),
        (("algo=tqc", "env=cartpole"), "algo=tqc cannot act in env.id=CartPole-v1"),
        (("algo=dqn", "env=pendulum"), "algo=dqn cannot act in env.id=Pendulum-v1"),
        (("algo=rainbow", "env=pendulum"), "algo=rainbow cannot act in env.id=Pendulum-v1"),
    ],
)
def test_actions_that_an_algorithm_cannot_take_are_refused_before_any_trial(overrides, what, request_of):
    with pytest.raises(ConfigError) as refused:
        preflight(make_plan(request_of(*overrides)))
    assert refused.value.what.startswith(what)
    assert refused.value.fix


OWN = """
from ray.rllib.algorithms.ppo import PPO, PPOConfig

class CountingPPO(PPO):
    pass

class CountingConfig(PPOConfig):
    def __init__(self, algo_class=None):
        super().__init__(algo_class=algo_class or CountingPPO)
        self.patience = 0

    def training(self, *, patience=None, **kwargs):
        super().training(**kwargs)
        if patience is not None:
            self.patience = patience
        return self
"""


def test_an_algorithm_of_ones_own_is_taken_from_its_package(tmp_path, monkeypatch, request_of, ray_cluster):
    package = tmp_path / "package_of_ours"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "algorithms.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    own = ["algo.name=counting", "algo.class=package_of_ours.algorithms:CountingConfig", "+algo.training.patience=3"]
    made = make_plan(request_of("algo=ppo", *own, *SMALL["ppo"][:2], "~space"))
    preflight(made)
    runner = AlgorithmRunner(made.build, {}, seed=1, engine="fast", threads=1, scored_steps=1000)
    try:
        assert type(runner.algorithm).__name__ == "CountingPPO"
        assert runner.algorithm.config.patience == 3
        assert 0 < runner.train().env_steps < runner.train().env_steps
    finally:
        runner.stop()
        for name in [name for name in sys.modules if name.startswith("package_of_ours")]:
            sys.modules.pop(name)


@pytest.mark.parametrize("kind", ["fast", "rllib"])
def test_a_policy_of_normalised_observations_acts_as_in_its_trial(kind, tmp_path: Path, request_of, ray_cluster):
    import torch

    for env, tolerance in (("cartpole", 0.0), ("pendulum", 1e-6)):
        made = make_plan(request_of("algo=ppo", f"env={env}", *SMALL["ppo"], "algo.normalise=[observations]"))
        runner = AlgorithmRunner(made.build, {}, seed=1, engine=kind, threads=1, scored_steps=1000)
        folder = tmp_path / env
        folder.mkdir()
        try:
            for _ in range(3):
                runner.train()
            runner.save(folder, {"env": made.build.env.to_dict()})
            policy = load_policy(folder)
            space = policy.observation_space
            space.seed(0)
            raw = np.stack([space.sample() for _ in range(1000)])
            raw[:, ~space.bounded_below] = np.random.default_rng(0).normal(0, 3, (1000, (~space.bounded_below).sum()))
            runner_env = runner.algorithm.env_runner_group.local_env_runner
            if kind == "fast":
                seen = np.zeros(raw.shape, np.float32)
                runner_env.normaliser.apply(raw, seen)
            else:
                filter_ = runner_env._env_to_module.connectors[0]._filters[None]
                seen = np.stack([filter_(row, update=False) for row in raw]).astype(np.float32)
            with torch.no_grad():
                out = runner.algorithm.get_module().forward_inference({"obs": torch.from_numpy(seen)})
        finally:
            runner.stop()
        inputs = out["action_dist_inputs"].numpy()
        if env == "cartpole":
            assert np.array_equal(policy.act(raw), inputs.argmax(-1))
        else:
            expected = np.clip(2.0 * inputs[:, :1], -2.0, 2.0)
            assert np.abs(policy.act(raw) - expected).max() <= tolerance
