"""What a cluster's slots are used for: a sweep of trials that only sleep, on nodes of one CPU each.

    python -m benchmarks.cluster [--nodes 3] [--trials 24] [--sleep 10] [--rounds 1]

About 2 minutes; one with --quick, which keeps no record. Starts a head without CPUs and the nodes by ``ray start`` on
this machine, and joins them with a real command: its checks, its imports and those of each worker are in it. Efficiency
is the sum of the sleep over slots x wall time, from typing the command to its end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.commands import make_environment
from benchmarks.records import ROOT, make_record, spread_of, write_record
from rltune.cli import end_command

REPORTS, STEP = 10, 100  # of a trial; environment steps between two
SECONDS = "BENCH_SLEEP_S"  # names the environment variable with the seconds that a worker sleeps for a step
OVERRIDES = (
    "cluster=address", "scheduler=none", "searcher=random", "warm_start=[]", "certify=off", "certify.top=0",
    "tracking=off", "report=false", "name=cluster", f"budget.env_steps={REPORTS * STEP}", f"budget.reports={REPORTS}",
    "checkpoint.every_s=1e9",
)  # fmt: skip


@contextlib.contextmanager
def start_nodes(num_nodes: int, sleep_s: float) -> Iterator[dict[str, str]]:
    """Start a head without CPUs and nodes of one CPU; end them all afterwards.

    Yields:
        The environment for who joins them; ``RAY_ADDRESS`` is the head's.
    """
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    from joined import ray_head, ray_node

    settings = {"RAY_AUTH_MODE": "disabled", "PYTHONPATH": make_environment()["PYTHONPATH"]}
    settings[SECONDS] = str(sleep_s / REPORTS)
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "TUNE_"))}
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(ray_head(0, **settings))
        for _ in range(num_nodes):
            words = (f"--address={address}", "--num-cpus=1", "--dashboard-agent-listen-port=0")
            stack.enter_context(ray_node(words, settings))
        yield {**plain, **settings, "RAY_ADDRESS": address}


def run_one(trials: int) -> None:
    """Run the sweep in this process; print when its trials trained."""
    from benchmarks.driver import request
    from benchmarks.sleeping import SleepingTrial
    from rltune.driver.run import run_sweep
    from rltune.ledger.storage import open_ledger

    settings = request(*OVERRIDES, f"cluster.address={os.environ['RAY_ADDRESS']}", f"budget.trials={trials}")
    outcome = run_sweep(settings, trainable=SleepingTrial)
    assert outcome.trials["complete"] == trials, outcome.trials
    ledger = open_ledger(outcome.folder)
    times = [[report.time_s for report in ledger.trials.read_reports(number)] for number in range(trials)]
    ledger.close()
    slots = outcome.cost["slots"]
    print(json.dumps({"first": min(one[0] for one in times), "last": max(one[-1] for one in times), "slots": slots}))


def measure(env: dict[str, str], trials: int, sleep_s: float, num_nodes: int) -> dict[str, float]:
    """Type the command, and say where its time went.

    Returns:
        Seconds before the first trial trained, while any did, after the last; slots as the sweep counted them.
    """
    typed = [sys.executable, "-m", "benchmarks.cluster", "--one", "--trials", str(trials)]
    with tempfile.TemporaryDirectory(prefix="bench-cluster-") as folder:
        began = time.time()
        done = subprocess.run(typed, cwd=folder, env=env, stdout=subprocess.PIPE, text=True, check=True)
        ended = time.time()
    found = json.loads(done.stdout.strip().splitlines()[-1])
    begun = found["first"] - sleep_s / REPORTS
    phases = {"start_s": begun - began, "trials_s": found["last"] - begun, "end_s": ended - found["last"]}
    whole = {"wall_s": ended - began, "efficiency": trials * sleep_s / (num_nodes * (ended - began))}
    return {name: round(value, 3) for name, value in {**phases, **whole, "slots": found["slots"]}.items()}


def table(record: dict[str, Any]) -> str:
    """Return the record as Markdown."""
    results, rounds = record["results"], record["results"]["rounds"]
    names = ["", "efficiency", "wall s", "before the first trial, s", "trials, s", "after the last, s"]
    keys = ("efficiency", "wall_s", "start_s", "trials_s", "end_s")
    cells = [f"{results['trials']} trials that sleep {results['sleep_s']:g} s, {results['nodes']} nodes of one CPU"]
    cells += [str(spread_of([one[key] for one in rounds])) for key in keys]
    return "\n".join([f"| {' | '.join(names)} |", "|---" * len(names) + "|", f"| {' | '.join(cells)} |"])


def main() -> None:
    """Parse, run, print, and keep the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--sleep", type=float, default=10.0, help="seconds a trial")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="6 trials of 2 s, no record")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, help="where the record goes; none: benchmarks/results/cluster.json")
    arguments = parser.parse_args()
    if arguments.one:
        run_one(arguments.trials)
        end_command(0)  # as a real command ends
    trials, sleep_s = (6, 2.0) if arguments.quick else (arguments.trials, arguments.sleep)
    with start_nodes(arguments.nodes, sleep_s) as env:
        rounds = [measure(env, trials, sleep_s, arguments.nodes) for _ in range(arguments.rounds)]
    results = {"nodes": arguments.nodes, "trials": trials, "sleep_s": sleep_s, "rounds": rounds}
    record = make_record("cluster", arguments.rounds, results)
    print(table(record))
    if arguments.json or not arguments.quick:
        write_record(record, arguments.json)


if __name__ == "__main__":
    main()
