"""PPO's networks begin as those of Stable-Baselines3 do."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest
import torch
from ray.rllib.algorithms.ppo import PPOConfig

from rltune.algorithms.a2c import A2CConfig
from rltune.algorithms.build import build_config
from rltune.algorithms.ppo import initialize_orthogonally
from rltune.driver.plan import make_plan
from rltune.errors import ConfigError

HIDDEN = 2.0  # the square of the gain


def build_module(config: Any, env_id: str) -> Any:
    env = gymnasium.make(env_id)
    spaces = {"default_policy": (env.observation_space, env.action_space)}
    spec = config.environment(env_id).get_multi_rl_module_spec(spaces=spaces, inference_only=False)
    return spec.build()["default_policy"]


def measure_gain(layer: Any) -> float:
    """The square of an orthogonal layer's gain; NaN where its rows or columns are not orthogonal, or a bias is left."""
    weight = layer.weight.detach().flatten(1)
    product = weight @ weight.T if weight.shape[0] <= weight.shape[1] else weight.T @ weight
    gain = float(product.diagonal().mean())
    is_orthogonal = torch.allclose(product, gain * torch.eye(len(product)), atol=1e-4) and not layer.bias.any()
    return gain if is_orthogonal else float("nan")


def measure_gains(net: Any) -> list[float]:
    return [measure_gain(layer) for layer in net.modules() if isinstance(layer, torch.nn.Linear)]


@pytest.mark.parametrize("make", [PPOConfig, A2CConfig])
@pytest.mark.parametrize(("env_id", "is_free"), [("CartPole-v1", False), ("Pendulum-v1", True), ("Pendulum-v1", False)])
def test_each_layer_has_its_gain(make: Any, env_id: str, is_free: bool) -> None:
    model = {"fcnet_hiddens": [16, 16], "head_fcnet_hiddens": [8], "vf_share_layers": False, "free_log_std": is_free}
    module = build_module(initialize_orthogonally(make()).rl_module(model_config=model), env_id)
    assert measure_gains(module.encoder) == pytest.approx([HIDDEN] * 4, abs=1e-3)
    assert measure_gains(module.pi) == pytest.approx([HIDDEN, 0.0001], rel=1e-3)
    assert measure_gains(module.vf) == pytest.approx([HIDDEN, 1.0], rel=1e-3)
    if is_free:
        assert not module.pi.log_std.any()


def test_an_initializer_of_the_settings_stays() -> None:
    model = {"fcnet_hiddens": [16], "fcnet_kernel_initializer": "zeros_", "vf_share_layers": False}
    module = build_module(initialize_orthogonally(PPOConfig()).rl_module(model_config=model), "CartPole-v1")
    assert not any(layer.weight.any() for layer in module.encoder.modules() if isinstance(layer, torch.nn.Linear))
    assert measure_gains(module.pi) == pytest.approx([0.0001], rel=1e-3)


@pytest.mark.parametrize("algo", ["ppo", "a2c"])
def test_a_sweeps_networks_begin_orthogonal_unless_it_says_otherwise(algo: str, request_of: Any) -> None:
    def read_gains(*typed: str, **params: Any) -> list[float]:
        made = make_plan(request_of(f"algo={algo}", "env=cartpole", "~tuned", *typed))
        return measure_gains(build_module(build_config(made.build, params, 0), "CartPole-v1").pi)

    assert read_gains() == pytest.approx([0.0001], rel=1e-3)
    assert read_gains("algo.rl_module.orthogonal_init=false") != pytest.approx([0.0001], rel=0.5)
    assert read_gains(orthogonal_init=False) != pytest.approx([0.0001], rel=0.5)


def test_other_algorithms_have_no_such_setting(request_of: Any) -> None:
    made = make_plan(request_of("algo=dqn", "env=cartpole", "~tuned", "+algo.rl_module.orthogonal_init=true"))
    with pytest.raises(ConfigError, match="orthogonal_init"):
        build_config(made.build, {}, 0)
