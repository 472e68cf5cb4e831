"""Which configurations may have networks with memory, before the first trial. Runs in the driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rltune.errors import ConfigError

if TYPE_CHECKING:
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

# And what derives from them: TQC, CQL, BC, IQL. Ray 2.60 cannot build or feed their networks with an LSTM.
WITHOUT_LSTM = {"SACConfig", "MARWILConfig", "DreamerV3Config"}


def check(config: AlgorithmConfig) -> None:
    """Refuse what RLlib would fail with in the first update, or pass over without a word (Ray 2.60).

    Raises:
        ConfigError: With what has memory, and what to type instead.
    """
    model: Mapping[str, Any] = config.model_config
    unable = WITHOUT_LSTM & {base.__name__ for base in type(config).__mro__}
    if model.get("use_lstm") and (unable or config.is_multi_agent):
        who = f"RLlib 2.60's {type(config).__name__} trains" if unable else "policies of several agents act with"
        raise ConfigError(
            f"algo.rl_module.model_config.use_lstm=true: {who} no LSTM",
            "use_lstm with ppo, a2c, appo, impala or dqn and one agent",
            "algo.rl_module.model_config.use_lstm=false, or algo=ppo",
        )
    for key in ("lstm_use_prev_action", "lstm_use_prev_reward"):
        if model.get(key):
            raise ConfigError(
                f"algo.rl_module.model_config.{key}=true: RLlib 2.60's new API stack reads it nowhere",
                f"{key}=false",
                f"~algo.rl_module.model_config.{key}",
            )
