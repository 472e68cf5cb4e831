"""Do the defaults find more in real training, too? Whole sweeps, in turns with the settings before them.

    python -m benchmarks.defaults [--sweeps 8] [--only ppo_acrobot]

`benchmarks/judge.py` chose them over learning curves that others had trained. Here both search the same spaces for
the same environment steps, begin with the algorithm file's own values, and certify their best three on five fresh
seeds. A sweep's score is that of the best configuration that it tried, by these seeds, which flatters both alike; the
interval of the difference is 95%, by bootstrap over sweeps. It is no timing, so that other work does not matter. About
an hour on two quiet cores.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.commands import run_command
from benchmarks.records import make_record, write_record
from rltune.formatting import format_duration

ARMS: Mapping[str, tuple[str, ...]] = {
    "defaults": (),
    "today": (
        "searcher=tpe", "scheduler.args.grace_fraction=0.1", "scheduler.args.reduction_factor=3",
    ),
}  # fmt: skip
CASES: Mapping[str, tuple[str, ...]] = {  # each may search for as much as 20 whole trainings
    "ppo_acrobot": ("algo=ppo", "env=acrobot", "budget.env_steps=20000", "budget.total_env_steps=400000"),
    "dqn_cartpole": ("algo=dqn", "env=cartpole", "budget.env_steps=10000", "budget.total_env_steps=200000"),
}
COMMON = (
    "~tuned",
    "warm_start=[]",
    "budget.trials=500",
    "certify.champion_episodes=1",
    "tracking=off",
    "tracking.register=false",
    "report=false",
)
RESAMPLES = 10_000


def run_sweep(case: str, arm: str, seed: int) -> dict[str, Any]:
    """Run one sweep and return its row."""
    typed = [sys.executable, "-m", "rltune", "run", *CASES[case], *ARMS[arm], *COMMON, f"seed={seed}", "name=sweep"]
    with tempfile.TemporaryDirectory(prefix="bench-defaults-") as folder:
        run_command(typed, Path(folder))
        summary = json.loads((Path(folder) / "outputs" / "sweep" / "summary.json").read_text())
    found = next(one for one in summary["certified"]["configurations"] if one["trial"] is not None)
    trials, cost = summary["trials"], summary["cost"]
    return {"case": case, "arm": arm, "seed": seed, "certified": found["median"], "trials": trials, "cost": cost}


def compare(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the difference of the mean certified returns, defaults less today, and its interval."""
    rng = np.random.default_rng(0)
    scores = [np.array([one["certified"] for one in rows if one["arm"] == arm]) for arm in ARMS]
    means = [one[rng.integers(len(one), size=(RESAMPLES, len(one)))].mean(axis=1) for one in scores]
    low, high = np.quantile(means[0] - means[1], (0.025, 0.975))
    return {"mean": float(scores[0].mean() - scores[1].mean()), "low": float(low), "high": float(high)}


def table(record: Mapping[str, Any]) -> str:
    """Return the record as Markdown."""
    lines = [
        "| pair | sweeps each | certified return, defaults | today | difference | search steps, defaults | today |",
        "|---|---|---|---|---|---|---|",
    ]
    for case in dict.fromkeys(one["case"] for one in record["results"]):
        rows = [one for one in record["results"] if one["case"] == case]
        by_arm = [[one for one in rows if one["arm"] == arm] for arm in ARMS]
        scores = [f"{np.mean([one['certified'] for one in arm]):.1f}" for arm in by_arm]
        steps = [f"{np.mean([one['cost']['env_steps'] for one in arm]):,.0f}" for arm in by_arm]
        less = compare(rows)
        difference = f"{less['mean']:+.1f} [{less['low']:+.1f}, {less['high']:+.1f}]"
        lines.append(f"| {case} | {len(by_arm[0])} | {' | '.join(scores)} | {difference} | {' | '.join(steps)} |")
    return "\n".join(lines)


def main() -> None:
    """Run the sweeps in turns; write the record after each pair of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweeps", type=int, default=8, help="of each kind and pair")
    parser.add_argument("--only", default=",".join(CASES), help=f"comma-separated, of {', '.join(CASES)}")
    parser.add_argument("--json", type=Path, help="where the record goes; none: benchmarks/results/defaults.json")
    given = parser.parse_args()
    if unknown := [name for name in given.only.split(",") if name not in CASES]:
        parser.error(f"--only: there is no {', '.join(unknown)}; choose from {', '.join(CASES)}")
    results: list[dict[str, Any]] = []
    record = make_record("defaults", given.sweeps, results)
    began, todo = time.monotonic(), [(case, seed) for case in given.only.split(",") for seed in range(given.sweeps)]
    for done, (case, seed) in enumerate(todo, 1):
        results += [run_sweep(case, arm, seed) for arm in ARMS]
        write_record(record, given.json)  # what there is by now, should the rest be ended
        left = (time.monotonic() - began) / done * (len(todo) - done)
        told = ", ".join(f"{one['arm']} {one['certified']:.1f}" for one in results[-2:])
        print(f"{case}, seed {seed}: {told}; {format_duration(left)} left", file=sys.stderr, flush=True)
    print(table(record))


if __name__ == "__main__":
    main()
