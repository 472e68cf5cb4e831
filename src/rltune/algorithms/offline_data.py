"""Serve batches of a recorded dataset to the offline algorithms, without Ray Data.

RLlib's own reader streams through Ray Data, whose tasks would wait for the CPUs that the trials use. This reader keeps
the arrays in the trial's process.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.offline.offline_data import OfflineData

from rltune.algorithms.datasets import read_episodes
from rltune.config.capabilities import capabilities_of


class RecordedEpisodes(OfflineData):
    """Makes training batches from the arrays of a recorded dataset; set as RLlib's ``offline_data_class``."""

    def __init__(self, config: Any) -> None:
        self.config = config
        path = config.input_ if isinstance(config.input_, str) else config.input_[0]
        self._steps = self._read_columns(path)
        numbers = self._steps.pop("episode")
        self._starts = np.flatnonzero(np.r_[True, numbers[1:] != numbers[:-1]])
        self._ends = np.r_[self._starts[1:], len(numbers)]
        self._rng = np.random.default_rng(config.seed)
        # Advantages are computed along an episode, so the losses that need them get whole episodes. All other losses,
        # also MARWIL's without advantages (beta 0), learn best from independent steps.
        self._whole = capabilities_of(type(config)).data == "recorded_episodes" and config.beta != 0.0
        self._learner_connector: Any = None
        self.iter_batches_kwargs: dict[str, Any] = {}
        # RLlib (2.60) sets these four attributes after it has created the learner.
        self.spaces: Any = None
        self.learner_handles: Any = None
        self.module_spec: Any = None
        self.locality_hints: Any = None

    def sample(self, num_samples: int, return_iterator: bool = False, **_: Any) -> Any:
        """Return one batch, or ``[self]``: then RLlib's learner calls `iter_torch_batches` of this object."""
        return [self] if return_iterator else self._batch(num_samples)

    def iter_torch_batches(self, *, batch_size: int, device: Any = None, **_: Any) -> Iterator[dict[str, Any]]:
        """Yield batches forever, as flat dictionaries like those of Ray Data."""
        from ray.rllib.utils import flatten_dict

        while True:
            yield flatten_dict(self._prepare(batch_size))

    def _batch(self, num_samples: int) -> Any:
        from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch

        prepared = self._prepare(num_samples)
        return MultiAgentBatch({name: SampleBatch(data) for name, data in prepared.items()}, env_steps=num_samples)

    def _prepare(self, num_samples: int) -> dict[str, Any]:
        learner = self.learner_handles[0]
        if not self._whole:
            rows = self._rng.integers(len(self._steps[Columns.REWARDS]), size=num_samples)
            batch = {name: torch.from_numpy(column[rows]).to(learner.device) for name, column in self._steps.items()}
            return {DEFAULT_MODULE_ID: batch}
        if self._learner_connector is None:
            self._learner_connector = self.config.build_learner_connector(
                input_observation_space=self.config.observation_space, input_action_space=self.config.action_space
            )
        return dict(
            self._learner_connector(
                rl_module=learner.module,
                batch={},
                episodes=self._draw_episodes(num_samples),
                shared_data={},
                metrics=None,
            )
        )

    def _read_columns(self, path: str) -> dict[str, np.ndarray]:
        """Read the dataset as network inputs; bounded actions are scaled to [-1, 1], the range of RLlib's networks."""
        raw, observation, action = read_episodes(path), self.config.observation_space, self.config.action_space
        count = len(raw["reward"])
        if action.shape == ():
            actions = raw["action"].reshape(count).astype(np.int64)
        else:
            actions = raw["action"].reshape(count, *action.shape).astype(np.float32)
            if self.config.normalize_actions and np.isfinite([action.low, action.high]).all():
                actions = (2.0 * (actions - action.low) / (action.high - action.low) - 1.0).astype(np.float32)
        return {
            Columns.OBS: raw["obs"].reshape(count, *observation.shape).astype(np.float32),
            Columns.NEXT_OBS: raw["next_obs"].reshape(count, *observation.shape).astype(np.float32),
            Columns.ACTIONS: actions,
            Columns.REWARDS: raw["reward"].astype(np.float32),
            Columns.TERMINATEDS: raw["terminated"],
            Columns.TRUNCATEDS: raw["truncated"],
            "episode": raw["episode"],
        }

    def _draw_episodes(self, num_samples: int) -> list[Any]:
        """Draw random episodes, and cut the last one so that they have exactly ``num_samples`` steps."""
        chosen, steps = [], 0
        while steps < num_samples:
            number = int(self._rng.integers(len(self._starts)))
            start = int(self._starts[number])
            end = min(int(self._ends[number]), start + num_samples - steps)
            chosen.append(self._make_episode(start, end))
            steps += end - start
        return chosen

    def _make_episode(self, start: int, end: int) -> Any:
        c = self._steps
        episode = SingleAgentEpisode(
            observation_space=self.config.observation_space,
            action_space=self.config.action_space,
            observations=[*c[Columns.OBS][start:end], c[Columns.NEXT_OBS][end - 1]],
            actions=list(c[Columns.ACTIONS][start:end]),
            rewards=c[Columns.REWARDS][start:end].tolist(),
            terminated=bool(c[Columns.TERMINATEDS][end - 1]),
            truncated=bool(c[Columns.TRUNCATEDS][end - 1]),
            len_lookback_buffer=0,
        )
        episode.to_numpy()
        return episode
