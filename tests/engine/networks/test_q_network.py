"""The fastest network for a module of DQN's computes what the module computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rltune.engine.networks.q_network import AutogradValues, CompiledValues, make_action_values
from tests.engine.dqn_learner import ACTIONS, INPUTS, make_config, make_learner

NEVER = np.ones(50)


@pytest.mark.parametrize("target", [False, True])
@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize(("model", "kind"), [({}, CompiledValues), ({"fcnet_use_layernorm": True}, AutogradValues)])
def test_greedy_actions_equal_the_modules(model: dict[str, Any], kind: type, dueling: bool, target: bool) -> None:
    module = make_learner(make_config(model, dueling=dueling)).module["default_policy"].unwrapped()
    network = make_action_values(module, target=target)
    assert type(network) is kind
    obs = torch.randn(50, INPUTS)
    with torch.no_grad():
        compute = module.forward_target if target else module.compute_q_values
        wanted = compute({"obs": obs})["qf_preds"].argmax(1).tolist()
        assert network.choose(obs.numpy(), NEVER, 0.0).tolist() == wanted
        assert [network.choose(row, NEVER[:1], 0.0).item() for row in obs.numpy()[:, None]] == wanted


def test_draws_below_epsilon_become_actions_of_equal_chance() -> None:
    module = make_learner(make_config({})).module["default_policy"].unwrapped()
    rng, rows = np.random.default_rng(0), 30_000
    obs, draws = np.zeros((rows, INPUTS), np.float32), rng.random(rows)
    for network in (make_action_values(module), make_action_values(module, compiled=False)):
        with torch.no_grad():
            greedy = network.choose(obs, draws, 0.0)
            chosen = network.choose(obs, draws, 0.3)
        assert (chosen[draws >= 0.3] == greedy[draws >= 0.3]).all()
        counts = np.bincount(chosen[draws < 0.3], minlength=ACTIONS)
        np.testing.assert_allclose(counts / counts.sum(), 1 / ACTIONS, atol=0.02)
