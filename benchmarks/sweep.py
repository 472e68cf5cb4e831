"""Whole sweeps side by side: ours, a plain Ray Tune + RLlib + Optuna + MLflow script, and rl_zoo3's optimiser.

    python -m benchmarks.sweep [--trials 8 --env-steps 20000] [--rounds 3] [--only ours,zoo] [--quick]

Two sizes: 8 trials of 20,000 steps, and 24 of 100,000 without the plain script, which would take half an hour. About 45
minutes on two quiet cores; 3 with --quick, which keeps no record. PPO on CartPole: all have the same space, settings,
16 environments, first trial, number of trials and budget, read from conf/ (shared_settings.py). ``shipped`` is ours as
it is installed, with the tuned settings of this pair, and no peer of the others. rl_zoo3 runs as two processes on one
storage, with its own pruner and number of evaluations, and with ten evaluations and halving; zoo.py says what else is
its own.

They take turns in fresh folders, and a round's ratio is the statistic. Wall seconds are those of the whole command,
from its start to its last process's end. Environment steps are those really taken.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import peers, zoo
from benchmarks.commands import run_command
from benchmarks.records import compare_rounds, make_record, spread_of, write_record
from rltune.engine.kernels.compiler import load_kernels

SIZES = ((8, 20_000), (24, 100_000))  # Trials, and environment steps of each.
LARGEST_PLAIN = 200_000  # The most environment steps of a whole sweep for which the plain script is run.


def ours(trials: int, env_steps: int, folder: Path, *more: str) -> dict[str, Any]:
    """Run ``python -m sweeps.run algo=ppo env=cartpole certify=off``: no peer trains its winner again."""
    typed = [sys.executable, "-m", "rltune", "run", "algo=ppo", "env=cartpole", "name=bench", "certify=off"]
    typed += [f"budget.trials={trials}", f"budget.env_steps={env_steps}", *more]
    done = run_command(typed, folder)
    summary = json.loads((folder / "outputs" / "bench" / "summary.json").read_text())
    with sqlite3.connect(folder / "mlflow.db") as store:  # a point carries the moment at which its report came
        (first_ms,) = store.execute("select min(timestamp) from metrics where key = 'score'").fetchone()
    winner = summary["winner"] or {}
    played = winner.get("evaluation") or {"episodes": 0, "mean": 0.0}
    return {
        "wall_s": done.wall_s,
        "first_report_s": first_ms / 1000 - done.began,
        "env_steps": summary["cost"]["env_steps"],
        "evaluation_steps": round(played["episodes"] * played["mean"]),  # CartPole pays 1 a step
        "stopped": summary["trials"]["pruned"],
        "best": played["mean"],
        "efficiency": summary["cost"]["efficiency"],
    }


def plain(trials: int, env_steps: int, folder: Path) -> dict[str, Any]:
    """Run ``plain_ray.py``, which evaluates nothing."""
    typed = [sys.executable, "-m", "benchmarks.plain_ray", "--trials", str(trials), "--env-steps", str(env_steps)]
    done = run_command([*typed, "--folder", str(folder / "plain"), "--began", str(time.time())], folder)
    answer: dict[str, Any] = json.loads(done.output.strip().splitlines()[-1])
    return {**answer, "evaluation_steps": 0, "wall_s": done.wall_s}


@dataclass(frozen=True)
class Contender:
    """One row of the table.

    Attributes:
        words: What it is.
        run: Takes trials, environment steps, a folder and options; returns its figures.
        options: What else is typed.
    """

    words: str
    run: Callable[..., dict[str, Any]]
    options: tuple[str, ...] = ()


CONTENDERS = {
    # the peers' search: TPE, and rungs that compare one report
    "ours": Contender("rltune, `'~tuned'`", ours, ("~tuned", "searcher=tpe", "portfolio=off", "space.normalise=[]")),
    "shipped": Contender("rltune as shipped: tuned settings, 8 environments", ours),
    "plain": Contender("plain script: Ray Tune, RLlib, Optuna, ASHA, MLflow", plain),
    "zoo": Contender("rl_zoo3, its defaults: one evaluation, median pruner", zoo.run),
    "zoo_halving": Contender(
        "rl_zoo3, ten evaluations, halving", zoo.run, ("--n-evaluations", "10", "--pruner", "halving")
    ),
}


def measure(kinds: list[str], size: dict[str, Any], rounds: int) -> None:
    """Add every contender's figures to a size's record, a list of rounds each."""
    size["contenders"] = contenders = {kind: [] for kind in kinds}
    for number in range(rounds):
        for kind in kinds:
            contender = CONTENDERS[kind]
            with tempfile.TemporaryDirectory(prefix=f"bench-{kind}-") as folder:
                figures = contender.run(size["trials"], size["env_steps"], Path(folder), *contender.options)
            contenders[kind].append({key: round(v, 2) if isinstance(v, float) else v for key, v in figures.items()})
            print(f"round {number + 1} {kind}: {contenders[kind][-1]}", file=sys.stderr, flush=True)


def table(record: dict[str, Any]) -> str:
    """Return the record as Markdown: medians, and the rounds' ratios with least and greatest."""
    names = ["sweep", "wall s", "first report s", "steps trained", "steps evaluated", "trials stopped", "best return"]
    names += ["wall / rltune's"]
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for size in record["results"]:
        lines.append(f"| **{size['trials']} trials of {size['env_steps']:,} steps** |" + " |" * (len(names) - 1))
        contenders = size["contenders"]
        lines += [row(kind, contenders.get(kind), contenders["ours"]) for kind in CONTENDERS]
    return "\n".join(lines)


def row(kind: str, rounds: list[dict[str, Any]] | None, base: list[dict[str, Any]]) -> str:
    """Return one line of the table."""
    words = CONTENDERS[kind].words
    if not rounds:
        return f"| {words} | not measured |{' |' * 6}"

    def median(name: str, digits: int) -> str:
        values = [one[name] for one in rounds if one.get(name) is not None]
        return f"{spread_of(values).median:,.{digits}f}" if values else ""

    cells = [median("wall_s", 1), median("first_report_s", 1), median("env_steps", 0), median("evaluation_steps", 0)]
    cells += [median("stopped", 0), median("best", 0)]
    ratio = compare_rounds([one["wall_s"] for one in rounds], [one["wall_s"] for one in base])
    return f"| {words} | {' | '.join(cells)} | {'' if kind == 'ours' else ratio} |"


def main() -> None:
    """Parse, run, print, and keep the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, help="measure this size alone, with --env-steps")
    parser.add_argument("--env-steps", type=int)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one round of 4 trials of 10,000 steps, no record")
    parser.add_argument("--only", default=",".join(CONTENDERS), help="comma-separated; ours is always among them")
    parser.add_argument("--json", type=Path, help="where the record goes; none: benchmarks/results/sweep.json")
    arguments = parser.parse_args()
    trials, env_steps, rounds = arguments.trials, arguments.env_steps, arguments.rounds
    if (trials is None) is not (env_steps is None):
        parser.error("--trials and --env-steps are given together")
    if arguments.quick:
        trials, env_steps, rounds = 4, 10_000, 1
    kinds = ["ours", *(kind for kind in arguments.only.split(",") if kind != "ours")]
    if any(kind.startswith("zoo") for kind in kinds):
        peers.make_venv()
    sizes = [(trials, env_steps)] if trials else SIZES
    load_kernels("ppo")  # They are compiled once for a version, which is no part of a sweep.
    results: list[dict[str, Any]] = []
    record = make_record("sweep", rounds, results, peers.versions())
    for trials, env_steps in sizes:
        results.append({"trials": trials, "env_steps": env_steps})
        is_small = trials * env_steps <= LARGEST_PLAIN
        measure([kind for kind in kinds if is_small or kind != "plain"], results[-1], rounds)
        if arguments.json or not arguments.quick:
            write_record(record, arguments.json)  # Whatever there is by now is kept if the rest is interrupted.
    print(table(record))


if __name__ == "__main__":
    main()
