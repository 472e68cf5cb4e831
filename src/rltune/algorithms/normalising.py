"""Find what training can normalise in an environment, and leave the rest out of all settings of ``normalise``.

``algo.normalise`` and ``space.normalise`` list ``observations``, ``rewards``, both or neither. Two choices that differ
only in what cannot be normalised train in the same way, so the search has one of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from rltune.algorithms.arguments import NORMALISE, count_env_runners
from rltune.config.validation import NORMALISABLE
from rltune.envs.spec import EnvSpec
from rltune.envs.validation import can_normalise_rewards
from rltune.formatting import flatten_settings
from rltune.search.conditions import WHEN

CONNECTOR = "env_to_module_connector"


def find_obstacles(
    algo: Mapping[str, Any], spec: EnvSpec, vectorize: str, spaces: tuple[Any, Any] | None
) -> dict[str, str]:
    """Find what training cannot normalise, with the reason why it cannot.

    Args:
        algo: The algorithm's file.
        spec: The environment, without what ``algo.normalise`` adds.
        vectorize: The setting ``env.vectorize``.
        spaces: The spaces of its observations and actions; None with several agents.
    """
    from rltune.envs.observations import find_layout  # Imported here, because Gymnasium loads slowly.

    # Images, choices and masks stay as they are; vectors beside them are normalised.
    layout = None if spaces is None else find_layout(spaces[0], spec)
    reasons = (
        ("observations", "there are several agents", spaces is None),
        ("observations", "they have no vectors", layout is not None and not layout.num_vector),
        ("observations", f"algo.env_runners.{CONNECTOR} prepares them", CONNECTOR in (algo.get("env_runners") or {})),
        ("rewards", "there are several agents", spaces is None),
        ("rewards", "env.rewards shapes them", bool(spec.rewards)),
        (
            "rewards",
            "other processes step the environments",
            not can_normalise_rewards(count_env_runners(algo), vectorize),
        ),
    )
    obstacles: dict[str, str] = {}
    for part, why, holds in reasons:
        if holds:
            obstacles.setdefault(part, why)
    return obstacles


def list_notes(obstacles: Mapping[str, str], configurations: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a note on each part that cannot be normalised and that one of the configurations wants to normalise."""
    wanted = {part for values in configurations for part in values.get(NORMALISE, ())}
    return [f"{part} are not normalised, because {why}" for part, why in obstacles.items() if part in wanted]


def remove_from_values(values: Mapping[str, Any], obstacles: Collection[str]) -> dict[str, Any]:
    """Return a configuration's values by name, or an algorithm's file, without what cannot be normalised."""
    return {name: _remove(value, obstacles) if name == NORMALISE else value for name, value in values.items()}


def remove_from_space(raw: Mapping[str, Any], obstacles: Collection[str]) -> dict[str, Any]:
    """Return the settings group ``space`` without what cannot be normalised, in ranges and in conditions.

    Choices that have become equal are one, and a single choice is a fixed value.
    """
    return {name: _remove_from_form(name == NORMALISE, form, obstacles) for name, form in flatten_settings(raw)}


def _remove_from_form(is_normalise: bool, form: Any, obstacles: Collection[str]) -> Any:
    if isinstance(form, list) and len(form) == 3 and form[0] == WHEN:  # A condition and what it is for.
        return [WHEN, remove_from_values(form[1], obstacles), _remove_from_form(is_normalise, form[2], obstacles)]
    return _remove(form, obstacles) if is_normalise else form


def _remove(written: Any, obstacles: Collection[str]) -> Any:
    """Return a list of parts, or a list of such lists, without the obstacles; other values stay."""
    if not isinstance(written, list | tuple):
        return written
    if all(part in NORMALISABLE for part in written):
        return [part for part in written if part not in obstacles]
    kept: list[Any] = []
    for each in written:
        choice = _remove(each, obstacles)
        if choice not in kept:
            kept.append(choice)
    return kept[1] if kept[0] == "choice" and len(kept) == 2 else kept
