"""Which configurations should a sweep try first? A portfolio for each algorithm, chosen from learning curves.

    python -m benchmarks.portfolio [--data FOLDER] [--write]

The curves are our own (`benchmarks/metadata.py`). With ``--data``, there are tables of those of ARLBench, too (Becktepe
et al. 2024, arXiv 2409.18827, BSD-3-Clause; the format of `benchmarks/judge_pool.py`). The choice is greedy: each next
configuration raises the mean over tasks and horizons of the best score so far the most, as in Auto-sklearn 2.0 (Feurer
et al. 2022, JMLR 23(261)). Of those that raise it about as much, the cheapest is taken. A score is 0 for the median
configuration of a task and 1 for its best.

A prefix of a long curve is a short training only where no schedule is a share of the budget. PPO and SAC have none, so
that the curves count at three horizons. DQN's exploration is one, so that its curves count at their end. A score is a
mean over seeds and the last marks, halfway to what a forest guesses from the other configurations. A new task is taken
to be a blend of known ones, so that a choice has to do well on random blends of them, too.

The tables choose from all tasks but those that are left out. They compare the best of the first k configurations with
the expected best of k random ones. Intervals are 95%, by Student's t over tasks (`benchmarks/intervals.py`). Another
table says what normalization is worth. ARLBench's configurations have other axes than ours, so that its tables are of
its own configurations, and its curves have no say in ours.

With ``--write``, the choice from our curves replaces conf/portfolio/<algorithm>.yaml, where there is one.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from sklearn.ensemble import RandomForestRegressor

from benchmarks import metadata, shared_settings
from benchmarks.intervals import bound_mean
from benchmarks.judge_pool import Array, Pool, read_pools
from benchmarks.records import ROOT, make_record, write_record
from rltune.algorithms.arguments import values_of
from rltune.formatting import format_value
from rltune.search.space import Space, parse_space

HORIZONS = {"ppo": (0.3, 0.6, 1.0), "dqn": (1.0,), "sac": (0.3, 0.6, 1.0)}
WINDOW = 0.15  # The share of the curve, up to a horizon, whose mean counts.
FLAT = 0.25  # A horizon's spread counts at least as this share of the last one's, so that noise is not made large.
TIE = 0.002
BLEND, NUM_BLENDS = 0.3, 300  # The Dirichlet distribution's parameter: most blends are of two or three tasks.
SIZE = 8
SIZES = (1, 4, 8, 16)
NORMALISED = {
    (False, False): "nothing",
    (True, False): "observations",
    (False, True): "rewards",
    (True, True): "observations and rewards",
}
FAMILIES = {"brax": "mujoco"}
HEADER = """# @package _global_
# What a {algo} sweep tries before the searcher's proposals, in this order; portfolio=off leaves it out. Written by
# python -m benchmarks.portfolio --write
# Each configuration was chosen for the tasks on which those before it do badly, from the learning curves of {num_tasks}
# tasks. Above it stand the tasks on which it is the best of them. The first is conf/algo/{name}.yaml's own.
portfolio:
"""


def name_task(pair: str) -> str:
    """Return what two pairs on the same task share, whatever the source, the version or the kind of actions."""
    environment = pair.split("_", 2)[2].replace("continuous", "").replace("random", "")
    return re.sub(r"[^a-z0-9]|v\d+$", "", environment.lower())


def name_family(pair: str) -> str:
    """Return the family of a pair's environment; the robots of Brax are those of MuJoCo."""
    family = pair.split("_")[1]
    return FAMILIES.get(family, family)


LEAVE = {"task": name_task, "family": name_family}


def keep_others(pairs: Sequence[str], pair: str, leave: str) -> list[int]:
    """Return which pairs are left for a choice without the ``leave``, task or family, of ``pair``."""
    name = LEAVE[leave]
    return [index for index, other in enumerate(pairs) if name(other) != name(pair)]


def measure_scores(pool: Pool) -> tuple[Array, Array]:
    """Return the scores of a pair's configurations at each horizon [configurations, horizons], shrunk and as measured.

    A seed without any report is missing if another one has some; if none has, the configuration has diverged.
    """
    is_run = np.isfinite(pool.curves).any(axis=2)
    is_run[~is_run.any(axis=1), 0] = True
    curves, num_points = pool.fill(pool.curves), pool.curves.shape[2]
    ends = [round(share * num_points) for share in HORIZONS[pool.algorithm]]
    begins = [max(0, end - max(1, round(WINDOW * num_points))) for end in ends]
    means = [
        np.average(curves[:, :, begin:end].mean(axis=2), axis=1, weights=is_run)
        for begin, end in zip(begins, ends, strict=True)
    ]
    measured = normalise_scores(np.stack(means, axis=1))
    guess = fit_forest(pool.configurations, measured, list_axes(pool.configurations)).oob_prediction_
    return (measured + guess.reshape(measured.shape)) / 2, measured


def normalise_scores(means: Array) -> Array:
    """Put returns [configurations, horizons] on the scale of scores, no lower than -1."""
    median = np.median(means, axis=0)
    spread = means.max(axis=0) - median
    return np.asarray(np.clip((means - median) / np.maximum(np.maximum(spread, FLAT * spread[-1]), 1e-9), -1, 1))


def list_axes(configurations: Sequence[Mapping[str, Any]]) -> list[str]:
    """List the names of all values of some configurations."""
    return list(dict.fromkeys(name for values in configurations for name in values))


def fit_forest(configurations: Sequence[Mapping[str, Any]], scores: Array, axes: Sequence[str]) -> Any:
    """Fit a forest that guesses scores from some of the values."""
    forest = RandomForestRegressor(200, min_samples_leaf=3, max_features=0.8, oob_score=True, random_state=0)
    return forest.fit(encode_values(configurations, axes), scores if scores.shape[1] > 1 else scores[:, 0])


def encode_values(configurations: Sequence[Mapping[str, Any]], axes: Sequence[str]) -> Array:
    """Return a forest's inputs; it asks for nothing but the order of values, so that no axis needs a scale."""

    def encode(value: Any) -> float:
        if isinstance(value, str):
            return float(value == "relu")
        return float(sum(value)) if isinstance(value, list | tuple) else -1.0 if value is None else float(value)

    return np.array([[encode(values.get(name)) for name in axes] for values in configurations])


def choose_portfolio(scores: Array, costs: Array, size: int = SIZE) -> list[int]:
    """Choose configurations greedily, each for what those before it leave to be gained.

    The first is the best at the last horizon, because it becomes the algorithm file's own, and so the baseline.

    Args:
        scores: [tasks, configurations, horizons].
        costs: What decides between configurations that gain about as much.
        size: The number of configurations to choose.
    """
    blends = np.random.default_rng(0).dirichlet(np.full(len(scores), BLEND), size=NUM_BLENDS)
    rows = np.concatenate([scores, np.tensordot(blends, scores, axes=1)])
    by_row = np.moveaxis(rows, 2, 1).reshape(-1, scores.shape[1])
    best, chosen = np.full(len(by_row), -1.0), list[int]()
    while len(chosen) < min(size, scores.shape[1]):
        gain = np.maximum(best[:, None], by_row).mean(axis=0) + 1e-3 * by_row.mean(axis=0)
        if not chosen:
            gain = rows[:, :, -1].mean(axis=0)
        gain[chosen] = -np.inf
        near = np.flatnonzero(gain >= gain.max() - TIE)
        chosen.append(int(near[np.lexsort((-gain[near], costs[near]))[0]]))
        best = np.maximum(best, by_row[:, chosen[-1]])
    return chosen


@dataclass(frozen=True)
class Problem:
    """The configurations that a portfolio is chosen from, and how well each does on each pair.

    Attributes:
        pairs: The names of the pairs.
        configurations: Values by name.
        scores: What a choice is made from [pairs, configurations, horizons].
        measured: What was measured at the end [configurations], by pair; a pair whose scores are guesses has none.
        costs: Of the configurations, relative to each other.
        rivals: Which configurations were drawn at random, by the name of what they were drawn from.
    """

    pairs: Sequence[str]
    configurations: Sequence[Mapping[str, Any]]
    scores: Array
    measured: Mapping[str, Array]
    costs: Array
    rivals: Mapping[str, Array]

    @classmethod
    def of_pools(
        cls, pools: Sequence[Pool], costs: Array | None = None, rivals: Mapping[str, Array] | None = None
    ) -> Problem:
        """Return the problem of pairs whose configurations are the same, in the same order.

        Without ``rivals`` all of them were drawn at random.
        """
        scores = [measure_scores(pool) for pool in pools]
        measured = {pool.name: each[:, -1] for pool, (_, each) in zip(pools, scores, strict=True)}
        configurations = pools[0].configurations
        return cls(
            [pool.name for pool in pools],
            configurations,
            np.stack([each for each, _ in scores]),
            measured,
            np.zeros(len(configurations)) if costs is None else costs,
            rivals or {"random": np.arange(len(configurations))},
        )

    def choose_without(self, pair: str, leave: str, size: int = SIZE) -> list[int]:
        """Choose a portfolio from the pairs that are left without the task or the family of a pair."""
        others = keep_others(self.pairs, pair, leave)
        return choose_portfolio(self.scores[others], self.costs, size) if others else []

    def evaluate(self, leave: str) -> dict[str, Any]:
        """Return the best score of the first k of each pair's portfolio and of its rivals, pair by pair.

        Pairs without others to choose from are left out.
        """
        chosen = {pair: self.choose_without(pair, leave) for pair in self.measured}
        rows = {pair: self.measured[pair] for pair, indices in chosen.items() if indices}
        best: dict[str, list[float]] = {}
        for k in SIZES:
            best[f"portfolio {k}"] = [round(float(rows[pair][chosen[pair][:k]].max()), 4) for pair in rows]
            for name, drawn in self.rivals.items():
                best[f"{name} {k}"] = [round(expect_best(scores[drawn], k), 4) for scores in rows.values()]
        return {"pairs": list(rows), "best": best}


def expect_best(scores: Array, count: int) -> float:
    """Return the expected best of so many random configurations."""
    count = min(count, len(scores))
    total = math.comb(len(scores), count)
    return sum(score * math.comb(rank, count - 1) for rank, score in enumerate(np.sort(scores))) / total


def read_space(algo: str) -> tuple[Space, dict[str, Any]]:
    """Return the shipped space of an algorithm, and the algorithm file's own values of its parameters."""
    space = parse_space(shared_settings.read("space", f"{algo}.yaml"))
    return space, values_of(shared_settings.read("algo", f"{algo}.yaml"), space.names)


def read_own_pools(algo: str, shapes: Collection[int]) -> list[Pool]:
    """Return our curves of an algorithm, of the configurations of some sweeps; tasks without them are left out."""
    if not shapes or not (metadata.FOLDER / "curves.npz").is_file():
        return []
    pairs = metadata.Dataset.read(metadata.FOLDER).pairs
    pools = []
    for pool in read_pools(metadata.FOLDER):
        if pool.algorithm == algo and set(shapes) <= set(pairs[pool.name]["shapes"]):
            rows = [row for row, shape in enumerate(pairs[pool.name]["shapes"]) if shape in shapes]
            configurations = tuple(pool.configurations[row] for row in rows)
            pools.append(replace(pool, curves=pool.curves[rows], configurations=configurations))
    return pools


def build_problem(algo: str, first: bool = False) -> tuple[Problem, dict[str, Array]] | None:
    """Return a problem, and by what is normalised the algorithm file's own configuration and then the random ones.

    Without curves of all these sweeps there is None.

    Args:
        algo: The algorithm.
        first: Choose among the configurations of the first sweeps; else among those of the final ones, as is shipped.
    """
    algorithm = metadata.ALGORITHMS[algo]
    border = len(algorithm.shapes) - algorithm.final
    shapes = range(border) if first else range(border, len(algorithm.shapes))
    if not (pools := read_own_pools(algo, shapes)):
        return None
    pairs = metadata.Dataset.read(metadata.FOLDER).pairs
    shape_of = np.array([shape for shape in pairs[pools[0].name]["shapes"] if shape in shapes])
    groups = {}
    for index in shapes:
        shape = algorithm.shapes[index]
        name = NORMALISED[shape.values[metadata.OBSERVATIONS], shape.values[metadata.REWARDS]]
        groups[name] = np.flatnonzero(shape_of == index)[len(shape.first) :]
    rivals = {"random": np.concatenate([group[1:] for group in groups.values()])}
    rivals |= {f"random, {name} normalised": group[1:] for name, group in groups.items()}
    seconds = np.array(
        [
            [each[0] for each, shape in zip(pair["cpu_s"], pair["shapes"], strict=True) if shape in shapes]
            for pair in (pairs[pool.name] for pool in pools)
        ]
    )
    costs = np.log(np.maximum(seconds, 0.1) / np.median(seconds, axis=1, keepdims=True)).mean(axis=0)
    return Problem.of_pools(pools, costs.round(1), rivals), groups


def compare_normalization(problem: Problem, groups: Mapping[str, Array]) -> dict[str, dict[str, float]]:
    """Return what the algorithm file's values of the time and random ones score, by what is normalised."""
    rows: dict[str, dict[str, float]] = {}
    for name, group in groups.items():
        own = [scores[group] for scores in problem.measured.values()]
        rows[name] = {"file": float(np.mean([scores[0] for scores in own]))}
        rows[name] |= {f"random {k}": float(np.mean([expect_best(scores[1:], k) for scores in own])) for k in SIZES}
    return rows


def read_values(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration of our curves with ``normalise`` as an algorithm's file has it."""
    return {**configuration, "normalise": [name for name, switch in metadata.PARTS.items() if configuration[switch]]}


def spell_portfolio(algo: str, problem: Problem) -> str:
    """Return the file of the shipped choice, with a comment on each configuration's best tasks."""
    space, in_file = read_space(algo)
    chosen = choose_portfolio(problem.scores, problem.costs)
    ends = problem.scores[:, chosen, -1]
    lines = []
    for index, scores in zip(chosen, ends.T, strict=True):
        configuration = in_file | read_values(problem.configurations[index])
        values = {name: round_value(configuration[name]) for name in space.names}
        if len(space.encode(values)) < len(space.dimensions):  # A sweep would leave it out.
            continue
        best = [problem.pairs[row] for row in np.argsort(-scores) if scores[row] >= ends[row].max() - 0.05]
        on = ", ".join(pair.partition("_")[2] for pair in best[:4]) or "no task's best"
        entry = yaml.safe_dump(values, default_flow_style=True, sort_keys=False, width=math.inf).strip()
        lines.append(f"  # {on}\n  - {entry}\n")
    return HEADER.format(algo=algo.upper(), name=algo, num_tasks=len(problem.pairs)) + "".join(lines)


def round_value(value: Any) -> Any:
    """Round a float to the digits that are shown of it."""
    return float(format_value(value)) if isinstance(value, float) else value


def table(record: Mapping[str, Any]) -> str:
    """Return the record as Markdown."""
    lines = []
    for source, by_algo in record["results"].items():
        for algo, by_leave in by_algo.items():
            if normalised := by_leave.get("normalization"):
                lines += [
                    f"\n{source}, {algo}\n",
                    "| normalised | file | 1 | 4 | 8 | 16 |",
                    "|---|---|---|---|---|---|",
                ]
                for name, row in normalised.items():
                    lines.append(f"| {name} | {' | '.join(f'{score:.2f}' for score in row.values())} |")
            for leave in LEAVE:
                row = by_leave[leave]
                if not row["pairs"]:  # There is no other task, or no other family, to choose from.
                    continue
                best = {name: np.array(scores) for name, scores in row["best"].items()}
                lines += [f"\n{source}, {algo}, without the {leave}, {len(row['pairs'])} pairs\n"]
                lines += [
                    "| best of the first | " + " | ".join(map(str, SIZES)) + " |",
                    "|---" * (len(SIZES) + 1) + "|",
                ]
                kinds = list(dict.fromkeys(name.rpartition(" ")[0] for name in best))
                for kind in kinds:
                    cells = [f"{best[f'{kind} {k}'].mean():.2f}" for k in SIZES]
                    lines.append(f"| {kind} | {' | '.join(cells)} |")
                versus = [(k, f"{kind} 16") for k in (4, 8) for kind in kinds[1:]]
                for k, other in [*versus, *((k, f"random {k}") for k in SIZES[:-1])]:
                    difference = bound_mean(best[f"portfolio {k}"] - best[other]).show("+.3f")
                    lines.append(f"- portfolio {k} - {other}: {difference}")
    return "\n".join(lines)


def main() -> None:
    """Choose, print the tables, and write the record and the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of ARLBench's curves")
    parser.add_argument("--write", action="store_true", help="write conf/portfolio/<algorithm>.yaml")
    parser.add_argument("--json", type=Path, help="where the record goes; none: benchmarks/results/portfolio.json")
    arguments = parser.parse_args()
    theirs = read_pools(arguments.data) if arguments.data else []
    results: dict[str, dict[str, Any]] = {"our curves": {}, "our first sweeps": {}, "ARLBench's curves": {}}
    for algo in metadata.ALGORITHMS:
        final = build_problem(algo)
        for source, built in zip(results, (final, build_problem(algo, first=True)), strict=False):
            if built:
                results[source][algo] = {leave: built[0].evaluate(leave) for leave in LEAVE}
                results[source][algo]["normalization"] = compare_normalization(*built)
        if final and arguments.write and (path := ROOT / "conf" / "portfolio" / f"{algo}.yaml").exists():
            path.write_text(spell_portfolio(algo, final[0]))
        if pools := [pool for pool in theirs if pool.algorithm == algo]:
            bench = Problem.of_pools(pools)
            results["ARLBench's curves"][algo] = {leave: bench.evaluate(leave) for leave in LEAVE}
    record = make_record("portfolio", 1, results)
    write_record(record, arguments.json)
    print(table(record))


if __name__ == "__main__":
    main()
