"""An environment's arguments have names in a search space, and values that the settings or a trial give."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rltune.envs.searched import (
    is_changed,
    list_corner_envs,
    list_env_arguments,
    require_env_argument,
    select_values,
    set_env_arguments,
)
from rltune.envs.spec import EnvSpec, spec_of
from rltune.errors import ConfigError

LIMIT = {"entry_point": "gymnasium.wrappers:TimeLimit", "kwargs": {"max_episode_steps": 100}}
SCALE = {"entry_point": "knobs:Bonus", "kwargs": {"bonus": 0.0}}
SPEC = EnvSpec("knobs:Knobs-v0", {"repeat": 1, "prices": {"split": "a"}}, (LIMIT, SCALE), restarts=2)


def test_a_trials_values_replace_those_of_the_settings() -> None:
    values = {"kwargs.repeat": 4, "kwargs.prices.split": "b", "wrappers.TimeLimit.kwargs.max_episode_steps": 50}
    changed = set_env_arguments(SPEC, {**values, "rewards.scale": 0.1})
    assert changed.kwargs == {"repeat": 4, "prices": {"split": "b"}}
    assert [dict(wrapper["kwargs"]) for wrapper in changed.wrappers] == [{"max_episode_steps": 50}, {"bonus": 0.0}]
    assert changed.rewards == {"scale": 0.1}
    assert (changed.restarts, changed.id) == (2, SPEC.id)
    assert SPEC.kwargs == {"repeat": 1, "prices": {"split": "a"}}, "the settings stay"
    assert LIMIT["kwargs"] == {"max_episode_steps": 100}
    assert spec_of(json.loads(json.dumps(changed.to_dict()))) == changed


@pytest.mark.parametrize("bare", [{"entry_point": "knobs:Bonus"}, {"entry_point": "knobs:Bonus", "kwargs": None}])
def test_a_wrapper_without_arguments_stays_as_it_is(bare: dict[str, Any]) -> None:
    spec = EnvSpec("knobs:Knobs-v0", {"repeat": 1}, (bare, LIMIT))
    assert set_env_arguments(spec, {"kwargs.repeat": 1}) == spec
    assert list_corner_envs(spec, [{"env.kwargs.repeat": 1}]) == []


def test_values_of_the_settings_change_nothing() -> None:
    same = {"kwargs.repeat": 1, "wrappers.Bonus.kwargs.bonus": 0.0, "rewards.scale": 1.0, "rewards.clip": None}
    assert set_env_arguments(SPEC, same) == SPEC
    assert set_env_arguments(SPEC, {}) is SPEC


def test_what_is_for_learning_comes_over_what_is_for_all() -> None:
    values = {"lr": 1e-3, "train_env.kwargs.a": 1, "env.kwargs.a": 2, "env.kwargs.b": 3}
    assert select_values(values, "env") == {"kwargs.a": 2, "kwargs.b": 3}
    assert select_values(values, "env", "train_env") == {"kwargs.a": 1, "kwargs.b": 3}


@pytest.mark.parametrize(
    "name",
    [
        "env.kwargs.repeat", "env.kwargs.prices", "env.kwargs.prices.split", "env.rewards.clip",
        "env.wrappers.TimeLimit.kwargs.max_episode_steps", "train_env.wrappers.Bonus.kwargs.bonus",
    ],
)  # fmt: skip
def test_an_argument_with_a_value_in_the_settings_is_known(name: str) -> None:
    require_env_argument(list_env_arguments(SPEC), name, f"space.{name}")


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("env.kwargs.frame_skip", "+env.kwargs.frame_skip=2"),
        ("train_env.kwargs.weight", "+env.kwargs.weight=2"),
        ("env.kwargs.repaet", "+space.env.kwargs.repeat=[choice,2,4]"),
        ("env.repeat", "+space.env.kwargs.repeat=[choice,2,4]"),
        ("env.wrappers.Bonus.bonus", "+space.env.wrappers.Bonus.kwargs.bonus=[choice,2,4]"),
        ("train_env.rewards.scale", "+space.env.rewards.scale=[choice,2,4]"),
        ("env.rewards.normalise", "+space.env.rewards.scale=[choice,2,4]"),
        ("env.wrappers.Bonus.kwargs.length", "length: 2 in the kwargs of Bonus in env.wrappers"),
        ("env.kwargs", None), ("env.wrappers.TimeLimit", None), ("env.rewards", None), ("env", None),
        ("env.id", None), ("env.max_copies", None),
    ],
)  # fmt: skip
def test_an_argument_without_a_value_is_refused(name: str, fix: str | None) -> None:
    with pytest.raises(ConfigError) as refused:
        require_env_argument(list_env_arguments(SPEC), name, f"space.{name}", ["choice", 2, 4], 2)
    assert refused.value.key == f"space.{name}"
    assert fix is None or refused.value.fix == fix


def test_a_name_that_two_wrappers_have_is_no_name() -> None:
    twice = EnvSpec("CartPole-v1", {}, (LIMIT, LIMIT))
    with pytest.raises(ConfigError):
        require_env_argument(list_env_arguments(twice), "env.wrappers.TimeLimit.kwargs.max_episode_steps", "space.x")


def test_corners_are_the_environments_of_all_points_once() -> None:
    points: list[dict[str, Any]] = [
        {"lr": lr, "env.kwargs.repeat": repeat, "train_env.wrappers.Bonus.kwargs.bonus": bonus}
        for lr in (1, 2)
        for repeat in (1, 2)
        for bonus in (0.0, 5.0)
    ]
    corners = list_corner_envs(SPEC, points)
    assert [set(values) for values, _ in corners] == [
        {"train_env.wrappers.Bonus.kwargs.bonus"},
        {"env.kwargs.repeat"},
        {"env.kwargs.repeat", "train_env.wrappers.Bonus.kwargs.bonus"},
    ]
    assert [(spec.kwargs["repeat"], spec.wrappers[1]["kwargs"]["bonus"]) for _, spec in corners] == [
        (1, 5.0), (2, 0.0), (2, 5.0)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "is_replaced"),
    [
        ({"kwargs": {"size": 4}}, True),
        ({"kwargs": {"part": "test"}}, False),
        ({"per_copy": {"size": "number"}}, True),  # It takes the place of the value in kwargs.
        ({"kwargs": None, "per_copy": None}, False),
        ({"id": "Other-v0"}, True),
        ({"wrappers": []}, False),
    ],
)
def test_what_replaces_a_searched_argument(changes: dict[str, Any], is_replaced: bool) -> None:
    assert is_changed("env.kwargs.size", changes) == is_replaced
    assert not is_changed("train_env.kwargs.size", changes)
