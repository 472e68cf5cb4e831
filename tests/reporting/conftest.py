"""What tests of the console, its closing page and the tables share."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from consoles import Clock

from rltune.reporting.console import Console


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make(clock: Clock, monkeypatch: pytest.MonkeyPatch):
    """A console on a clock that stands still, and what it has written."""
    monkeypatch.setattr(Console, "clock", staticmethod(clock))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    for name in ("FORCE_COLOR", "TTY_INTERACTIVE", "TTY_COMPATIBLE", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)

    def build(stream: io.StringIO | None = None, **settings: Any) -> tuple[Console, io.StringIO]:
        stream = stream if stream is not None else io.StringIO()
        given = {"name": "cartpole-ppo", "num_trials": 8, "env_steps": 100_000, "slots": 2, **settings}
        return Console(stream=stream, **given), stream

    return build


@pytest.fixture
def golden() -> Callable[[str, str], None]:
    """Compare a text with ``golden/<name>.txt``; ``RLTUNE_UPDATE_GOLDEN=1`` writes the file anew."""

    def compare(name: str, text: str) -> None:
        file = Path(__file__).parent / "golden" / f"{name}.txt"
        lines = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
        if os.environ.get("RLTUNE_UPDATE_GOLDEN"):
            file.parent.mkdir(exist_ok=True)
            file.write_text(lines)
        assert lines == file.read_text()

    return compare
