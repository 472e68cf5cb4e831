"""The fastest network for a module of PPO's computes what the module computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ppo_learner import INPUTS, make_config, rllib_learner

from rltune.engine.networks.actor_critic import AutogradActorCritic, MLPActorCritic, make_actor_critic

MODELS: dict[str, tuple[dict[str, Any], type]] = {
    "separate": ({}, MLPActorCritic),
    "shared": ({"vf_share_layers": True}, MLPActorCritic),
    "free log std": ({"free_log_std": True}, MLPActorCritic),
    "layer norm": ({"fcnet_use_layernorm": True}, AutogradActorCritic),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("rows", [2, 3000])
def test_sampling_and_values_equal_the_modules(name: str, rows: int) -> None:
    """Few rows go through NumPy, many through torch."""
    model, expected = MODELS[name]
    module = rllib_learner(make_config("continuous", model)).module["default_policy"].unwrapped()
    network = make_actor_critic(module, None)
    assert type(network) is expected
    obs = torch.randn(rows, INPUTS)
    with torch.no_grad():
        wanted = module.forward_train({"obs": obs})["action_dist_inputs"]
        torch.testing.assert_close(torch.from_numpy(network.dist_inputs(obs.numpy())), wanted, atol=1e-5, rtol=0)
        torch.testing.assert_close(network.values(obs), module.compute_values({"obs": obs}), atol=1e-5, rtol=0)


def test_backward_needs_a_forward_where_autograd_does_it() -> None:
    module = rllib_learner(make_config("discrete", {"fcnet_use_layernorm": True})).module["default_policy"].unwrapped()
    with pytest.raises(RuntimeError, match="needs a forward"):
        make_actor_critic(module, None).backward(torch.zeros(1, 3), torch.zeros(1))
