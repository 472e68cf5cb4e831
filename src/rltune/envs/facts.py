"""What the request's check has learned about an environment: spaces, time limit, mask and metadata, as JSON.

They are learned once, in the check's process, and travel with the build, so that nobody makes a copy of the environment
only to look at it, and the driver never imports the user's modules.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from rltune.envs.layout import make_space as make_space  # Who describes a space also makes it.
from rltune.errors import ABSENT, ConfigError

if TYPE_CHECKING:
    import gymnasium

    from rltune.envs.masks import MaskSource


@dataclass(frozen=True)
class EnvFacts:
    """What is known of an environment without making one.

    Attributes:
        observation_space: The space of its observations with the wrappers of the settings, before anything is
            flattened; a user's subclass as its Gymnasium base. With several agents a Dict of theirs.
        action_space: The space of its actions; with several agents a Dict of theirs.
        time_limit: The most steps after which Gymnasium truncates an episode, whatever is searched; None: no limit.
        mask: Where it says which actions are legal; None if it does not, or ``env.action_mask=off`` leaves it out.
        metadata: Its metadata, of which only what JSON has.
        agents: All agents that there may be, in the environment's order; empty for an environment of one agent.
        policies: The policy of each agent, if a function of the user's says it; else empty.
        notes: What the check has to say about it.
        sources: A digest of each source file that it comes from, by the name of its module.
        episode_steps: How many steps of a random episode the check has played, the shortest of what is searched.
        episode_is_over: Whether that episode has ended by then; else it is longer.
    """

    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    time_limit: int | None = None
    mask: MaskSource | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    agents: tuple[str, ...] = ()
    policies: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    episode_steps: int = 0
    episode_is_over: bool = False

    def find_policy_spaces(self) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]] | None:
        """Return the spaces of the observations and actions as policies see them, that is of `make_env`.

        With several agents there is no such pair, but one for each agent in `spaces_by_agent`; returns None then.
        """
        return None if self.agents else (self.observation_space, self.action_space)

    @property
    def spaces_by_agent(self) -> dict[str, tuple[Any, Any]]:
        """The observation space and the action space of each agent; empty for an environment of one agent."""
        seen, taken = cast(Any, self.observation_space), cast(Any, self.action_space)
        return {agent: (seen[agent], taken[agent]) for agent in self.agents}

    def to_dict(self) -> dict[str, Any]:
        """Return the facts as JSON values; `from_dict` reads them."""
        spaces = {name: describe_space(getattr(self, name)) for name in ("observation_space", "action_space")}
        lists = {"agents": list(self.agents), "notes": list(self.notes)}
        mappings = {name: dict(getattr(self, name)) for name in ("metadata", "policies", "sources")}
        return {**vars(self), **spaces, **mappings, **lists, "mask": self.mask and self.mask.to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> EnvFacts:
        """Make the facts from what `to_dict` has returned."""
        spaces = {name: make_space(values[name]) for name in ("observation_space", "action_space")}
        tuples = {name: tuple(values.get(name, ())) for name in ("agents", "notes")}
        from rltune.envs.masks import MaskSource  # Imported here, because Gymnasium loads slowly.

        mask = values.get("mask") and MaskSource.parse(values["mask"])
        return cls(**{**values, **spaces, **tuples, "mask": mask})


def select_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """Select what JSON can hold of an environment's metadata."""

    def is_json(value: Any) -> bool:
        if isinstance(value, list | tuple):
            return all(map(is_json, value))
        return value is None or isinstance(value, bool | int | float | str)

    return {str(key): value for key, value in values.items() if is_json(value)}


def describe_space(space: Any) -> dict[str, Any]:
    """Describe a space of Gymnasium's as JSON values; infinite bounds become ``"inf"`` and ``"-inf"``.

    Raises:
        ConfigError: The space is none of those that rltune knows.
    """
    from gymnasium import spaces as kinds

    match space:
        case kinds.Discrete():
            other = {} if space.dtype == np.int64 else {"dtype": str(np.dtype(space.dtype))}
            return {"type": "Discrete", "n": int(space.n), "start": int(space.start), **other}
        case kinds.Box():
            bounds = {key: _describe_bound(getattr(space, key)) for key in ("low", "high")}
            return {"type": "Box", "shape": list(space.shape), "dtype": str(np.dtype(space.dtype))} | bounds
        case kinds.MultiDiscrete():
            numbers = {"nvec": space.nvec.tolist(), "start": space.start.tolist()}
            return {"type": "MultiDiscrete", "dtype": str(np.dtype(space.dtype)), **numbers}
        case kinds.MultiBinary():
            return {"type": "MultiBinary", "n": space.n if isinstance(space.n, int) else list(space.n)}
        case kinds.Text():
            characters = "".join(sorted(space.character_set))
            return {"type": "Text", "min": space.min_length, "max": space.max_length, "characters": characters}
        case kinds.Dict():
            return {"type": "Dict", "spaces": [[read_key(key), describe_space(part)] for key, part in space.items()]}
        case kinds.Tuple():
            return {"type": "Tuple", "spaces": [describe_space(part) for part in space.spaces]}
    raise ConfigError(
        "env.id",
        type(space).__name__,
        "is a space without a fixed number of parts",
        "Box, Discrete, MultiDiscrete, MultiBinary, Text, and Dict or Tuple of them",
        "env.wrappers=[...] with a wrapper of yours that makes one of them",
    )


def read_key(key: Any) -> str | int:
    """Return the key of a Dict space as JSON has it, which is equal to the key itself.

    Raises:
        ConfigError: JSON has no such key.
    """
    if isinstance(key, np.integer):
        return int(key)
    if isinstance(key, str | int):
        return key
    allowed, fix = "texts and whole numbers as keys", "spaces.Dict({'left': ...}), and the same in reset and step"
    raise ConfigError("", ABSENT, f"a Dict of its spaces has the key {key!r}, a {type(key).__name__}", allowed, fix)


def _describe_bound(values: Any) -> Any:
    """Describe a Box's bound: one number if all elements are equal, as in images, else a list."""
    flat = [x if math.isfinite(x) else str(x) for x in np.asarray(values).reshape(-1).tolist()]
    return flat[0] if flat and all(x == flat[0] for x in flat) else flat
