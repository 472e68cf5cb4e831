"""A bounded storm over toy sweeps: what is lost, doubled or left behind. ``make soak``, or this with options.

    python -m benchmarks.soak [--quick] [--only kills,signals,...] [--seed 7] [--down-s 40]

Each part runs real drivers, real Ray, ledger and MLflow; only the training is pretended. Kills and outages meet
ledgers in PostgreSQL too, where it is installed. `soak_books.py` counts what is left. All of it takes about 25 minutes
on two cores. Prints each part's figures; a run of all parts writes benchmarks/results/soak.json.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE.parent / "tests" / "support")]

from benchmarks import soak_cluster, soak_real, soak_storm, soak_tracking  # noqa: E402
from benchmarks.records import make_record, write_record  # noqa: E402


def parts(quick: bool, seed: int, down_s: float) -> dict[str, Callable[[Path], dict[str, Any]]]:
    """Every part by its name; ``quick`` takes fewer and shorter ones."""
    kills, signals = (4, 4) if quick else (20, 20)
    down_s = min(down_s, 8.0) if quick else down_s
    return {
        "kills": lambda folder: soak_storm.ours(folder, 12, kills, 0.1, seed),
        "kills_postgres": lambda folder: soak_storm.ours_in_postgres(folder, 12, kills, 0.1, seed),
        "signals": lambda folder: soak_storm.signals(folder, signals, seed),
        "tracking": lambda folder: soak_tracking.outages(folder, down_s),
        "postgres": lambda folder: soak_tracking.together(folder, 2 if quick else 4),
        "certification": lambda folder: soak_real.certification(folder, 3 if quick else 6, seed),
        "remote": lambda folder: soak_real.remote(folder, not quick),
        "cluster": lambda folder: soak_cluster.storms(folder, 1 if quick else 5, 8 if quick else 24),
        "full_disk": soak_real.full_disk,
        "memory_limit": soak_real.memory_limit,
    }


def main() -> None:
    """Parse, run, print, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="some of each, for a look")
    parser.add_argument("--only", default="", help="comma-separated parts")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--down-s", type=float, default=40.0, help="seconds of each tracking outage")
    parser.add_argument("--keep", action="store_true", help="leave the folders behind")
    parser.add_argument("--json", type=Path, help="where the record goes; a whole run has its place")
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it, and so would drivers
    known = parts(arguments.quick, arguments.seed, arguments.down_s)
    results: dict[str, Any] = {}
    is_whole = not (arguments.quick or arguments.only)
    for name in arguments.only.split(",") if arguments.only else known:
        folder = Path(tempfile.mkdtemp(prefix=f"soak-{name}-"))
        began = time.monotonic()
        try:
            found = known[name](folder / "work")
        except Exception as error:  # the other parts are wanted all the same
            traceback.print_exc()
            found = {"failed": f"{type(error).__name__}: {error}"}
        found["took_s"] = round(time.monotonic() - began)
        results[name] = found
        print(f"== {name}, {os.cpu_count()} cores\n{json.dumps(found, indent=1)}", flush=True)
        if arguments.json or is_whole:
            write_record(make_record("soak", 1, results), arguments.json)
        if not arguments.keep:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
