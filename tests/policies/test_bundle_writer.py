"""A bundle acts as RLlib's module does, for each network that it can express."""

from __future__ import annotations

import json
import math
import time

import gymnasium
import numpy as np
import pytest
import torch
import tree
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.sac import SACConfig
from ray.rllib.algorithms.tqc import TQCConfig
from ray.rllib.connectors.env_to_module import FlattenObservations, MeanStdFilter

from rltune.checkpoints.store import compute_digest
from rltune.envs.actions import split_batch
from rltune.envs.spaces import read_actions
from rltune.policies.bundle_reader import BundlePolicy
from rltune.policies.bundle_writer import read_filter_stats, write_bundle
from tests.envs.test_actions import list_numbers
from tests.policies.parts_modules import PARTS, write_parts
from tests.policies.rllib_modules import (
    NUM_OBSERVATIONS,
    recurrent_runner,
    runner_actions,
    runner_of,
    some_observations,
)

STACK = {
    "ppo, categorical": (PPOConfig, "CartPole-v1", {}),
    "ppo, shared layers and SiLU": (
        PPOConfig,
        "Acrobot-v1",
        {"vf_share_layers": True, "fcnet_activation": "silu"},
    ),
    "ppo, gaussian": (PPOConfig, "Pendulum-v1", {}),
    "ppo, free log std, no hidden layer": (
        PPOConfig,
        "Pendulum-v1",
        {"free_log_std": True, "head_fcnet_hiddens": [16]},
    ),
    "dqn, dueling": (DQNConfig, "CartPole-v1", {}),
    "sac, discrete": (SACConfig, "CartPole-v1", {}),
}


@pytest.mark.parametrize("name", STACK)
def test_a_bundle_acts_as_rllib_does_without_exploration(name, tmp_path):
    kind, env, model = STACK[name]
    runner = runner_of(kind(), env, **model)
    write_bundle(runner.module, tmp_path, info={})
    observations = some_observations(runner.env.single_observation_space)
    theirs, policy = runner_actions(runner, observations), BundlePolicy.load(tmp_path)
    np.testing.assert_allclose(policy.act(observations), theirs, atol=1e-6)
    one_by_one = np.stack([policy.act(obs) for obs in observations])
    np.testing.assert_allclose(one_by_one, theirs, atol=1e-6)


RECURRENT = {
    "ppo, categorical": (PPOConfig, "CartPole-v1", {}),
    "ppo, shared layers, gaussian": (PPOConfig, "Pendulum-v1", {"vf_share_layers": True, "fcnet_activation": "relu"}),
    "dqn, dueling": (DQNConfig, "CartPole-v1", {}),
}


@pytest.mark.parametrize("name", RECURRENT)
def test_a_recurrent_bundle_acts_as_rllibs_module_over_sequences(name, tmp_path):
    kind, env, model = RECURRENT[name]
    runner = recurrent_runner(kind, env, **model)
    write_bundle(runner.module, tmp_path, info={})
    policy, space = BundlePolicy.load(tmp_path), runner.env.single_action_space
    steps = some_observations(runner.env.single_observation_space).reshape(20, NUM_OBSERVATIONS // 20, -1)
    repeated = {"obs": None, "state_in": runner.module.get_initial_state()}
    repeated["state_in"] = tree.map_structure(lambda part: torch.stack([part] * steps.shape[1]), repeated["state_in"])
    forgetful, differences = [], []
    policy.reset()
    for obs in steps:
        with torch.no_grad():
            out = runner.module.forward_inference({**repeated, "obs": torch.from_numpy(obs)[:, None]})
        repeated["state_in"] = out["state_out"]
        if "actions" in out:
            theirs = out["actions"][:, 0].numpy()
        elif hasattr(space, "n"):
            theirs = out["action_dist_inputs"][:, 0].argmax(-1).numpy()
        else:
            theirs = np.clip(space.high * out["action_dist_inputs"][:, 0, :1].numpy(), space.low, space.high)
        differences.append(np.abs(policy.act(obs) - theirs).max())
        forgetful.append(np.abs(policy.predict(obs)[0] - theirs).max())
    assert max(differences) <= (0 if hasattr(space, "n") else 1e-6)
    assert max(forgetful) > 1e-2, "its memory matters"


def test_a_recurrent_policy_repeats_rllibs_own_episodes(tmp_path):
    runner = recurrent_runner(PPOConfig, "CartPole-v1")
    episodes = runner.sample(num_timesteps=40, explore=False, random_actions=False)
    write_bundle(runner.module, tmp_path, info={})
    policy = BundlePolicy.load(tmp_path)
    assert policy.memory_size == 16
    for episode in episodes:
        policy.reset()
        rows = episode.get_observations()[: len(episode)]
        assert [policy.act(obs) for obs in rows] == list(episode.get_actions())


@pytest.mark.parametrize("kind", [SACConfig, TQCConfig])
def test_a_squashed_policy_acts_at_the_tanh_of_its_mean(kind, tmp_path):
    runner = runner_of(kind(), "Pendulum-v1")
    write_bundle(runner.module, tmp_path, info={})
    observations = some_observations(runner.env.single_observation_space)
    with torch.no_grad():
        inputs = runner.module.forward_inference({"obs": torch.from_numpy(observations)})["action_dist_inputs"]
    expected = 2.0 * np.tanh(inputs[:, :1].numpy())  # Pendulum's torque lies in [-2, 2]
    np.testing.assert_allclose(BundlePolicy.load(tmp_path).act(observations), expected, atol=1e-6)


@pytest.mark.parametrize(
    "training",
    [
        {"dueling": False},
        {"dueling": False, "num_atoms": 11, "v_min": 0.0, "v_max": 100.0},
        {"dueling": True, "num_atoms": 11, "v_min": 0.0, "v_max": 100.0},
    ],
    ids=["plain", "distributional", "distributional dueling"],
)
def test_every_kind_of_q_network_gives_rllibs_values_and_actions(training, tmp_path):
    runner = runner_of(DQNConfig().training(**training), "CartPole-v1")
    write_bundle(runner.module, tmp_path, info={})
    policy, observations = BundlePolicy.load(tmp_path), some_observations(runner.env.single_observation_space)
    with torch.no_grad():
        theirs = runner.module.compute_q_values({"obs": torch.from_numpy(observations)})["qf_preds"]
        ours = policy.network(torch.from_numpy(observations))
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-6)
    assert (policy.act(observations) == runner_actions(runner, observations)).all()


def test_a_discrete_observation_is_encoded_as_by_rllib(tmp_path):
    config = PPOConfig().env_runners(env_to_module_connector=lambda env, spaces, device: FlattenObservations())
    runner = runner_of(config, "FrozenLake-v1")
    space = runner.env.single_observation_space
    write_bundle(runner.module, tmp_path, info={}, observation_space=space)
    policy, observations = BundlePolicy.load(tmp_path), np.arange(16)
    assert (policy.act(observations) == runner_actions(runner, observations)).all()
    assert policy.act(3) == policy.act(observations)[3]
    assert policy.observation_space == space


def test_an_observation_filter_travels_with_the_policy(tmp_path):
    config = PPOConfig().env_runners(env_to_module_connector=lambda env, spaces, device: MeanStdFilter())
    runner = runner_of(config, "Pendulum-v1")
    observations = some_observations(runner.env.single_observation_space)
    runner_actions(runner, observations * 3 + 1)  # the filter learns
    write_bundle(runner.module, tmp_path / "a", info={}, observation_stats=read_filter_stats(runner._env_to_module))
    for piece in runner._env_to_module.connectors:
        piece._update_stats = False
    theirs = runner_actions(runner, observations)
    np.testing.assert_allclose(BundlePolicy.load(tmp_path / "a").act(observations), theirs, atol=1e-6)
    write_bundle(runner.module, tmp_path / "b", info={})
    assert np.abs(BundlePolicy.load(tmp_path / "b").act(observations) - theirs).max() > 1e-3


def test_actions_are_clipped_not_scaled_where_training_did_so(tmp_path):
    config = PPOConfig()
    config.normalize_actions, config.clip_actions = False, True
    runner = runner_of(config, "Pendulum-v1")
    with torch.no_grad():
        runner.module.pi.net.mlp[-1].weight *= 100  # mean actions beyond the bounds
    write_bundle(runner.module, tmp_path, info={}, actions="clip")
    observations = some_observations(runner.env.single_observation_space)
    actions = BundlePolicy.load(tmp_path).act(observations)
    np.testing.assert_allclose(actions, runner_actions(runner, observations), atol=1e-5)
    assert actions.min() == -2.0
    assert actions.max() == 2.0


def test_a_bundle_says_where_it_came_from_in_plain_json(cartpole):
    assert cartpole.policy.info == {"algo": "ppo", "params": {"lr": 1e-3}, "objective": None}
    text = json.loads((cartpole.folder / "policy.json").read_text())
    assert text["observation_space"]["low"][1] == "-inf"
    space = gymnasium.make("CartPole-v1").observation_space
    assert cartpole.policy.observation_space == space


def test_infinite_arguments_of_an_environment_are_kept(tmp_path):
    env = {"id": "CartPole-v1", "kwargs": {"most": math.inf, "bounds": [-math.inf, 1.0]}}
    runner = runner_of(PPOConfig(), "CartPole-v1")
    write_bundle(runner.module, tmp_path, info={"env": env, "objective": math.nan})
    assert BundlePolicy.load(tmp_path).info == {"env": env, "objective": None}


def test_a_bundle_is_small_and_quick_to_write_and_to_use(cartpole, tmp_path):
    assert sum(path.stat().st_size for path in cartpole.folder.iterdir()) < 20_000
    obs, spans = np.zeros(4, np.float32), {"write": [], "act": []}
    for i in range(30):
        began = time.perf_counter()
        write_bundle(cartpole.module, tmp_path / str(i), info={})
        spans["write"].append(time.perf_counter() - began)
        began = time.perf_counter()
        cartpole.policy.act(obs)
        spans["act"].append(time.perf_counter() - began)
    # the best of many: a shared machine's hiccups are not the subject
    assert min(spans["write"]) < 0.05
    assert min(spans["act"]) < 0.01


def test_a_network_that_cannot_be_expressed_names_its_layer(tmp_path):
    runner = runner_of(PPOConfig(), "CartPole-v1")
    runner.module.pi.net.mlp.append(torch.nn.Dropout())
    with pytest.raises(ValueError, match="Dropout"):
        write_bundle(runner.module, tmp_path / "a", info={})
    assert not (tmp_path / "a").exists()


def test_a_module_with_its_own_forward_pass_is_refused(cartpole, tmp_path):
    own = type("Doubled", (type(cartpole.module),), {"_forward": lambda self, batch, **kwargs: {}})
    module = own.__new__(own)
    module.__dict__ = cartpole.module.__dict__
    with pytest.raises(ValueError, match=r"Doubled .*_forward"):
        write_bundle(module, tmp_path, info={})


def test_the_same_network_gives_the_same_files(cartpole, tmp_path):
    for name in "ab":
        write_bundle(cartpole.module, tmp_path / name, info={"seed": 1})
    assert compute_digest(tmp_path / "a") == compute_digest(tmp_path / "b")


def test_numbers_behind_a_wrapper_are_scaled_in_each_mode(tmp_path):
    space = PARTS["some bounds"]
    module, policy = write_parts(tmp_path, space)
    write_bundle(module, tmp_path / "clipped", info={}, action_space=space, actions="clip")
    seen = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    np.testing.assert_array_equal(BundlePolicy.load(tmp_path / "clipped").act(seen), policy.act(seen))


@pytest.mark.parametrize("name", PARTS)
def test_parts_are_chosen_as_by_rllibs_distributions(name, tmp_path):
    space = PARTS[name]
    module, policy = write_parts(tmp_path, space)
    assert policy.action_space == space
    seen = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
    with torch.no_grad():
        inputs = module.forward_inference({"obs": torch.from_numpy(seen)})["action_dist_inputs"]
    best = module.get_inference_action_dist_cls().from_logits(inputs).to_deterministic().sample()
    best = np.concatenate([np.reshape(part, (200, -1)) for part in best], 1) if isinstance(best, tuple) else best
    actions = read_actions(space)
    for deterministic in (True, False):
        batch = split_batch(policy.act(seen, deterministic, rng=0), 200)
        for row, action in enumerate(batch):
            single = policy.act(seen[row], deterministic, rng=0)
            assert space.contains(action)
            assert space.contains(single)
            if deterministic:
                expected = list_numbers(actions.decode_one(np.asarray(best[row])))
                np.testing.assert_allclose(list_numbers(action), expected, rtol=1e-4, atol=1e-4)
                np.testing.assert_allclose(list_numbers(single), expected, rtol=1e-4, atol=1e-4)
