"""Hand-written critics against RLlib's modules and autograd."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ray.rllib.algorithms.sac import SACConfig

from rltune.algorithms.sac import use_plain_critics
from rltune.engine import build_algorithm
from rltune.engine.features import UnsupportedError
from rltune.engine.networks.critics import make_critic
from rltune.engine.networks.flat_parameters import FlatParameters
from tests.engine.sac_learner import INPUTS, make_config, make_learner


def make_module(**model: Any) -> Any:
    return make_learner(make_config(model, twin_q=False)).module["default_policy"].unwrapped()


def test_values_and_both_gradients_equal_autograds() -> None:
    module = make_module()
    params = [*module.qf_encoder.parameters(), *module.qf.parameters()]
    flat = FlatParameters(params)
    critic = make_critic(module.qf_encoder, module.qf, flat)
    obs, action, grad = torch.randn(9, INPUTS), torch.randn(9, 2, requires_grad=True), torch.randn(9, 1)
    wanted = module.compute_q_values({"obs": obs, "actions": action})
    wanted.backward(grad.squeeze(1))
    assert action.grad is not None
    with torch.no_grad():
        value = critic.forward(obs, action.detach())
        torch.testing.assert_close(value.squeeze(1), wanted, atol=1e-5, rtol=0)
        torch.testing.assert_close(critic.action_gradient(grad), action.grad, atol=1e-5, rtol=0)
        assert flat.grad.abs().sum() == 0, "the parameters' gradients stay as they are"
        rows = torch.tensor([0, 7])
        torch.testing.assert_close(critic.action_gradient(grad[rows], rows), action.grad[rows], atol=1e-5, rtol=0)
        critic.backward(grad)
    for view, param in zip(flat.grads, params, strict=True):
        assert param.grad is not None
        torch.testing.assert_close(view, param.grad, atol=1e-5, rtol=0)


def test_activations_that_nobody_wrote_by_hand_are_refused() -> None:
    module = make_module(fcnet_activation="swish")
    with pytest.raises(UnsupportedError):
        make_critic(module.qf_encoder, module.qf, None)


def test_rllibs_own_critics_and_discrete_actions_are_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SACConfig, "build_algo", lambda self: "stock")
    streams = SACConfig().environment("Pendulum-v1").env_runners(num_env_runners=0)
    discrete = use_plain_critics(SACConfig().environment("CartPole-v1").env_runners(num_env_runners=0))
    assert build_algorithm(streams) == "stock"
    assert build_algorithm(discrete) == "stock"
