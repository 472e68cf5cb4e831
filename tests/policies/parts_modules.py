"""RLlib's PPO module with a head for each part of an action, and its bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from ray.rllib.algorithms.ppo.ppo_catalog import PPOCatalog
from ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module import DefaultPPOTorchRLModule
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

from rltune.envs.spaces import make_network_actions, read_actions
from rltune.policies.bundle_reader import BundlePolicy
from rltune.policies.bundle_writer import write_bundle

S = gymnasium.spaces
VECTOR = S.Box(-3, 3, (4,), np.float32)
PARTS: dict[str, Any] = {
    "choices": S.MultiDiscrete([3, 2, 5]),
    "choices from 1": S.MultiDiscrete([[3, 2], [2, 4]], start=[[1, -3], [0, 2]]),
    "buttons": S.MultiBinary((2, 3)),
    "whole numbers": S.Box(np.array([0, -200]), np.array([6, 300]), dtype=np.int32),
    "some bounds": S.Box(np.float32([-5, 0]), np.float32([5, np.inf])),
    "a dict": S.Dict(go=S.Discrete(3, start=2), at=S.Box(-1.0, 2.0, (2,)), on=S.MultiBinary(2)),
    "a tuple": S.Tuple((S.Box(0.0, np.inf, ()), S.Tuple((S.Discrete(2), S.Box(0, 255, (2,), np.uint8))))),
}


def write_parts(folder: Path, space: Any) -> tuple[Any, BundlePolicy]:
    """Write the bundle of an untrained policy whose outputs are far from zero; return its module and the policy."""
    torch.manual_seed(0)
    module: Any = DefaultPPOTorchRLModule(
        observation_space=VECTOR,
        action_space=make_network_actions(read_actions(space)),
        model_config=DefaultModelConfig(fcnet_hiddens=[16, 16]),
        catalog_class=PPOCatalog,
    )
    with torch.no_grad():
        for weights in module.parameters():
            weights.mul_(3.0)
    write_bundle(module, folder, info={"algo": "ppo", "env": {"id": "Parts-v0"}}, action_space=space)
    return module, BundlePolicy.load(folder)
