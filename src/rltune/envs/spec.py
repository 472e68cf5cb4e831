"""What names one environment: its id, arguments, wrappers and shaping."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from typing import Any

EXTRAS = {"ale_py": "atari", "cv2": "atari", "minigrid": "minigrid"}
"""The extra of ours that brings a module; Gymnasium's own families are told by their entry points."""

AS_THEY_ARE = {"normalise": False, "scale": 1.0, "clip": None}
"""The rewards that are the environment's own."""


@dataclass(frozen=True)
class EnvSpec:
    """An environment that can be built again elsewhere; plain values only.

    Attributes:
        id: Gymnasium id; ``module:Name-v0`` imports the module first, as Gymnasium does.
        kwargs: Arguments of the environment.
        wrappers: Applied in order, each ``{"entry_point": "module:Class", "kwargs": {...}}``.
        normalise_observations: Whether training keeps running means and deviations; they travel with the policy.
        rewards: ``normalise``, ``scale``, ``clip``: what is learned from; empty for the rewards as they are.
        policies: Who acts by which policy, where there are several agents (`rltune.envs.pettingzoo`). None: one.
    """

    id: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    wrappers: tuple[Mapping[str, Any], ...] = ()
    normalise_observations: bool = False
    rewards: Mapping[str, Any] = field(default_factory=dict)
    policies: str | Mapping[str, str] | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        plain: dict[str, Any] = {
            "id": self.id,
            "kwargs": dict(self.kwargs),
            "wrappers": [dict(w) for w in self.wrappers],
        }
        plain |= {"normalise_observations": self.normalise_observations, "rewards": dict(self.rewards)}
        if self.policies is not None:
            plain["policies"] = self.policies if isinstance(self.policies, str) else dict(self.policies)
        return plain


def spec_of(config: Any) -> EnvSpec:
    """The specification inside a config (mapping or dataclass with the fields of `EnvSpec`)."""
    if isinstance(config, EnvSpec):
        return config
    raw = asdict(config) if is_dataclass(config) and not isinstance(config, type) else dict(config)
    given = (raw.get("rewards") or {}).items()
    rewards = {key: value for key, value in given if value != AS_THEY_ARE.get(key)}
    return EnvSpec(
        raw["id"],
        raw.get("kwargs") or {},
        tuple(raw.get("wrappers") or ()),
        bool(raw.get("normalise_observations")),
        rewards,
        raw.get("policies"),
    )
