"""Register our environments with RLlib, which builds them in the trial's process and in env runners."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rltune.envs.build import is_plain, make_env, make_training_env
from rltune.envs.rewards import RewardScale
from rltune.envs.spec import EnvSpec

DISCOUNT = "rltune_discount"
"""Key in RLlib's ``env_config`` for the algorithm's discount, by which rewards are normalised."""


class Creator:
    """Builds environments of one specification; RLlib calls it as the ``env_creator`` of a registered name.

    All copies that it makes share the deviation by which their rewards are normalised.
    """

    def __init__(self, spec: EnvSpec) -> None:
        self.spec, self._deviation = spec, RewardScale()

    def __call__(self, context: Mapping[str, Any]) -> Any:
        """Build one training environment; RLlib calls this with its ``env_config``."""
        arguments = dict(context)
        return make_training_env(self.spec, arguments.pop(DISCOUNT, None), self._deviation, **arguments)

    def together(self, num_envs: int) -> Any:
        """Build ``num_envs`` copies as one native vector environment for the fast engine; None if it has none."""
        from rltune.envs.atari import make_native_atari

        return make_native_atari(self.spec, num_envs)


def name_for_rllib(spec: EnvSpec) -> str:
    """Return the name by which RLlib's config refers to an environment, and register that name if necessary.

    A plain Gymnasium id is its own name, so that its native vector version can be used. Any other environment is
    registered with Ray under a name that contains the whole specification.
    """
    if is_plain(spec):
        return spec.id
    from ray.tune.registry import register_env

    name = "rltune:" + json.dumps(spec.to_dict(), sort_keys=True)
    if spec.policies is None:
        register_env(name, Creator(spec))
        return name
    from rltune.algorithms.multi_agent import ParallelEnvAdapter

    register_env(name, lambda context: ParallelEnvAdapter(make_env(spec)))
    return name
