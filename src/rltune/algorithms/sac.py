"""Train SAC with Q-networks whose input is the concatenated observation and action."""

from __future__ import annotations

from typing import Any

from ray.rllib.algorithms.sac import SACConfig
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from rltune.compat.sac_catalog import ConcatSACCatalog


def use_plain_critics(config: Any) -> Any:
    """Give a SACConfig Q-networks that concatenate observation and action, and return the config."""
    return config.rl_module(rl_module_spec=RLModuleSpec(catalog_class=ConcatSACCatalog))


class PlainSACConfig(SACConfig):
    """SAC's config with Q-networks as in the paper and most libraries, see `ConcatSACCatalog`."""

    def __init__(self, algo_class: type | None = None) -> None:
        super().__init__(algo_class=algo_class)
        use_plain_critics(self)
