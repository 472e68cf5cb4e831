"""Format numbers, durations, values and tables for a person."""

from __future__ import annotations

import functools
import getpass
import importlib.util
import math
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path, PurePath
from typing import Any

STATE_WORDS = {
    "WAITING": "waiting",
    "RUNNING": "running",
    "COMPLETE": "complete",
    "PRUNED": "stopped",
    "FAIL": "failed",
    "INTERRUPTED": "interrupted",
}
"""The one word for each state that a person reads: the ledger's states, and two of trials that no worker trains."""


def spell_command(rest: str) -> str:
    """Return the text of an rltune command for the user to type, ``rltune ...`` or ``python -m sweeps...``.

    Args:
        rest: Its name and what follows, such as ``resume sweep=first``.
    """
    return find_start() + rest


def find_program(command: str) -> str:
    """Return a command with the path of its program if needed, so that it runs without an active environment."""
    program, _, rest = command.partition(" ")
    folder = Path(sys.executable).parent
    if shutil.which(program) != str(folder / program) and (folder / program).exists():
        program = shlex.quote(min(str(folder / program), os.path.relpath(folder / program), key=len))
    return f"{program} {rest}"


_given_start: list[str] = []


def use_start(start: str) -> None:
    """Spell commands as another process does, by what `find_start` has returned there, or for readers elsewhere."""
    _given_start[:] = [start]


def find_start() -> str:
    """Return how commands begin here: as this one did; in a notebook or script, as can be typed in a shell."""
    return _given_start[0] if _given_start else find_program(_find_start())


@functools.cache
def _find_start() -> str:
    main = sys.modules["__main__"]
    module = getattr(getattr(main, "__spec__", None), "name", "")
    if module == "rltune.__main__":
        return "python -m rltune "
    if module.startswith("sweeps."):
        return "python -m sweeps."
    if Path(getattr(main, "__file__", None) or "").name == "rltune":
        return "rltune "
    spec = importlib.util.find_spec("sweeps")  # A project of the user's may have a package named sweeps, too.
    ours = Path(__file__).parents[2] / "sweeps" / "__init__.py"
    return "python -m sweeps." if spec and spec.origin == str(ours) else "rltune "


def format_value(value: Any) -> str:
    """Format a parameter's value with three significant digits: ``0.0123``, ``1e-4``, ``0.9987``, ``[64,64]``."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, (list, tuple)):
        return f"[{','.join(format_value(item) for item in value)}]"
    if not isinstance(value, float) or not math.isfinite(value):
        return str(value)
    # Discounts near 1 differ in their distance from 1, so the digits of this distance are shown.
    if 0.9 < value < 1:
        return f"{value:.{min(16, math.ceil(-math.log10(1 - value)) + 1)}f}".rstrip("0")
    if value and not 1e-3 <= abs(value) < 1e6:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:.0f}"


def format_params(params: Mapping[str, Any]) -> str:
    """Format parameters as users type them: ``lr=0.0012 gamma=0.99``."""
    return " ".join(f"{name}={format_value(value)}" for name, value in params.items())


def format_objective(value: float | None) -> str:
    """Format a return: ``-157.3``, ``9,535``, ``2.92e26``; None and NaN, as before the first episode ends: ``-``."""
    if value is None or math.isnan(value):
        return "-"
    if value and not 1e-3 <= abs(value) < 1e6:
        return format_value(float(value))
    return f"{value:,.0f}" if abs(value) >= 999.95 else f"{value + 0.0:.4g}"


def format_interval(row: Mapping[str, Any]) -> str:
    """Format an interval, as in ``12 to 23.5``; ``-`` if it is unknown."""
    return "-" if row["low"] is None else f"{format_objective(row['low'])} to {format_objective(row['high'])}"


def format_difference(difference: float | None) -> str:
    """Format a difference with its sign, as in ``+17.8``; ``-`` if it is unknown."""
    return "-" if difference is None else f"{'+' * (difference > 0)}{format_objective(difference)}"


def format_wins(num_wins: int, num_pairs: int, wins_needed: int | None, num_ties: int = 0) -> str:
    """Format how many pairs were won and have to be, as in ``3 of 5, 1 tie, 5 needed``; ``-`` without pairs."""
    ties = f", {format_number(num_ties, 'tie')}" if num_ties else ""
    needed = f", {wins_needed} needed" if wins_needed else ""
    return f"{num_wins} of {num_pairs}{ties}{needed}" if num_pairs else "-"


def format_state(state: str, is_live: bool) -> str:
    """Return the word that users see for a trial's state in the ledger.

    Args:
        state: As the ledger has it, where RUNNING also is a trial that was interrupted.
        is_live: Whether its sweep is running.
    """
    return STATE_WORDS["INTERRUPTED" if state == "RUNNING" and not is_live else state]


def format_count(value: float) -> str:
    """Format a number of environment steps: ``8,214``, ``45.2k``, ``1.2M``."""
    if value < 9_999.5:
        return f"{value:,.0f}"
    for unit, size in (("k", 1e3), ("M", 1e6), ("G", 1e9)):
        if value < 999.5 * size:
            return f"{value / size:.3g}{unit}"
    return f"{value / 1e9:,.0f}G"


def format_number(number: float, name: str) -> str:
    """Format a number with its noun in singular or plural: ``1 trial``, ``2 trials``, ``1.5 slots``."""
    return f"{number:,.10g} {name}{'' if number == 1 else 's'}"


def format_duration(seconds: float) -> str:
    """Format a duration in seconds with units: ``45 s``, ``3 min 05 s``, ``1 h 12 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def name_user() -> str:
    """Return this process's user name, or the user's number, as in containers without names."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return str(os.getuid())


def fit_words(line: str, width: int) -> str:
    """Shorten a line to a width with an ellipsis for whole words, because a number that is cut reads as another one."""
    if len(line) <= width:
        return line
    kept = line[: max(0, width - 1)].rpartition(" ")[0].rstrip()
    return f"{kept} …" if kept else "…"[:width]


def first_line(reason: str | None) -> str:
    """Return the first line of a failure's reason, to which a traceback may be attached."""
    lines = (reason or "").strip().splitlines()
    return lines[0].strip() if lines else "no reason was recorded"


def classify_failure(reason: str) -> str:
    """Remove numbers such as pids and addresses from a failure's reason, so that failures of one kind are equal."""
    return re.sub(r"\b(?=\w*\d)(0x[0-9a-f]+|[0-9a-f]{8,})\b|-?\d+(\.\d+)?(e[+-]?\d+)?", "#", reason)


def format_clock(seconds: float) -> str:
    """Format elapsed seconds as a clock: ``02:15`` or ``1:02:15``."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes:02d}:{rest:02d}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


@dataclass(frozen=True)
class TextTable:
    """A table of strings, to be shown in terminals, web pages and Markdown.

    Attributes:
        headings: The name of each column.
        rows: The cells of each row, one for each column.
        best: The number of the row that stands out; None if no row does.
    """

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    best: int | None = None

    def to_markdown(self) -> str:
        """Return the table in Markdown."""
        lines = [self.headings, tuple("---" for _ in self.headings), *self.rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def flatten_settings(settings: Any, joint: str = ".", key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value of nested settings with its dotted key; lists count as values, empty mappings are skipped."""
    if not isinstance(settings, Mapping):
        yield key, settings
        return
    for name, value in settings.items():
        yield from flatten_settings(value, joint, f"{key}{joint}{name}" if key else str(name))


def to_plain(value: Any) -> Any:
    """Convert a value to dictionaries, lists, strings, numbers, booleans and None, as JSON needs."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): to_plain(nested) for key, nested in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return to_plain(asdict(value))
    if hasattr(value, "_asdict"):
        return to_plain(value._asdict())
    if isinstance(value, list | tuple | set | frozenset):
        return [to_plain(part) for part in value]
    # NumPy's scalars and arrays have a method `tolist`.
    if hasattr(value, "tolist"):
        return to_plain(value.tolist())
    return str(value)
