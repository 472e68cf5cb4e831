"""What DQN and SAC share: the loop around replay memory and targets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from dqn_learner import make_config, make_learner
from engine_toy import dqn_config

from rltune.engine import build_algorithm
from rltune.engine.features import UnsupportedError
from rltune.engine.networks.flat_parameters import FlatParameters
from rltune.engine.off_policy.algorithm import TargetNetworks
from rltune.engine.off_policy.dqn import FastDQN


def test_stored_replay_memory_comes_back(tmp_path: Path) -> None:
    config = dqn_config(store_buffer_in_checkpoints=True)
    source, target = build_algorithm(config), build_algorithm(config)
    source.train()
    target.restore_from_path(source.save_to_path(tmp_path / "x"))
    np.testing.assert_array_equal(target.replay.rows[:200], source.replay.rows[:200])
    assert target.replay.size == source.replay.size
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
    with pytest.raises(UnsupportedError, match="the replay buffer MultiAgentReplayBuffer"):
        FastDQN(config=config)
