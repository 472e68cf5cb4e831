"""Count how often the report names the right parameters: python -m benchmarks.importance [simulations]."""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from typing import Any

import numpy as np

from benchmarks.records import make_record, write_record
from rltune.algorithms.arguments import build_search_space
from rltune.records import Direction, TrialRecord
from rltune.search.space import Space
from rltune.views.importance import measure_importance

SPACE = {name: ["uniform", -1.0, 1.0] for name in ("lr", "gamma", "clip")} | {"relu": ["choice", False, True]}
ALGO = {"name": "ppo"}
KINDS = ("nothing", "lr", "lr and relu, less", "lr where relu")


def simulate_sweep(kind: str, seed: int, num_trials: int = 50) -> tuple[Space, list[TrialRecord]]:
    """Simulate a random search; luck is about a seventh of the variance between trials, and all of it for "nothing"."""
    rng = np.random.default_rng(seed)
    lr, gamma, clip = rng.uniform(-1, 1, (3, num_trials))
    relu = rng.random(num_trials) < 0.5
    effects = {
        "lr": 1 - 3 * (lr - 0.3) ** 2,
        "lr and relu, less": 2 * lr + relu,
        "lr where relu": 2 * lr * np.where(relu, 1, -1),
    }
    ends = effects.get(kind, 0) + (0.5 if kind in effects else 1) * rng.normal(size=num_trials)
    curves = np.linspace(0.1, 1, 10) * ends[:, None] + 0.2 * rng.normal(size=(num_trials, 10))
    is_weak = curves[:, 2] < np.median(curves[:, 2])  # These are stopped at three tenths of the budget.
    trials = []
    for number, values in enumerate(zip(lr, gamma, clip, relu.tolist(), strict=True)):
        reports = {1000 * (mark + 1): float(score) for mark, score in enumerate(curves[number])}
        kept = dict(list(reports.items())[: 3 if is_weak[number] else 10])
        state = "PRUNED" if is_weak[number] else "COMPLETE"
        trials.append(TrialRecord(number, state, dict(zip(SPACE, values, strict=True)), kept))
    return build_search_space(ALGO, SPACE), trials


def table(record: dict[str, Any]) -> str:
    """Return the record as Markdown."""
    lines = ["| the scores depend on | sweeps | sweeps in which the report names |", "|---|---|---|"]
    for kind, named in record["results"].items():
        counts = ", ".join(f"{name} {count}" for name, count in named.items())
        lines.append(f"| {kind} | {record['rounds']} | {counts or '-'} |")
    return "\n".join(lines)


if __name__ == "__main__":
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    results = {kind: Counter[str]() for kind in KINDS}
    for kind, seed in itertools.product(KINDS, range(rounds)):
        results[kind] += Counter(measure_importance(*simulate_sweep(kind, seed), Direction.MAX).outstanding)
    write_record(make_record("importance", rounds, results))
