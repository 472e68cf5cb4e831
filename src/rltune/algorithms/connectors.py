"""Make the connectors that rltune adds to RLlib's connector pipelines.

Checkpoints pickle these classes by their module and name, so that neither may change.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from ray.rllib.connectors.env_to_module import MeanStdFilter
from ray.rllib.utils.filter import MeanStdFilter as RunningFilter
from ray.rllib.utils.filter import RunningStat

from rltune.algorithms.far_values import JUDGED_AFTER, FarValue, limit_far_values, limit_first_values
from rltune.compat.rllib_internals import is_learning


@dataclass(frozen=True)
class NormaliseObservations:
    """Make RLlib's running normaliser of some columns; the fast engine recognises this class and filters arrays itself.

    Attributes:
        begin: The first column of an observation that is normalised.
        end: The column after the last one; None for all columns from the first one on.
    """

    begin: int = 0
    end: int | None = None

    @property
    def columns(self) -> slice:
        """The columns that are normalised."""
        return slice(self.begin, self.end)

    def __call__(self, env: Any = None, spaces: Any = None, device: Any = None) -> VectorFilter:
        """Make the connector, as ``env_to_module_connector`` does."""
        return VectorFilter(columns=self.columns)


class VectorFilter(MeanStdFilter):
    """RLlib's running mean-std filter for some columns of a vector, whose statistics a far value does not blind.

    Args:
        columns: Those that are normalised; the others stay as they are.

    Attributes:
        far: The first far value since the filter was made.
    """

    def __init__(self, *, columns: slice = slice(None), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.columns = columns
        self.far: FarValue | None = None
        self._first: list[Any] = []

    def recompute_output_observation_space(self, input_observation_space: Any, input_action_space: Any) -> Any:
        """Bound the normalised columns; the fast engine's rows with images are bytes, and stay as they are."""
        if input_observation_space.dtype == np.uint8:
            return input_observation_space
        low, high = input_observation_space.low.copy(), input_observation_space.high.copy()
        low[self.columns], high[self.columns] = -self.clip_by_value, self.clip_by_value
        return gymnasium.spaces.Box(low, high, dtype=input_observation_space.dtype)

    def __call__(self, *, batch: Any, episodes: Any, **kwargs: Any) -> Any:
        """Normalise the last observation of each episode in place."""
        if self._filters is None:
            self._init_new_filters()
        for episode in self.single_agent_episode_iterator(episodes):
            obs = episode.get_observations(indices=-1).copy()
            obs[self.columns] = self._normalise(obs[self.columns])
            episode.set_observations(at_indices=-1, new_data=obs)
            episode.observation_space = self.observation_space
        return batch

    def _normalise(self, values: Any) -> Any:
        held = self._filters[None]
        if not is_learning(self):
            return held(values, update=False)
        stats = held.running_stats
        if stats.num_pushes < JUDGED_AFTER:
            return self._learn_early(held, values)
        limited, far = limit_far_values(values[None], stats.mean, stats.std)
        if far is None:
            return held(values, update=True)
        self.far = self.far or far
        held(limited[0], update=True)
        return held(values, update=False)

    def _learn_early(self, held: Any, values: Any) -> Any:
        """Learn one of the first observations; once there are enough, judge them together."""
        if len(self._first) == held.running_stats.num_pushes:  # Otherwise other env runners have contributed.
            self._first.append(np.array(values))
        normalised = held(values, update=True)
        if len(self._first) == JUDGED_AFTER == held.running_stats.num_pushes:
            limited, far = limit_first_values(np.stack(self._first))
            if far is not None:
                self.far = self.far or far
                held.running_stats = RunningStat(held.running_stats.shape)
                for row in limited:
                    held.running_stats.push(row)
            self._first = []
        return normalised

    def get_state(self, components: str | Collection[str] | None = None, **kwargs: Any) -> Any:
        """Return RLlib's state of the statistics, with the first far value."""
        state = super().get_state(components, **kwargs)
        return {agent: {**of_agent, "far": self.far} for agent, of_agent in state.items()}

    def merge_states(self, states: list[dict[str, Any]]) -> Any:
        """Merge the statistics of several env runners, as RLlib does."""
        for of_agent in (each for state in states for each in state.values()):
            self.far = self.far or of_agent.get("far")
        return super().merge_states(states)

    def _init_new_filters(self) -> None:
        end = self.columns.stop
        shape = self.input_observation_space.shape if end is None else (end - self.columns.start,)
        self._filters = {None: RunningFilter(np.array(shape), clip=self.clip_by_value)}
