"""Do the defaults find more in real training, too? Whole sweeps, in turns with the settings before them.

    python -m benchmarks.defaults [--sweeps 8] [--only ppo_acrobot]

`benchmarks/judge.py` chose searcher and scheduler over learning curves that others had trained. Here the defaults and
the ones before them search the same spaces for the same environment steps, begin with the algorithm file's own values,
and certify their best three on five fresh seeds. `benchmarks/portfolio.py` chose what a PPO sweep tries first. Here
eight trials begin with it and with what came first before it, on three tasks whose curves were in no choice, and the
best is trained with three fresh seeds, as is the algorithm file's own configuration. The settings before it normalise
nothing and search no normalization. What the first rounds showed on these tasks led to the next defaults, so that
they are a development set. For these tasks:

    pip install -e '.[minigrid]' pybullet-envs-gymnasium flappy-bird-gymnasium

A sweep's score is that of the best configuration that it tried, by these seeds, which flatters both alike; the
interval of the difference is 95%, by Welch's t over sweeps (`benchmarks/intervals.py`). The rows that the record has
are kept, so that an interrupted run goes on, and rows of older defaults stay for good (``older``). It is no timing, so
that other work does not matter. About two hours on two quiet cores.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.commands import run_command
from benchmarks.intervals import bound_mean
from benchmarks.records import describe_commit, make_record, read_record, write_record
from rltune.formatting import format_duration
from rltune.records import BASELINE

DEFAULTS = "defaults"
SEARCH_BEFORE, PPO_BEFORE = FORMER = ("searcher and scheduler before", "ppo before")
SEARCH_ARMS = {
    DEFAULTS: (),
    SEARCH_BEFORE: (*("searcher=tpe", "scheduler.args.grace_fraction=0.1", "scheduler.args.reduction_factor=3"),),
}
PPO_ARMS = {
    DEFAULTS: (),
    "portfolio=off": ("portfolio=off",),
    PPO_BEFORE: (
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
Rows = list[Mapping[str, Any]]


def run_sweep(case: str, arm: str, seed: int) -> dict[str, Any]:
    """Run one sweep and return its row."""
    words = (*CASES[case].words, *CASES[case].arms[arm], *COMMON)
    typed = [sys.executable, "-m", "rltune", "run", *words, f"seed={seed}", "name=sweep"]
    with tempfile.TemporaryDirectory(prefix="bench-defaults-") as folder:
        run_command(typed, Path(folder))
        summary = json.loads((Path(folder) / "outputs" / "sweep" / "summary.json").read_text())
    row = {"case": case, "arm": arm, "seed": seed, "commit": describe_commit(), **read_certified(summary)}
    return row | {"trials": summary["trials"], "cost": summary["cost"]}


def read_certified(summary: Mapping[str, Any]) -> dict[str, float | None]:
    """Return a sweep's best median return, and that of the algorithm file's own configuration, whoever tried it."""
    medians = {each["name"]: each["median"] for each in summary["certified"]["configurations"]}
    return {
        "certified": max(median for median in medians.values() if median is not None),
        "baseline": medians.get(BASELINE),
    }


def table(record: Mapping[str, Any]) -> str:
    """Return the record as Markdown, a line for each pair, settings and commit."""
    head = ["pair", "settings", "commit", "sweeps", "certified return", "defaults less it", "less the settings before"]
    head += ["the file's own values", "search steps"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    cases: dict[str, dict[tuple[str, str], Rows]] = {}
    for row in record["results"]:
        cases.setdefault(row["case"], {}).setdefault((row["arm"], row["commit"]), []).append(row)
    for case, groups in cases.items():
        scores = {key: [row["certified"] for row in rows] for key, rows in groups.items()}
        newest = {arm: (arm, commit) for (arm, commit), rows in groups.items() if not rows[0].get("older")}
        known = find_common_seeds(list(groups.values()))
        for (arm, commit), rows in groups.items():
            lead = less = ""
            if newest.get(arm) == (arm, commit) and arm not in (DEFAULTS, *FORMER):
                lead = bound_mean(scores[newest[DEFAULTS]], scores[arm, commit]).show("+.3g")
            former = [key for key in groups if key[0] in FORMER and (key[1] == commit or key in newest.values())]
            if arm not in FORMER and former:
                before = min(former, key=lambda key: key[1] != commit)
                less = bound_mean(scores[arm, commit], scores[before]).show("+.3g")
            own = [row["baseline"] for row in rows if row["seed"] in known and row.get("baseline") is not None]
            file = f"{np.mean(own):.3g}" if own else ""
            file += f" ({len(own)} of {len(rows)} sweeps)" if 0 < len(own) < len(rows) else ""
            steps = np.mean([row["cost"]["env_steps"] for row in rows])
            cells = [case, arm, commit, f"{len(rows)}", f"{np.mean(scores[arm, commit]):.3g}", lead, less, file]
            lines.append(f"| {' | '.join([*cells, f'{steps:,.0f}'])} |")
    return "\n".join(lines)


def find_common_seeds(groups: list[Rows]) -> set[int]:
    """Return the seeds whose sweeps have the return of the file's own values, in each group that has any of them."""
    known = [{row["seed"] for row in rows if row.get("baseline") is not None} for rows in groups]
    return set.intersection(*(seeds for seeds in known if seeds)) if any(known) else set()


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
    results = [row for row in rows if row.get("older") or not given.again or row["case"] not in only]
    record = make_record("defaults", given.sweeps, results)
    done_before = {(row["case"], row["arm"], row["seed"]) for row in results if not row.get("older")}
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
