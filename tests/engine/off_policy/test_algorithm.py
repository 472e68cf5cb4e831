"""What DQN and SAC share: the loop around replay memory and targets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rltune.engine import build_algorithm
from rltune.engine.features import UnsupportedError
from rltune.engine.networks.flat_parameters import FlatParameters
from rltune.engine.off_policy.algorithm import TargetNetworks
from rltune.engine.off_policy.dqn import FastDQN
from tests.engine.dqn_learner import make_config, make_learner
from tests.engine.engine_toy import CONFIGS, dqn_config

PRIORITISED = {"type": "PrioritizedEpisodeReplayBuffer", "capacity": 150, "alpha": 0.6, "beta": 0.4}


def weights(algorithm: Any) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in algorithm.learner_module.parameters()]).clone()


@pytest.mark.parametrize("how", ["RLlib's setting", "a folder"])
@pytest.mark.parametrize("buffer", [{}, {"replay_buffer_config": PRIORITISED}], ids=["uniform", "prioritised, full"])
def test_a_restored_replay_memory_gives_the_same_batches(buffer: dict[str, Any], how: str, tmp_path: Path) -> None:
    config = dqn_config(store_buffer_in_checkpoints=how == "RLlib's setting", **buffer)
    source, target = build_algorithm(config), build_algorithm(config)
    source.train()
    target.restore_from_path(source.save_to_path(tmp_path / "state"))
    if how == "a folder":
        (tmp_path / "replay").mkdir()
        source.save_replay(tmp_path / "replay")
        assert target.load_replay(tmp_path / "replay")
        written = sum(path.stat().st_size for path in (tmp_path / "replay").iterdir())
        assert source.replay.num_bytes <= written < source.replay.num_bytes + 1000, "only filled rows"
    fresh = np.full((7, source.replay.rows.shape[1]), 0.5, np.float32)
    for _ in range(5):
        np.testing.assert_array_equal(target.replay.sample(), source.replay.sample())
        np.testing.assert_array_equal(target.replay.weights, source.replay.weights)
        for algorithm in (source, target):
            algorithm.replay.prioritise(np.linspace(0.1, 3.0, 16))
            algorithm.replay.extend(fresh)
    source.stop(), target.stop()


@pytest.mark.parametrize("name", ["DQN", "SAC"])
def test_without_its_memory_a_restored_trial_learns_no_sooner_than_a_new_one(name: str, tmp_path: Path) -> None:
    """Otherwise its first batches would hold the same few rows many times."""
    start = 150
    config = CONFIGS[name](num_steps_sampled_before_learning_starts=start)
    config.reporting(min_sample_timesteps_per_iteration=0)
    source, target = build_algorithm(config), build_algorithm(config)
    while source.counters["num_env_steps_sampled_lifetime"] < 400:
        source.train()
    target.restore_from_path(source.save_to_path(tmp_path))
    kept, learned_at = weights(target), None
    assert torch.equal(kept, weights(source))
    while learned_at is None:
        steps = target.train()["num_env_steps_sampled_lifetime"]
        learned_at = None if torch.equal(weights(target), kept) else steps
    assert start <= learned_at - 400 < start + 8
    source.stop(), target.stop()


def test_a_memory_of_other_returns_is_left_out(tmp_path: Path) -> None:
    """Its rows hold n rewards, discounted: a trial that goes on with another gamma cannot learn from them."""
    source, target = build_algorithm(dqn_config()), build_algorithm(dqn_config(gamma=0.9))
    source.train()
    source.save_replay(tmp_path)
    assert not target.load_replay(tmp_path)
    assert target.replay.size == 0
    source.stop(), target.stop()


@pytest.mark.parametrize("tau", [1.0, 0.25])
def test_targets_move_by_tau_towards_their_own_network(tau: float) -> None:
    module = make_learner(make_config({})).module["default_policy"].unwrapped()
    params = [param for main, _ in module.get_target_network_pairs() for param in main.parameters()]
    # In another order than the module's: the optimizer's is not promised to be the same.
    targets = TargetNetworks(module, [FlatParameters(list(reversed(params)))])
    pairs = [pair for main, target in module.get_target_network_pairs() for pair in zip(
        main.parameters(), target.parameters(), strict=True
    )]  # fmt: skip
    expected = [torch.lerp(target.detach(), online.detach(), tau) for online, target in pairs]
    with torch.no_grad():
        targets.update(tau)
    for (_, target), wanted in zip(pairs, expected, strict=True):
        torch.testing.assert_close(target.detach(), wanted)


def test_a_replay_buffer_that_ours_does_not_stand_in_for_is_named() -> None:
    config = dqn_config(replay_buffer_config={"type": "MultiAgentReplayBuffer", "capacity": 100})
    with pytest.raises(UnsupportedError, match="MultiAgentReplayBuffer"):
        FastDQN(config=config)
