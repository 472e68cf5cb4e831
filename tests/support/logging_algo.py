"""A subclass of an algorithm's config whose callbacks log numbers of their own."""

from __future__ import annotations

from typing import Any

from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.callbacks.callbacks import RLlibCallback


class SeesTraining(RLlibCallback):
    """Logs once an iteration, which the engine calls, too."""

    def on_train_result(self, *, algorithm: Any, metrics_logger: Any = None, result: Any, **others: Any) -> None:
        metrics_logger.log_value("iterations", 1.0, reduce="sum")
        result["written"] = 7


class SeesEpisodes(SeesTraining):
    """Logs at each episode's end, which stock RLlib alone has."""

    def on_episode_end(self, *, episode: Any, metrics_logger: Any = None, **others: Any) -> None:
        metrics_logger.log_value("goals", 2.0, window=20)
        metrics_logger.log_value(("nested", "deep"), 4.0)
        metrics_logger.log_value("words", "none", reduce="item_series")


class TrainingConfig(PPOConfig):
    """PPO with the callbacks that the engine calls."""

    def __init__(self, algo_class: Any = None) -> None:
        super().__init__(algo_class)
        self.callbacks(SeesTraining)


class EpisodesConfig(PPOConfig):
    """PPO with callbacks that see episodes."""

    def __init__(self, algo_class: Any = None) -> None:
        super().__init__(algo_class)
        self.callbacks(SeesEpisodes)
