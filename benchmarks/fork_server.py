"""What the fork server is worth: sweeps whose workers are forked beside sweeps whose workers Ray starts.

    python -m benchmarks.fork_server [--rounds 5]

Five minutes on two quiet cores. Each round runs the same sweep of 8 trials of PPO on CartPole both ways, one after the
other: seconds of the whole command, seconds until the first report, and memory. ``trial_mb`` is the largest memory that
a trial's process had of its own, and ``all_mb`` what the command and all its processes had together, the fork server
and Ray among them. A page that processes share counts for each of them in part (proportional set size).
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from benchmarks.commands import make_environment
from benchmarks.records import ROOT, compare_rounds, make_record, spread_of, write_record
from rltune.ledger.storage import open_ledger

WORK = ROOT / "outputs" / "fork-server"
WORDS = ("algo=ppo", "env=cartpole", "budget.trials=8", "budget.env_steps=20000", "certify=off", "name=sweep")
IMPORTS = "import sys; from rltune.cluster import fork_server; from rltune.driver import run"
WAYS = {
    "forked": "",
    "started by Ray": "fork_server.begin_fork_server = lambda: None; run.can_fork_workers = lambda cluster: False",
}
MAIN = "from rltune.cli.application.program import main; sys.exit(main())"
NUMBERS = {
    "wall_s": "whole command, s", "first_report_s": "until the first report, s", "trial_mb": "a trial's process, MB",
    "all_mb": "all processes, MB",
}  # fmt: skip
PAUSE_S = 0.5


def list_processes(root: psutil.Process) -> Iterator[tuple[bool, float]]:
    """List the megabytes of a process and of those below it, and whether each of them runs a trial."""
    for process in (root, *root.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            yield "Trial" in " ".join(process.cmdline()[:1]), process.memory_full_info().pss / 1e6


def run_sweep(way: str) -> dict[str, float]:
    """Run the sweep in one of the `WAYS` and measure it."""
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    began, trial_mb, all_mb = time.time(), 0.0, 0.0
    command = [sys.executable, "-c", "\n".join((IMPORTS, WAYS[way], MAIN)), "run", *WORDS]
    with (WORK / "output.txt").open("w") as output:
        running = subprocess.Popen(command, cwd=WORK, env=make_environment(), stdout=output, stderr=output)
        while running.poll() is None:
            with contextlib.suppress(psutil.Error):
                processes = list(list_processes(psutil.Process(running.pid)))
                trial_mb = max([trial_mb, *(size for runs_trial, size in processes if runs_trial)])
                all_mb = max(all_mb, sum(size for _, size in processes))
            time.sleep(PAUSE_S)
    wall_s = time.time() - began
    if running.returncode:
        raise RuntimeError((WORK / "output.txt").read_text()[-2000:])
    with contextlib.closing(open_ledger(WORK / "outputs" / "sweep")) as ledger:
        first = min(ledger.trials.read_reports(trial.number)[0].time_s for trial in ledger.trials.records())
    return dict(zip(NUMBERS, (wall_s, first - began, trial_mb, all_mb), strict=True))


def table(record: dict[str, Any]) -> str:
    """Return the record as Markdown: medians, and the ratio of each round with least and greatest."""
    forked, started = (record["results"][way] for way in WAYS)
    rows = [
        f"| {words} | {spread_of(forked[name]).median:.4g} | {spread_of(started[name]).median:.4g} "
        f"| {compare_rounds(started[name], forked[name])} |"
        for name, words in NUMBERS.items()
    ]
    return "\n".join([f"| a sweep of 8 trials | {' | '.join(WAYS)} | ratio |", "|---|---:|---:|---:|", *rows])


def main() -> None:
    """Measure, print, and keep the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="where the record goes; none: benchmarks/results/fork_server.json")
    arguments = parser.parse_args()
    results: dict[str, dict[str, list[float]]] = {way: {name: [] for name in NUMBERS} for way in WAYS}
    for _ in range(arguments.rounds):
        for way, values in results.items():
            for name, value in run_sweep(way).items():
                values[name].append(round(value, 2))
    record = make_record("fork_server", arguments.rounds, results)
    print(table(record))
    write_record(record, arguments.json)


if __name__ == "__main__":
    main()
