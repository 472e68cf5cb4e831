"""The fastest network for a module of DQN's computes what the module computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rltune.engine.networks.q_network import AutogradValues, MLPValues, make_action_values
from tests.engine.dqn_learner import INPUTS, make_config, make_learner


@pytest.mark.parametrize("target", [False, True])
@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize(("model", "kind"), [({}, MLPValues), ({"fcnet_use_layernorm": True}, AutogradValues)])
def test_values_and_greedy_actions_equal_the_modules(
    model: dict[str, Any], kind: type, dueling: bool, target: bool
) -> None:
    module = make_learner(make_config(model, dueling=dueling)).module["default_policy"].unwrapped()
    network = make_action_values(module, None, target=target)
    assert type(network) is kind
    obs = torch.randn(50, INPUTS)
    with torch.no_grad():
        compute = module.forward_target if target else module.compute_q_values
        wanted = compute({"obs": obs})["qf_preds"]
        torch.testing.assert_close(network.infer(obs), wanted, atol=1e-5, rtol=0)
        assert network.best(obs.numpy()).tolist() == wanted.argmax(1).tolist()
