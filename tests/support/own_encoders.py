"""Bundles of untrained networks with an extractor of `tests.support.own_nets`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.ppo import PPOConfig

from rltune.algorithms.encoders import use_extractor
from rltune.envs.observations import make_layout
from rltune.policies.bundle_writer import write_bundle
from rltune.policies.extractors import ExtractorSpec

NETS = "tests.support.own_nets"
VECTOR = spaces.Box(-1, 1, (4,), np.float32)
KWARGS = {"Attention": {"heads": 4, "dropout": 0.5}}


def write_untrained(folder: Path, algo: str = "ppo", name: str = "Attention", **model: Any) -> Any:
    """Write the bundle of an untrained module, and return RLlib's module."""
    config: Any = {"ppo": PPOConfig, "dqn": DQNConfig}[algo]()
    config.rl_module(model_config={"fcnet_hiddens": [16], **model})
    use_extractor(config, ExtractorSpec(f"{NETS}:{name}", KWARGS.get(name, {})), VECTOR, make_layout(VECTOR))
    built = config.get_multi_rl_module_spec(spaces={"default_policy": (VECTOR, spaces.Discrete(3))}).build()
    write_bundle(built["default_policy"], folder, info={"algo": algo}, layout=make_layout(VECTOR))
    return built["default_policy"]
