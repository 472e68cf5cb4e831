"""A command that is typed again is known as the same one."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest
from composing import change_setting

from rltune.config.changes import ENDURANCE, check_budgets, check_changes
from rltune.config.schema import RunConfig
from rltune.config.settings_file import format_settings, load_settings, redact_config
from rltune.config.validation import parse_config, to_typed
from rltune.errors import StudyError

ROOT = Path(__file__).parents[2]


def settings_of(raw, **changes):
    for key, value in changes.items():
        raw = change_setting(raw, key.replace("__", "."), value)
    return parse_config(raw)


_stored = {}


def read_stored(composed, **changes):
    """Return a copy of what the settings file of such a sweep holds; each file is parsed once."""
    name = repr(changes)
    if name not in _stored:
        _stored[name] = load_settings(format_settings(redact_config(settings_of(composed, **changes))))
        del _stored[name]["format"]
    return copy.deepcopy(_stored[name])


def check(raw, *, known=None, **changes):
    before = read_stored(raw, **(known or {}))
    return check_changes("mine", to_typed(RunConfig, before), settings_of(raw, **changes))


def test_the_same_command_changes_nothing(composed):
    assert check(composed) is False
    assert check(composed, known={"env.kwargs": {}}, env__kwargs={"gravity": None}) is False, "null is no value"
    with pytest.raises(StudyError) as refused:
        check(composed, known={"env.kwargs": {}}, env__kwargs={"gravity": 9})
    assert refused.value.key == "env.kwargs.gravity"
    assert "env.kwargs.gravity=null" in refused.value.what


@pytest.mark.fast
@pytest.mark.parametrize("key", ENDURANCE)
def test_what_a_sweep_endures_may_change(composed, key):
    assert check(composed, **{key.replace(".", "__"): 7}) is False


YOUNGER = ("objective", "resume", "resources.trials_per_gpu", "precision")
"""Keys that sweeps of earlier versions lack."""


@pytest.mark.slow
@pytest.mark.parametrize("keys", [(key,) for key in YOUNGER] + [YOUNGER])
def test_a_sweep_that_lacks_younger_keys_has_their_defaults(composed, keys):
    before = read_stored(composed)
    for key in keys:
        above, _, last = key.rpartition(".")
        del (before[above] if above else before)[last]
    assert check_changes("mine", to_typed(RunConfig, before), settings_of(composed)) is False
    assert parse_config(before) == settings_of(composed)
    if "objective" in keys:
        with pytest.raises(StudyError) as refused:
            check_changes("mine", to_typed(RunConfig, before), settings_of(composed, objective__direction="min"))
        assert refused.value.key == "objective.direction"
        assert "objective.direction=max" in refused.value.what


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("cluster.address", "10.0.0.1:6379"),
        ("study.storage", "postgresql+psycopg://me:s3cret@elsewhere/rl"),
        ("tracking.uri", "http://elsewhere"),
        ("output_dir", "/other/spelling/outputs"),
        ("name", "mine"),
        ("notify", "https://elsewhere/hook"),
        ("tracking.kinds", ["my_module:MyClass"]),
    ],
)
def test_an_address_may_change(composed, key, value):
    assert check(composed, **{key: value}) is False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "old", "new"),
    [
        ("budget.trials", 48, 96),
        ("budget.total_env_steps", 100_000, 200_000),
        ("budget.total_env_steps", 100_000, None),
        ("budget.wall_time_s", 60, 120),
        ("certify.seeds", 0, 5),
        ("certify.top", 1, 3),
    ],
)
def test_a_budget_may_grow(composed, key, old, new):
    assert check(composed, known={key: old}, **{key: new}) is True


def test_seconds_count_anew_so_that_fewer_are_no_smaller_budget(composed):
    assert check(composed, known={"budget.wall_time_s": 60}, **{"budget.wall_time_s": 30}) is False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "old", "new"),
    [
        ("budget.trials", 24, 12),
        ("budget.total_env_steps", None, 100_000),
        ("budget.env_steps", 100000, 200000),
        ("seed", 0, 1),
        ("algo.training.lr", 0.0003, 0.001),
        ("space", {"lr": ["loguniform", 1e-5, 1e-2]}, {"lr": ["loguniform", 1e-6, 1e-2]}),
        ("constraints.train_s", None, "< 60"),
        ("constraints.train_s", "< 60", "< 90"),
        ("objective.second.key", None, "train_s"),
    ],
)
def test_another_setting_is_refused_by_its_key(composed, key, old, new):
    with pytest.raises(StudyError) as refused:
        check(composed, known={key: old}, **{key: new})
    wrong = key if key != "space" else "space.lr"
    assert refused.value.key == wrong
    assert refused.value.what.count(f"{wrong}=") == 2, "the value that was typed, and the sweep's"
    assert "sweeps.resume sweep=mine" in refused.value.fix


def test_a_sweep_of_before_a_key_is_the_same_command(composed):
    """As long as the key says what the sweep did without it."""
    older = read_stored(composed)
    del older["constraints"], older["objective"]["second"]
    assert check_changes("mine", to_typed(RunConfig, older), settings_of(composed)) is False
    with pytest.raises(StudyError) as refused:
        check_changes("mine", to_typed(RunConfig, older), settings_of(composed, constraints__train_s="< 60"))
    assert refused.value.key == "constraints.train_s"


def test_of_several_differences_the_others_are_named(composed):
    with pytest.raises(StudyError) as refused:
        check(composed, **{"replicates": 2, "seed": 1})
    assert refused.value.key == "replicates"
    assert re.search(r"\bseed\b", refused.value.what)


@pytest.mark.parametrize(("key", "old", "new"), [("budget.trials", 6, 3), ("certify.seeds", 5, 2)])
def test_a_resume_with_a_smaller_budget_is_refused(composed, key, old, new):
    before = read_stored(composed, **{key: old})
    with pytest.raises(StudyError) as refused:
        check_budgets("mine", to_typed(RunConfig, before), settings_of(composed, **{key: new}))
    assert refused.value.key == key
    assert f"{key}={old}" in refused.value.what


@pytest.mark.parametrize(
    ("key", "old", "new"),
    [
        ("budget.trials", 6, 6),
        ("budget.trials", 6, 9),
        ("budget.wall_time_s", 60, 5),
        ("budget.total_env_steps", None, 900_000),
    ],
)
def test_a_resume_may_ask_for_more_or_set_a_first_limit(composed, key, old, new):
    before = read_stored(composed, **{key: old})
    check_budgets("mine", to_typed(RunConfig, before), settings_of(composed, **{key: new}))
