"""Consoles on a clock that stands still, what they have drawn, and a page for them to end with."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

from rltune.reporting.closing_page import ClosingPage, TrialView


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def screen(stream: io.StringIO) -> str:
    """The text last drawn on a terminal, without its control sequences."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "\x00", stream.getvalue())
    return re.sub(r"\x00", "", plain)


def make_page(folder: Path, **changes: Any) -> ClosingPage:
    top = [TrialView(n, "COMPLETE", {"lr": 10.0**-n}, [500.0 - n], 100_000) for n in range(1, 8)]
    given: dict[str, Any] = {
        "name": "cartpole-ppo",
        "status": "complete",
        "counts": {"total": 24, "complete": 7, "pruned": 15, "failed": 2},
        "top": top,
        "cost": {
            "env_steps": 1_000_000,
            "env_steps_saved": 1_400_000,
            "train_s": 200.0,
            "wall_s": 125.0,
            "slots": 2,
            "efficiency": 0.8,
        },
        "folder": folder,
    }
    return ClosingPage(**{**given, **changes})
