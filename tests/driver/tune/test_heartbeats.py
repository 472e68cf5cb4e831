"""What the driver knows of trials between their reports."""

from __future__ import annotations

import pytest

from rltune.driver.tune import heartbeats
from rltune.driver.tune.heartbeats import Heartbeats


def test_trials_are_followed_while_they_are_up(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = {"trials/0": 120, "certify/0": 7}
    monkeypatch.setattr(
        heartbeats,
        "read_steps",
        lambda sweep, folders: {folder: steps[folder] for folder in folders if folder in steps},
    )
    live = {*steps, "trials/1"}
    followed = Heartbeats("/sweeps/a", live)
    followed.update()
    assert followed.read() == {"trials/0": 120, "certify/0": 7}
    steps["trials/0"] = 130
    followed.update()
    assert followed.read() == {"trials/0": 130, "certify/0": 7}
    live.discard("trials/0")
    assert followed.read() == {"certify/0": 7}
