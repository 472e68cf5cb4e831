"""Trackers that cannot work are refused before a sweep starts."""

from __future__ import annotations

import pytest
from composing import compose
from own_trackers import add_module

from rltune.config.validation import parse_config
from rltune.errors import ConfigError
from rltune.tracking.kinds import check_trackers


def check(*words: str) -> None:
    config = parse_config(compose("run", *words))
    check_trackers(config.tracking, config.notify)


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
def test_a_tracker_that_cannot_work_is_refused(kinds: str, named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    add_module(monkeypatch)
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
