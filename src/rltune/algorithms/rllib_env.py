"""Register our environments with RLlib, which builds them in the trial's process and in env runners."""

from __future__ import annotations

import json
import multiprocessing
import re
from collections.abc import Mapping
from typing import Any

import gymnasium

from rltune.envs.build import make_env, make_training_env
from rltune.envs.copies import Copy, build_own
from rltune.envs.facts import EnvFacts
from rltune.envs.observations import find_layout, find_network_spaces, is_row, make_row_space
from rltune.envs.rewards import RewardScale
from rltune.envs.spec import EnvSpec

DISCOUNT = "rltune_discount"
"""Key in RLlib's ``env_config`` for the algorithm's discount, by which rewards are normalised."""


class Creator:
    """Builds environments of one specification; RLlib calls it as the ``env_creator`` of a registered name.

    All copies that it makes share the deviation by which their rewards are normalised.

    Args:
        spec: The environment.
        facts: What is known about it, if Gymnasium's vector environment has each copy in a process of its own. It would
            make one more copy to look at (Gymnasium 1.2), and gets a `StandIn` for it.
    """

    def __init__(self, spec: EnvSpec, facts: EnvFacts | None = None) -> None:
        self.spec, self.facts, self._deviation = spec, facts, RewardScale()
        self._context: Mapping[str, Any] | None = None
        self._num_built = 0

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the count of the copies, which begins anew in each process."""
        return {**vars(self), "_context": None, "_num_built": 0}

    def __call__(self, context: Mapping[str, Any]) -> Any:
        """Build one training environment for RLlib's own runners, which call this with RLlib's ``env_config``."""
        return self._create(context, view=True)

    def make_rows(self, context: Mapping[str, Any]) -> Any:
        """Build one training environment for the engine's runners, whose observations are rows."""
        return self._create(context, view=False)

    def _create(self, context: Mapping[str, Any], view: bool) -> Any:
        if self.facts is not None and multiprocessing.parent_process() is None:
            return StandIn(self.spec, self.facts, view)
        # The trial stands in the queue for all of its copies (`rltune.trial.trainable`), whichever process makes them.
        copy = Copy(self.spec, getattr(context, "worker_index", 0), self._find_vector_index(context), is_queued=True)
        return build_own(copy, lambda copy: self._build(dict(context), copy, view))

    def _build(self, arguments: dict[str, Any], copy: Copy, view: bool) -> Any:
        if self.spec.policies is None:
            discount = arguments.pop(DISCOUNT, None)
            return make_training_env(self.spec, discount, self._deviation, copy, view=view, **arguments)
        from rltune.algorithms.multi_agent import ParallelEnvAdapter

        return ParallelEnvAdapter(make_env(self.spec, copy), self.spec)

    def _find_vector_index(self, context: Mapping[str, Any]) -> int:
        """Find the copy's place among those that step together, which stock RLlib (2.60) does not say.

        It calls with one context for all of them, from one process or from a process of each, which Gymnasium numbers
        in its name.
        """
        self._num_built = self._num_built + 1 if context is self._context else 0
        self._context = context
        process = re.fullmatch(r"Worker<.*>-(\d+)", multiprocessing.current_process().name)
        return getattr(context, "vector_index", 0) or (int(process[1]) if process else self._num_built)

    def together(self, num_envs: int) -> Any:
        """Build ``num_envs`` copies as one native vector environment for the fast engine; None if it has none."""
        from rltune.envs.atari import make_native_atari

        return None if self.spec.is_numbered else make_native_atari(self.spec, num_envs)


class StandIn(gymnasium.Env[Any, Any]):
    """Stands for a copy of an environment where only its spaces are wanted.

    Args:
        spec: The environment.
        facts: What is known about it, of one agent.
        view: As for `rltune.envs.build.make_flat_env`.
    """

    def __init__(self, spec: EnvSpec, facts: EnvFacts, view: bool) -> None:
        pair = facts.find_policy_spaces()
        assert pair is not None  # Gymnasium's vector environments are of one agent.
        self.observation_space, self.action_space = find_network_spaces(*pair, spec)
        if not view and not is_row(pair[0], spec):
            self.observation_space = make_row_space(find_layout(pair[0], spec))
        self.metadata = dict(facts.metadata)


def register_for_rllib(spec: EnvSpec, facts: EnvFacts | None = None) -> str:
    """Register an environment with Ray under a name that contains the whole specification, and return the name.

    Args:
        spec: The environment.
        facts: As for `Creator`.
    """
    from ray.tune.registry import register_env

    name = "rltune:" + json.dumps(spec.to_dict(), sort_keys=True)
    register_env(name, Creator(spec, None if spec.policies is not None else facts))
    return name
