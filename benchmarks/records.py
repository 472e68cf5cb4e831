"""Records of measurements, one JSON file each under benchmarks/results/, and the arithmetic over their rounds.

A record holds what was measured and nothing that is computed from it: the tables are made from it by
``python -m benchmarks.tables``. It says what is needed to judge it, and names neither a host nor a path.
"""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
KEYS = ("benchmark", "date", "commit", "command", "machine", "versions", "rounds", "results")
MEASURED = ("ray", "torch", "gymnasium", "optuna", "mlflow", "numpy")
VECTORS = {"avx512f": "AVX-512", "avx2": "AVX2"}
"""Names of vector instructions by Linux's flags, the widest first: they decide how fast matrix products are."""
SOURCES = ("src", "conf", "sweeps", "benchmarks/*.py")  # a change elsewhere changes no figure


@dataclass(frozen=True)
class Spread:
    """Rounds in three numbers.

    Attributes:
        median: Of the rounds.
        low: The least of them.
        high: The greatest of them.
    """

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        """Return the median, and beside it what the rounds lie between."""
        return f"{show(self.median)} ({show(self.low)} to {show(self.high)})"


def show(ratio: float) -> str:
    """Write a ratio with the two digits that a noisy machine allows: 0.87, 3.9, 32."""
    return f"{ratio:.2f}" if ratio < 1 else f"{ratio:.1f}" if ratio < 9.95 else f"{ratio:,.0f}"


def spread_of(values: Sequence[float]) -> Spread:
    """Return median, least and greatest of the rounds.

    Raises:
        ValueError: There is none.
    """
    if not values:
        raise ValueError("no rounds")
    return Spread(statistics.median(values), min(values), max(values))


def compare_rounds(above: Sequence[float], below: Sequence[float]) -> Spread:
    """Divide round by round, so that a slow minute of the machine is in both sides of a ratio.

    Raises:
        ValueError: The sides have different numbers of rounds, or none.
    """
    return spread_of([a / b for a, b in zip(above, below, strict=True)])


def make_record(
    benchmark: str, rounds: int, results: dict[str, Any] | list[Any], versions: dict[str, str] | None = None
) -> Any:
    """Put results together with what is needed to judge them.

    Args:
        benchmark: The module's name.
        rounds: How often each contender was measured.
        results: What was measured; its module reads it again.
        versions: Of packages in other environments, by name.
    """
    return {
        "benchmark": benchmark,
        "date": time.strftime("%Y-%m-%d"),
        "commit": describe_commit(),
        "command": describe_command(benchmark, sys.argv[1:]),
        "machine": {"cores": os.cpu_count(), "cpu": describe_cpu(), "system": platform.system()},
        "versions": {
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in MEASURED},
            **(versions or {}),
        },
        "rounds": rounds,
        "results": results,
    }


def describe_command(benchmark: str, words: Sequence[str]) -> str:
    """Return what repeats the measurement, without folders: where the record was written is left out."""
    typed = re.sub(r" --json[= ]\S+", "", " ".join(["python", "-m", f"benchmarks.{benchmark}", *words]))
    return re.sub(r" (--data|--portfolio-from)[= ]\S+", r" \1 FOLDER", typed)


def describe_commit() -> str:
    """Return the commit that is measured, and whether the sources differ from it."""

    def ask(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    return ask("rev-parse", "--short", "HEAD") + (" with changes" if ask("status", "-s", "--", *SOURCES) else "")


def describe_cpu() -> str:
    """Return the processor's model and its widest vector instructions, or its kind where the system does not tell."""
    info = Path("/proc/cpuinfo")
    lines = [line.partition(":") for line in info.read_text().splitlines()] if info.exists() else []
    values = {name.strip(): value.strip() for name, _, value in lines}
    if "model name" not in values:
        return platform.machine()
    vectors = [words for flag, words in VECTORS.items() if flag in values.get("flags", "").split()]
    return ", ".join([values["model name"], *vectors[:1]])


def read_cpu_times() -> list[int]:
    """Return what all processors have done so far, in ticks by Linux's kinds of work; empty on other systems."""
    stat = Path("/proc/stat")
    return [int(ticks) for ticks in stat.read_text().partition("\n")[0].split()[1:]] if stat.exists() else []


def describe_load(since: Sequence[int]) -> str:
    """Describe the other work on the machine since `read_cpu_times`, for a record's ``note``; empty without any."""
    times, load, cores = read_cpu_times(), os.getloadavg()[1], os.cpu_count() or 1
    if load <= cores or not times:
        return ""
    spent = [now - before for now, before in zip(times, since, strict=True)]
    stolen = spent[7] / max(1, sum(spent))  # The eighth number: what a hypervisor gave to other machines.
    return f"the machine was busy with other work: load average {load:.0f}, {stolen:.1%} of its time stolen"


def write_record(record: dict[str, Any], path: Path | None = None) -> None:
    """Write a record to its place under benchmarks/results/, or to ``path``."""
    path = path or RESULTS / f"{record['benchmark']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")


def read_record(benchmark: str, folder: Path = RESULTS) -> dict[str, Any] | None:
    """Read a benchmark's record; None where it was never measured.

    Raises:
        ValueError: The file lacks what a record has.
    """
    path = folder / f"{benchmark}.json"
    if not path.is_file():
        return None
    record: dict[str, Any] = json.loads(path.read_text())
    if missing := [key for key in KEYS if key not in record]:
        raise ValueError(f"{path.name} lacks {', '.join(missing)}: write it by benchmarks.records.make_record")
    return record
