"""Do the defaults find more in real training, too? Whole sweeps, in turns with the settings before them.

    python -m benchmarks.defaults [--sweeps 8] [--only ppo_acrobot]

`benchmarks/judge.py` chose searcher and scheduler over learning curves that others had trained. Here the defaults and
the ones before them search the same spaces for the same environment steps, begin with the algorithm file's own values,
and certify their best three on five fresh seeds. `benchmarks/portfolio.py` chose what a PPO sweep tries first. Here
eight trials begin with it and with what came first before it, on three tasks that were in no choice, and the best is
trained with three fresh seeds, as is the algorithm file's own configuration. For these tasks:

    pip install -e '.[minigrid]' pybullet-envs-gymnasium flappy-bird-gymnasium

A sweep's score is that of the best configuration that it tried, by these seeds, which flatters both alike; the
interval of the difference is 95%, by bootstrap over sweeps. The rows that the record has are kept, so that an
interrupted run goes on. It is no timing, so that other work does not matter. About two hours on two quiet cores.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.commands import run_command
from benchmarks.records import make_record, read_record, write_record
from rltune.formatting import format_duration

DEFAULTS = "defaults"
SEARCH_ARMS = {
    DEFAULTS: (),
    "searcher and scheduler before": (
        *("searcher=tpe", "scheduler.args.grace_fraction=0.1", "scheduler.args.reduction_factor=3"),
    ),
}
PPO_ARMS = {
    DEFAULTS: (),
    "portfolio=off": ("portfolio=off",),
    "ppo before": (
        *("portfolio=off", "space.normalise=[]", "algo.training.entropy_coeff=0.0"),
        *("algo.training.train_batch_size_per_learner=2048", "algo.training.minibatch_size=256"),
    ),
}
WHOLE = ("budget.trials=500", "warm_start=[]")
SMALL = ("algo=ppo", "env=gym", "budget.trials=8", "certify.top=1", "certify.seeds=3")


@dataclass(frozen=True)
class Case:
    """What is swept, and in turns with which settings: overrides by the name of the row."""

    words: tuple[str, ...]
    arms: Mapping[str, tuple[str, ...]]


CASES: Mapping[str, Case] = {  # The first two may search for as much as 20 whole trainings.
    "ppo_acrobot": Case(
        ("algo=ppo", "env=acrobot", *WHOLE, "budget.env_steps=20000", "budget.total_env_steps=400000"), SEARCH_ARMS
    ),
    "dqn_cartpole": Case(
        ("algo=dqn", "env=cartpole", *WHOLE, "budget.env_steps=10000", "budget.total_env_steps=200000"), SEARCH_ARMS
    ),
    "ppo_swingup": Case(
        (
            *SMALL,
            "env.id=pybullet_envs_gymnasium:InvertedPendulumSwingupBulletEnv-v0",
            "budget.env_steps=60000",
        ),
        PPO_ARMS,
    ),
    "ppo_multiroom": Case(
        (
            *("env=minigrid_empty", "env.name=multiroom", "env.id=minigrid:MiniGrid-MultiRoom-N2-S4-v0"),
            *(word for word in SMALL if word != "env=gym"),
            "budget.env_steps=40000",
        ),
        PPO_ARMS,
    ),
    "ppo_flappybird": Case(
        (
            *SMALL,
            *("env.id=flappy_bird_gymnasium:FlappyBird-v0", "+env.kwargs.use_lidar=false", "budget.env_steps=60000"),
        ),
        PPO_ARMS,
    ),
}
COMMON = ("~tuned", "certify.champion_episodes=1", "tracking=off", "tracking.register=false", "report=false")
RESAMPLES = 10_000


def run_sweep(case: str, arm: str, seed: int) -> dict[str, Any]:
    """Run one sweep and return its row."""
    words = (*CASES[case].words, *CASES[case].arms[arm], *COMMON)
    typed = [sys.executable, "-m", "rltune", "run", *words, f"seed={seed}", "name=sweep"]
    with tempfile.TemporaryDirectory(prefix="bench-defaults-") as folder:
        run_command(typed, Path(folder))
        summary = json.loads((Path(folder) / "outputs" / "sweep" / "summary.json").read_text())
    configurations = summary["certified"]["configurations"]
    best_tried, baseline = (
        next((each["median"] for each in configurations if (each["trial"] is None) == is_baseline), None)
        for is_baseline in (False, True)
    )
    best = max(score for score in (best_tried, baseline) if score is not None)
    more = {"baseline": baseline, "trials": summary["trials"], "cost": summary["cost"]}
    return {"case": case, "arm": arm, "seed": seed, "certified": best, **more}


def compare(ours: Sequence[float], others: Sequence[float]) -> dict[str, float]:
    """Return the difference of the means, the first less the second, and its interval."""
    rng = np.random.default_rng(0)
    scores = [np.array(ours), np.array(others)]
    means = [each[rng.integers(len(each), size=(RESAMPLES, len(each)))].mean(axis=1) for each in scores]
    low, high = np.quantile(means[0] - means[1], (0.025, 0.975))
    return {"mean": float(scores[0].mean() - scores[1].mean()), "low": float(low), "high": float(high)}


def table(record: Mapping[str, Any]) -> str:
    """Return the record as Markdown."""
    lines = [
        "| pair | settings | sweeps | certified return | defaults less it | the file's own values | search steps |",
        "|---|---|---|---|---|---|---|",
    ]
    for case in dict.fromkeys(row["case"] for row in record["results"]):
        by_arm: dict[str, list[Mapping[str, Any]]] = {}
        for row in record["results"]:
            if row["case"] == case:
                by_arm.setdefault(row["arm"], []).append(row)
        scores = {arm: [row["certified"] for row in rows] for arm, rows in by_arm.items()}
        for arm, rows in by_arm.items():
            baselines = [row["baseline"] for row in rows if row["baseline"] is not None]
            steps = np.mean([row["cost"]["env_steps"] for row in rows])
            difference = ""
            if arm != DEFAULTS:
                less = compare(scores[DEFAULTS], scores[arm])
                difference = f"{less['mean']:+.3g} [{less['low']:+.3g}, {less['high']:+.3g}]"
            baseline = f"{np.mean(baselines):.3g}" if baselines else ""
            cells = [case, arm, f"{len(rows)}", f"{np.mean(scores[arm]):.3g}", difference, baseline, f"{steps:,.0f}"]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Run the sweeps in turns; write the record after each of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweeps", type=int, default=6, help="of each kind and pair")
    parser.add_argument("--only", default=",".join(CASES), help=f"comma-separated, of {', '.join(CASES)}")
    parser.add_argument("--again", action="store_true", help="drop the rows of these pairs first")
    parser.add_argument("--json", type=Path, help="where the record goes; none: benchmarks/results/defaults.json")
    given = parser.parse_args()
    only = given.only.split(",")
    if unknown := [name for name in only if name not in CASES]:
        parser.error(f"--only: there is no {', '.join(unknown)}; choose from {', '.join(CASES)}")
    rows = (read_record("defaults") or {"results": []})["results"]
    results = [row for row in rows if not given.again or row["case"] not in only]
    record = make_record("defaults", given.sweeps, results)
    done_before = {(row["case"], row["arm"], row["seed"]) for row in results}
    every = [(case, arm, seed) for seed in range(given.sweeps) for case in only for arm in CASES[case].arms]
    began, todo = time.monotonic(), [each for each in every if each not in done_before]
    for done, (case, arm, seed) in enumerate(todo, 1):
        results.append(run_sweep(case, arm, seed))
        write_record(record, given.json)
        left = (time.monotonic() - began) / done * (len(todo) - done)
        line = f"{case}, {arm}, seed {seed}: {results[-1]['certified']:.4g}; {format_duration(left)} left"
        print(line, file=sys.stderr, flush=True)
    print(table(record))


if __name__ == "__main__":
    main()
