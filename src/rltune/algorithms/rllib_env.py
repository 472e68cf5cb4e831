"""Register our environments with RLlib, which builds them in the trial's process and in env runners."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Mapping
from typing import Any

import gymnasium

from rltune.envs.build import make_env, make_training_env
from rltune.envs.facts import EnvFacts
from rltune.envs.spaces import find_network_spaces
from rltune.envs.spec import EnvSpec

DISCOUNT = "rltune_discount"
"""Key in RLlib's ``env_config`` for the algorithm's discount, by which rewards are normalised."""


class Creator:
    """Builds environments of one specification; RLlib calls it as the ``env_creator`` of a registered name.

    Args:
        spec: The environment.
        facts: What is known about it, if Gymnasium's vector environment has each copy in a process of its own. It would
            make one more copy to look at (Gymnasium 1.2), and gets a `StandIn` for it.
    """

    def __init__(self, spec: EnvSpec, facts: EnvFacts | None = None) -> None:
        self.spec, self.facts = spec, facts

    def __call__(self, context: Mapping[str, Any]) -> Any:
        """Build one training environment; RLlib calls this with its ``env_config``."""
        if self.facts is not None and multiprocessing.parent_process() is None:
            return StandIn(self.facts)
        arguments = dict(context)
        return make_training_env(self.spec, arguments.pop(DISCOUNT, None), **arguments)

    def together(self, num_envs: int) -> Any:
        """Build ``num_envs`` copies as one native vector environment for the fast engine; None if it has none."""
        from rltune.envs.atari import make_native_atari

        return make_native_atari(self.spec, num_envs)


class StandIn(gymnasium.Env[Any, Any]):
    """Stands for a copy of an environment where only its spaces are wanted.

    Args:
        facts: What is known about the environment, of one agent.
    """

    def __init__(self, facts: EnvFacts) -> None:
        pair = facts.find_policy_spaces()
        assert pair is not None  # Gymnasium's vector environments are of one agent.
        self.observation_space, self.action_space = find_network_spaces(*pair)
        self.metadata = dict(facts.metadata)


def register_for_rllib(spec: EnvSpec, facts: EnvFacts | None = None) -> str:
    """Register an environment with Ray under a name that contains the whole specification, and return the name.

    Args:
        spec: The environment.
        facts: As for `Creator`.
    """
    from ray.tune.registry import register_env

    name = "rltune:" + json.dumps(spec.to_dict(), sort_keys=True)
    if spec.policies is None:
        register_env(name, Creator(spec, facts))
        return name
    from rltune.algorithms.multi_agent import ParallelEnvAdapter

    register_env(name, lambda context: ParallelEnvAdapter(make_env(spec)))
    return name
