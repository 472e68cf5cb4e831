"""What the driver knows of trials between their reports."""

from __future__ import annotations

import time

import pytest

from rltune.pipeline.tune import heartbeats
from rltune.pipeline.tune.heartbeats import Heartbeats


def read_soon(beats: Heartbeats, wanted: dict[str, int]) -> bool:
    deadline = time.monotonic() + 60
    while beats.read() != wanted and time.monotonic() < deadline:
        time.sleep(0.01)
    return beats.read() == wanted


def test_trials_are_followed_while_they_are_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after the head was away for a while."""
    known = {"trials/0": 120, "certify/0": 7}
    away = [True]

    def read_steps(sweep: str, trial_dirs: list[str]) -> dict[str, int]:
        if away and away.pop():
            raise ConnectionError("the head is away")
        assert sweep == "/sweeps/a"
        return {own: known[own] for own in trial_dirs if own in known}

    monkeypatch.setattr(heartbeats, "read_steps", read_steps)
    monkeypatch.setattr(heartbeats, "LOOK_S", 0.01)
    live = {*known, "trials/1"}
    with Heartbeats("/sweeps/a", live) as beats:
        assert read_soon(beats, {"trials/0": 120, "certify/0": 7})
        known["trials/0"] = 130
        assert read_soon(beats, {"trials/0": 130, "certify/0": 7})
        live.discard("trials/0")
        assert beats.read() == {"certify/0": 7}
