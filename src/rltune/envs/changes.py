"""Change an environment for evaluations: other data, another length, other wrappers, but the same spaces.

``score.env``, ``certify.env`` and the command ``evaluate`` describe such changes alike, and one function applies them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rltune.envs.spec import EnvSpec, spec_of
from rltune.errors import ABSENT, ConfigError, GuestError, choices

if TYPE_CHECKING:
    from rltune.envs.facts import EnvFacts

ARGUMENTS = ("kwargs", "per_copy")
"""The keys of a specification that hold arguments of the environment's constructor."""

CHANGEABLE = ("id", *ARGUMENTS, "wrappers", "evaluation_steps", "max_copies", "restarts")
"""What the settings may change for evaluations. The rest is about training, or about the policy itself."""


def keep_arguments(spec: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return which of a specification's ``kwargs`` and ``per_copy`` stay under changes: none with another id.

    Args:
        spec: The specification as a mapping.
        changes: As for `change_env`. A name in its ``kwargs`` or ``per_copy`` replaces both the one and the other.
    """
    is_same = changes.get("id", spec.get("id")) == spec.get("id")
    replaced = {name for key in ARGUMENTS for name in changes.get(key) or {}}
    return {
        key: {name: value for name, value in (spec.get(key) or {}).items() if is_same and name not in replaced}
        for key in ARGUMENTS
    }


def change_env(spec: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a specification, as a mapping, with changes.

    Args:
        spec: The specification as a mapping.
        changes: Another id, or keys as in conf/env. ``kwargs`` and ``per_copy`` are added to those of the same id; the
            wrappers stay unless ``wrappers`` names others.
    """
    kept = keep_arguments(spec, changes)
    return {**spec, **changes, **{key: {**kept[key], **(changes.get(key) or {})} for key in ARGUMENTS}}


def is_measured_apart(spec: Mapping[str, Any], score_env: Mapping[str, Any], certify_env: Mapping[str, Any]) -> bool:
    """Return whether results are reported of another environment than the one that chooses.

    Args:
        spec: The sweep's environment as a mapping.
        score_env: The setting ``score.env``.
        certify_env: The setting ``certify.env``; empty if it is not set.
    """
    return bool(certify_env) and change_env(spec, certify_env) != change_env(spec, score_env)


def change_spec(spec: EnvSpec, changes: Mapping[str, Any]) -> EnvSpec:
    """Return a specification with changes, as `change_env` makes them."""
    return spec_of(change_env(spec.to_dict(), changes)) if changes else spec


def check_changes(
    key: str, changes: Mapping[str, Any], spec: EnvSpec, facts: EnvFacts, examine: Callable[[EnvSpec], EnvFacts]
) -> list[str]:
    """Check the environment that a setting such as ``score.env`` makes of the sweep's own.

    Args:
        key: The setting.
        changes: Its value.
        spec: The sweep's environment.
        facts: What its check has learned.
        examine: Checks an environment, as `rltune.envs.validation.examine_env` does.

    Returns:
        Notes for the user, other than those on the sweep's own environment.

    Raises:
        RltuneError: A key is unknown, the environment cannot be built or stepped, or its spaces are others.
    """
    for name, value in changes.items():
        if name not in CHANGEABLE:
            allowed = choices(name, CHANGEABLE)
            raise ConfigError(f"{key}.{name}", value, ": no such key", allowed, f"'{key}={{kwargs: {{split: test}}}}'")
        if name in ARGUMENTS and not isinstance(value, Mapping):
            raise ConfigError(f"{key}.{name}", value, "is no mapping", "{name: value}", f"'{key}.{name}={{size: 4}}'")
    try:
        changed_facts = examine(change_spec(spec, changes))
    except (ConfigError, GuestError) as error:
        fix = f"correct {key}, which is merged into env, or {key}={{}}"
        raise ConfigError(key, ABSENT, f": {error.what}", error.allowed, fix) from None
    from rltune.envs.facts import describe_space  # Imported here, because what prints tables needs no NumPy.

    for name in ("observation_space", "action_space"):
        own, other = (_describe_form(describe_space(getattr(each, name))) for each in (facts, changed_facts))
        if own != other:
            raise ConfigError(
                key,
                changes,
                f": its {name} is {getattr(changed_facts, name)}",
                f"that of env, {getattr(facts, name)}: the same policy acts in both",
                f"{key}={{}}",
            )
    if facts.mask != changed_facts.mask:
        own_mask, other_mask = (each.mask.describe() if each.mask else "none" for each in (facts, changed_facts))
        raise ConfigError(key, changes, f": its action mask is {other_mask}", f"that of env, {own_mask}", f"{key}={{}}")
    return [f"{key}: {note}" for note in changed_facts.notes if note not in facts.notes]


def _describe_form(description: Any) -> Any:
    """Return the description of a space without its bounds, which may follow from the data."""
    if isinstance(description, Mapping):
        return {key: _describe_form(value) for key, value in description.items() if key not in ("low", "high")}
    return list(map(_describe_form, description)) if isinstance(description, list) else description
