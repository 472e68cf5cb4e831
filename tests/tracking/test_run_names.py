"""Which MLflow run stands below which."""

from __future__ import annotations

import pytest

from rltune.tracking.run_names import find_parent_key, make_child_name


@pytest.mark.parametrize(
    ("key", "parent"),
    [
        (7, None),
        ("trial-007-seed-2", 7),
        ("trial-1234-seed-10", 1234),
        ("control-seed-2", "control"),
        ("control", None),
    ],
)
def test_a_certified_run_stands_below_its_configuration(key, parent):
    assert find_parent_key(key) == parent


@pytest.mark.parametrize(("key", "name"), [(7, "trial-007"), (1234, "trial-1234"), ("control", "control")])
def test_a_trial_is_named_by_its_number(key, name):
    assert make_child_name(key) == name
