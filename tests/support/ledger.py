"""An empty ledger for tests, and trials in it: making its tables takes three times as long as copying them."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from pathlib import Path
from typing import Any

from rltune.search.space import parse_space
from rltune.study.study import Study

SPACE = parse_space(
    {"lr": ["loguniform", 1e-5, 1e-2], "batch": ["pow2", 64, 256], "gamma": ["one_minus_loguniform", 0.01, 0.1]}
)


@functools.cache
def _template() -> Path:
    folder = tempfile.mkdtemp(prefix="rltune-ledger-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(folder) / "study.db"
    Study(f"sqlite:///{path}", "template", create=True).close()
    return path


def empty(folder: Path) -> str:
    """Put a database without sweeps into a folder; its storage URL."""
    shutil.copy(_template(), folder / "study.db")
    return f"sqlite:///{folder / 'study.db'}"


def ask(study: Study, **fixed: Any) -> tuple[int, dict[str, Any]]:
    """Begin a trial of `SPACE`; its number and its params."""
    number, raw = study.ask(SPACE.draw, SPACE.encode(fixed))
    params = SPACE.decode(raw)
    study.note(number, params=params, seeds=[number + 100])
    return number, params
