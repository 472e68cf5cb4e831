"""A checkpoint trains on, if its author may be trusted."""

from __future__ import annotations

import json

import pytest
from ray.tune.registry import ENV_CREATOR, _global_registry

import rltune
from rltune.algorithms.restore import load_algorithm, register_environment
from rltune.cli.python.sweep import Best
from rltune.envs.spec import EnvSpec
from rltune.errors import PolicyError
from rltune.policies.rllib_policy import INFO_FILE


def test_an_algorithm_can_be_trained_on(checkpoint, outputs):
    algorithm = load_algorithm("sweep:cartpole-done/2", output_dir=outputs)
    try:
        # The first half was sampled before; a rollout may be a few steps longer than asked for.
        assert 2 * 512 <= algorithm.train()["num_env_steps_sampled_lifetime"] < 2 * 512 + 16
    finally:
        algorithm.stop()


def test_the_best_checkpoint_opens_in_plain_rllib(outputs, ray_cluster):
    from ray.rllib.algorithms.algorithm import Algorithm

    best = rltune.open_sweep("cartpole-stopped", output_dir=outputs).best
    assert best.checkpoint == outputs / "cartpole-stopped" / "trials/1/first/best-000000002048/algorithm"
    algorithm = Algorithm.from_checkpoint(best.checkpoint)
    try:
        assert algorithm.train()["num_env_steps_sampled_lifetime"] >= 2 * 512
    finally:
        algorithm.stop()


def test_reading_the_best_checkpoint_names_its_environment(tmp_path):
    """To Ray in this process, so that plain RLlib finds the environment; looking at the winner does not."""
    spec = EnvSpec("Pendulum-v1", {"g": 3.0}, rewards={"normalise": True}, metrics={"place": "last"})
    name = "rltune:" + json.dumps(spec.to_dict(), sort_keys=True)
    (tmp_path / INFO_FILE).write_text(json.dumps({"env": spec.to_dict()}))
    best = Best("trial 0", 0, {}, None, algorithm=tmp_path / "algorithm")
    assert str(best)
    assert not _global_registry.contains(ENV_CREATOR, name)
    assert best.checkpoint == tmp_path / "algorithm"
    assert _global_registry.get(ENV_CREATOR, name).spec == spec


def test_a_checkpoint_with_pickles_from_elsewhere_needs_trust(checkpoint, store):
    with pytest.raises(PolicyError, match="trust=True"):
        load_algorithm("models:/cartpole-ppo@champion")
    with pytest.raises(PolicyError, match=str(checkpoint)):
        load_algorithm(checkpoint)


def test_both_environments_of_a_policy_are_registered(tmp_path):
    """RLlib's checkpoint names the one that the policy has learned in."""
    judged, learned_in = (EnvSpec("knobs:Knobs-v0", {"weight": weight}) for weight in (1.0, 100.0))
    about = {"env": judged.to_dict(), "train_env": learned_in.to_dict()}
    (tmp_path / INFO_FILE).write_text(json.dumps(about))
    register_environment(tmp_path / "algorithm")
    for spec in (judged, learned_in):
        name = "rltune:" + json.dumps(spec.to_dict(), sort_keys=True)
        assert _global_registry.get(ENV_CREATOR, name).spec == spec
