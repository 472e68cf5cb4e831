"""Which loss should SAC's critics have? Learning curves and final returns with Huber and with squared errors.

    python -m benchmarks.sac_loss [--tasks hopper,...] [--seeds 10]

Everything but ``td_error_loss_fn`` is the same on both sides, down to the seeds: the settings are those of
`benchmarks.parity`'s SAC on Hopper. Rows are as in that record, those that the file has are kept, and the seeds are the
outer loop, so that an interrupted run has as many of each. One process with one torch thread, about an hour.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.parity import SAC, Task, area, evaluate, make_curve, train_ours
from benchmarks.records import RESULTS, make_record, read_record, write_record

SEEDS = 10
LOSSES = {"huber": "Huber", "mse": "squared"}
ENVS = {
    "pendulum": "Pendulum-v1", "lunarlander": "LunarLanderContinuous-v3", "hopper": "Hopper-v5",
    "walker2d": "Walker2d-v5", "halfcheetah": "HalfCheetah-v5",
}  # fmt: skip
TASKS = {name: Task(env, "sac", env, 30_000, SAC | {"batch_size": 100}) for name, env in ENVS.items()}


def train(name: str, loss: str, seed: int) -> dict[str, Any]:
    """Train once, and return the row of the record."""
    task = TASKS[name]
    act, episodes = train_ours(replace(task, settings=task.settings | {"critic_loss": loss}), seed)
    curve = make_curve(episodes, task.steps)
    return {"task": name, "loss": loss, "seed": seed, "curve": curve, "final": evaluate(task, act)}


def compare(squared: np.ndarray, huber: np.ndarray) -> str:
    """Return the difference of the means, and its 95% interval by Welch's t."""
    from scipy.stats import ttest_ind

    low, high = ttest_ind(squared, huber, equal_var=False).confidence_interval(0.95)
    return f"{squared.mean() - huber.mean():+.0f} [{low:+.0f}, {high:+.0f}]"


def table(record: dict[str, Any]) -> str:
    """Return the comparison, a line a task, in Markdown."""
    head = ["task", "steps", "seeds"]
    for what in ("curve", "final"):
        head += [f"{what}, Huber", f"{what}, squared", "difference"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name, task in TASKS.items():
        sides = [[row for row in record["results"] if (row["task"], row["loss"]) == (name, loss)] for loss in LOSSES]
        if min(map(len, sides)) < 2:
            continue
        cells = [task.words, f"{task.steps:,}", " and ".join(str(len(side)) for side in sides)]
        for values in ([[area(row) for row in side] for side in sides], [[row["final"] for row in s] for s in sides]):
            huber, squared = (np.array(side) for side in values)
            cells += [f"{huber.mean():.0f}", f"{squared.mean():.0f}", compare(squared, huber)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Train what the record lacks, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default=",".join(TASKS), help="comma-separated")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument(
        "--json", type=Path, default=RESULTS / "sac_loss.json", help="a file of this name in any folder"
    )
    arguments = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore")
    record = read_record("sac_loss", arguments.json.parent)
    rows: list[dict[str, Any]] = record["results"] if record else []
    done = {(row["task"], row["loss"], row["seed"]) for row in rows}
    for seed, name, loss in itertools.product(range(arguments.seeds), arguments.tasks.split(","), LOSSES):
        if (name, loss, seed) in done:
            continue
        rows.append(train(name, loss, seed))
        write_record(make_record("sac_loss", 1, rows), arguments.json)
        print(f"{name} {loss} seed {seed}: {area(rows[-1]):.0f}, {rows[-1]['final']:.0f}", flush=True)
    print(table({"results": rows}))


if __name__ == "__main__":
    main()
