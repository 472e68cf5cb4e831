"""A user's module with trackers of all kinds, some of which cannot work."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from rltune.config.schema import TrackingConfig
from rltune.tracking.tracker import SweepDescription, Tracker


class Unchecked(Tracker):
    """A tracker whose check has a bug."""

    @classmethod
    def check(cls, tracking: TrackingConfig) -> None:
        raise ValueError("boom")


class Unmade(Tracker):
    """A tracker that cannot be made."""

    def __init__(self, sweep: SweepDescription) -> None:
        raise ValueError("boom")


def add_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a user's module ``own_tracker`` be importable."""
    made = ModuleType("own_tracker")
    made.Mine = type("Mine", (Tracker,), {})  # type: ignore[attr-defined]
    made.Same = type("Same", (Tracker,), {"name": "Mine"})  # type: ignore[attr-defined]
    made.Unchecked, made.Unmade = Unchecked, Unmade  # type: ignore[attr-defined]
    made.Other = dict  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "own_tracker", made)
