"""A user's own tracker: a class of a module, and nothing else."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from rltune.errors import ConfigError
from rltune.tracking.tracker import Tracker, import_tracker


@pytest.fixture
def module(monkeypatch):
    """A user's module ``own_tracker``."""
    made = ModuleType("own_tracker")
    made.Mine = type("Mine", (Tracker,), {"name": "mine"})
    made.Other = dict
    monkeypatch.setitem(sys.modules, "own_tracker", made)
    return made


def test_a_class_that_is_a_tracker_is_imported(module):
    assert import_tracker("own_tracker:Mine") is module.Mine


@pytest.mark.parametrize("target", ["own_tracker:Other", "own_tracker:nothing", "no_such_module:Mine", "os:system"])
def test_what_is_no_tracker_is_refused(target, module):
    with pytest.raises(ConfigError) as refused:
        import_tracker(target)
    assert (refused.value.key, refused.value.exit_code) == ("tracking.kind", 2)
