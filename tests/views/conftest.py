"""What tests of the console, its closing page and the tables share."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rltune.views.console import Console
from tests.views.consoles import Clock, DrawnSweep


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def one_terminal(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that stands still, and one terminal of 80 columns whatever the tests run in."""
    monkeypatch.setattr(Console, "clock", staticmethod(clock))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    for name in ("FORCE_COLOR", "TTY_INTERACTIVE", "TTY_COMPATIBLE", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def draw(one_terminal: None, clock: Clock, tmp_path: Path) -> Iterator[Callable[..., DrawnSweep]]:
    """A sweep and the console that draws it, from settings; those of the budget are keywords."""
    drawn: list[DrawnSweep] = []

    def build(stream: io.StringIO | None = None, settings: dict[str, Any] | None = None, **budget: Any) -> DrawnSweep:
        folder = tmp_path / f"sweep-{len(drawn)}"
        folder.mkdir()
        drawn.append(DrawnSweep(folder, clock, io.StringIO() if stream is None else stream, settings or {}, **budget))
        return drawn[-1]

    yield build
    for sweep in drawn:
        sweep.console.close()
        sweep.ledger.close()


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
