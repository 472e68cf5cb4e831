"""A sweep opens the trackers that its settings name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from own_trackers import add_module

from rltune.errors import ConfigError


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
    open_mine: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], kinds: list[str]
) -> None:
    add_module(monkeypatch)
    with open_mine("certify=off", *words) as sweep:
        assert [type(feed.tracker).__name__ for feed in sweep.tracker._feeds] == kinds
        shown = {(feed.tracker.sweep.name, feed.tracker.sweep.params["algo"]) for feed in sweep.tracker._feeds}
        assert shown <= {("mine", "ppo")}
        sweep.tracker.abandon()  # None of them has to show this sweep.


def test_a_tracker_that_cannot_be_made_is_named(open_mine: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    add_module(monkeypatch)
    with pytest.raises(ConfigError) as refused, open_mine("tracking.kinds=[own_tracker:Unmade]"):
        pass
    assert refused.value.key == "tracking.kinds"
    assert "Unmade" in refused.value.what
