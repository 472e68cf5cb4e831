"""PPO's policy begins with actions that are about equally likely."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest
import torch
from ray.rllib.algorithms.ppo import PPOConfig

from rltune.algorithms.a2c import A2CConfig
from rltune.algorithms.build import build_config
from rltune.algorithms.ppo import begin_with_small_policy
from rltune.driver.plan import make_plan
from rltune.engine.features import find_unserved_setting
from rltune.errors import ConfigError


def build_module(config: Any, env_id: str) -> Any:
    env = gymnasium.make(env_id)
    spaces = {"default_policy": (env.observation_space, env.action_space)}
    spec = config.environment(env_id).get_multi_rl_module_spec(spaces=spaces, inference_only=False)
    return spec.build()["default_policy"]


def read_last_layer(module: Any) -> torch.Tensor:
    """The products of the rows of the policy's last layer."""
    last = [layer for layer in module.pi.modules() if isinstance(layer, torch.nn.Linear)][-1]
    assert not last.bias.any()
    return last.weight.detach() @ last.weight.detach().T


@pytest.mark.parametrize("make", [PPOConfig, A2CConfig])
@pytest.mark.parametrize(("env_id", "is_free"), [("CartPole-v1", False), ("Pendulum-v1", True), ("Pendulum-v1", False)])
def test_the_policys_last_layer_is_orthogonal_and_small(make: Any, env_id: str, is_free: bool) -> None:
    model = {"fcnet_hiddens": [16, 16], "head_fcnet_hiddens": [8], "vf_share_layers": False, "free_log_std": is_free}
    module = build_module(begin_with_small_policy(make()).rl_module(model_config=model), env_id)
    products = read_last_layer(module)
    torch.testing.assert_close(products, 1e-4 * torch.eye(len(products)), rtol=1e-4, atol=1e-9)
    others = [
        layer for layer in (*module.encoder.modules(), *module.vf.modules()) if isinstance(layer, torch.nn.Linear)
    ]
    assert all(layer.bias.any() and layer.weight.std() > 0.05 for layer in others), "the other layers are torch's"


@pytest.mark.parametrize("algo", ["ppo", "a2c"])
def test_a_sweeps_policies_begin_small_unless_it_says_otherwise(algo: str, request_of: Any) -> None:
    def find_largest(*typed: str, **params: Any) -> float:
        made = make_plan(request_of(f"algo={algo}", "env=cartpole", "~tuned", *typed))
        config = build_config(made.build, params, 0)
        assert find_unserved_setting(config) is None
        obs = {"obs": torch.randn(64, 4)}
        return float(build_module(config, "CartPole-v1").forward_inference(obs)["action_dist_inputs"].abs().max())

    assert find_largest() < 0.03
    assert find_largest("algo.rl_module.small_policy_init=false") > 0.05
    assert find_largest(small_policy_init=False) > 0.05


def test_other_algorithms_have_no_such_setting(request_of: Any) -> None:
    made = make_plan(request_of("algo=dqn", "env=cartpole", "~tuned", "+algo.rl_module.small_policy_init=true"))
    with pytest.raises(ConfigError, match="small_policy_init"):
        build_config(made.build, {}, 0)
