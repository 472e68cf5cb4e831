"""A sweep opens the trackers that its settings name, and refuses those that cannot work."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from composing import compose

from rltune.config.schema import TrackingConfig
from rltune.config.validation import parse_config
from rltune.driver.trackers import check_trackers
from rltune.errors import ConfigError
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


def check(*words: str) -> None:
    config = parse_config(compose("run", *words))
    check_trackers(config.tracking, config.notify)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A user's module ``own_tracker``."""
    made = ModuleType("own_tracker")
    made.Mine = type("Mine", (Tracker,), {})  # type: ignore[attr-defined]
    made.Same = type("Same", (Tracker,), {"name": "Mine"})  # type: ignore[attr-defined]
    made.Unchecked, made.Unmade = Unchecked, Unmade  # type: ignore[attr-defined]
    made.Other = dict  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "own_tracker", made)
    return made


@pytest.mark.parametrize(
    ("words", "kinds"),
    [
        (("tracking.kinds=[]",), []),
        (("tracking.kinds=[mlflow,tensorboard]",), ["MLflowTracker", "TensorBoardTracker"]),
        (("tracking=local",), ["MLflowTracker"]),
        (("tracking.kinds=[own_tracker:Mine]", "notify=http://h"), ["Mine", "NotificationTracker"]),
    ],
)
def test_each_tracker_of_the_settings_is_opened(
    open_mine: Callable[..., Any], module: ModuleType, words: tuple[str, ...], kinds: list[str]
) -> None:
    with open_mine("certify=off", *words) as sweep:
        assert [type(feed.tracker).__name__ for feed in sweep.tracker._feeds] == kinds
        shown = {(feed.tracker.sweep.name, feed.tracker.sweep.params["algo"]) for feed in sweep.tracker._feeds}
        assert shown <= {("mine", "ppo")}
        sweep.tracker.abandon()  # None of them has to show this sweep.


@pytest.mark.parametrize(
    ("kinds", "named"),
    [
        ("mlfow", "mlflow"),
        ("own_tracker:Other", "is no tracker"),
        ("own_tracker:nothing", "cannot be imported"),
        ("no_such_module:Mine", "cannot be imported"),
        ("os:system", "is no tracker"),
        ("tensorboard,tensorboard", "TensorBoard"),
        ("own_tracker:Mine,own_tracker:Same", "Mine"),
        ("own_tracker:Unchecked", "boom"),
    ],
)
def test_a_tracker_that_cannot_work_is_refused(kinds: str, named: str, module: ModuleType) -> None:
    with pytest.raises(ConfigError) as refused:
        check(f"tracking.kinds=[{kinds}]")
    assert refused.value.key == "tracking.kinds"
    assert named in f"{refused.value.what} {refused.value.fix}"


@pytest.mark.parametrize(
    ("words", "key"), [("notify=slack://hook", "notify"), ("tracking.uri=/tmp/runs", "tracking.uri")]
)
def test_each_tracker_checks_the_settings(words: str, key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check(words)
    assert refused.value.key == key
    assert refused.value.fix


def test_a_tracker_that_cannot_be_made_is_named(open_mine: Callable[..., Any], module: ModuleType) -> None:
    with pytest.raises(ConfigError) as refused, open_mine("tracking.kinds=[own_tracker:Unmade]"):
        pass
    assert refused.value.key == "tracking.kinds"
    assert "Unmade" in refused.value.what
