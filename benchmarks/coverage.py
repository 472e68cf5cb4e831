"""How often is what a certification says true? Simulated sweeps, whose true values are known.

    python -m benchmarks.coverage [--simulations 2000]

A sweep: 24 configurations of normal worth, of which each has one noisy score; the best one or three are certified
beside a baseline as good as the 90th percentile. ``tau`` is the spread of worth in standard deviations of a run; at 0
all are equal. The functions are those that a sweep calls. About five minutes on two
quiet cores; it is no timing, so that other work does not matter.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.records import make_record, write_record
from rltune.certification.result import MIN_RUNS, Configuration, SeedResult, judge_configurations
from rltune.records import BASELINE

Array = NDArray[Any]
Draw = Callable[[np.random.Generator, tuple[int, ...]], Array]
SEARCHED = 24
TOPS, SEEDS, TAUS = (1, 3), (3, 5, 10), (0.0, 0.5, 1.0, 2.0)
NINETIETH = 1.2816  # The 90th percentile of the standard normal distribution.
BAD = 6.0  # How far below the others a run ends that did not learn.
WORST_EPISODE = 2.0  # How far below a run's score its worst episode lies, which a run that diverged counts as.
POPULATION = 200_000  # Values that stand for all: the error of their median is three thousandths of a deviation.


def draw_bimodal(share: float) -> Draw:
    """Return what draws runs of which a share ends far lower."""
    return lambda rng, shape: rng.normal(0, 0.5, shape) - BAD * (rng.random(shape) < share)


@dataclass(frozen=True)
class Runs:
    """How the runs of a configuration differ.

    Attributes:
        draw: Draws what is added to a configuration's worth. It is scaled to a standard deviation of 1.
        fragile: Share of configurations of which three runs in ten end 4 deviations lower.
        diverged: Share of runs that fail, so that they have no score.
        episodes: Standard deviation of the luck of the start states, which each training seed has of its own and all
            configurations share.
    """

    draw: Draw = lambda rng, shape: rng.normal(size=shape)
    fragile: float = 0.0
    diverged: float = 0.0
    episodes: float = 0.0


RUNS: dict[str, Runs] = {
    "normal": Runs(),
    "skewed downwards (exponential)": Runs(lambda rng, shape: -rng.exponential(size=shape)),
    "skewed upwards (exponential)": Runs(lambda rng, shape: rng.exponential(size=shape)),
    "heavy tails (Student, 3 degrees)": Runs(lambda rng, shape: rng.standard_t(3, shape)),
    "at a cap in 40% of the runs": Runs(lambda rng, shape: np.minimum(rng.normal(size=shape), 0.25)),
    "10% bad seeds": Runs(draw_bimodal(0.1)),
    "30% bad seeds": Runs(draw_bimodal(0.3)),
    "10% of the runs diverge": Runs(diverged=0.1),
    "30% of the runs diverge": Runs(diverged=0.3),
    "half of the configurations fragile": Runs(fragile=0.5),
    "start states, deviation 0.5": Runs(episodes=0.5),
    "start states, deviation 1": Runs(episodes=1.0),
    "start states, deviation 2": Runs(episodes=2.0),
}


@dataclass(frozen=True)
class Sweeps:
    """Simulated sweeps.

    Attributes:
        scores: Of the certified runs [sweeps, configurations, seeds], NaN of a run that diverged; the baseline is last.
        medians: The true median of each configuration's runs [sweeps, configurations].
        means: The true mean.
    """

    scores: Array
    medians: Array
    means: Array


def draw_sweeps(runs: Runs, top: int, num_seeds: int, tau: float, simulations: int) -> Sweeps:
    """Search and retrain in many sweeps at once."""
    rng = np.random.default_rng([top, num_seeds, round(10 * tau)])
    population = runs.draw(rng, (POPULATION,))
    middle, scale = population.mean(), population.std()

    def draw(is_fragile: Array, shape: tuple[int, ...]) -> Array:
        noise = (runs.draw(rng, shape) - middle) / scale
        return np.asarray(noise - 4.0 * (is_fragile & (rng.random(shape) < 0.3)))

    worth = tau * rng.normal(size=(simulations, SEARCHED))
    fragile = rng.random(worth.shape) < runs.fragile
    best = np.argsort(-(worth + draw(fragile, worth.shape)), axis=1)[:, :top]
    baseline = np.full((simulations, 1), NINETIETH * tau)
    worth = np.hstack([np.take_along_axis(worth, best, 1), baseline])
    fragile = np.hstack([np.take_along_axis(fragile, best, 1), rng.random(baseline.shape) < runs.fragile])
    scores = worth[..., None] + draw(fragile[..., None], (*worth.shape, num_seeds))
    scores += runs.episodes * rng.normal(size=(simulations, 1, num_seeds))
    scores[rng.random(scores.shape) < runs.diverged] = np.nan
    sound, frail = draw(np.array([[False], [True]]), (2, POPULATION)) + runs.episodes * rng.normal(size=(2, POPULATION))
    # A run that diverges lies below the median, and counts the same in each configuration of a sweep.
    quantile = (0.5 - runs.diverged) / (1.0 - runs.diverged)
    medians = worth + np.where(fragile, np.quantile(frail, quantile), np.quantile(sound, quantile))
    means = (1.0 - runs.diverged) * worth - 1.2 * fragile
    return Sweeps(scores, medians, means)


def simulate(name: str, top: int, num_seeds: int, tau: float, simulations: int) -> dict[str, float]:
    """Judge simulated sweeps of the kind ``name``.

    Returns:
        Shares of sweeps: in which the winner's ``interval`` holds its median; in which the interval of the
        ``difference`` of the best finalist to the baseline holds; ``nothing`` of those in which no finalist is better,
        in which one is called so; ``found`` of all, in which one is called better that is; ``false`` of those that call
        one better, in which one of these is not. And ``too_high``: how much the winner's median is above the true one.
    """
    sweeps = draw_sweeps(RUNS[name], top, num_seeds, tau, simulations)
    names = [*(f"trial {number}" for number in range(top)), BASELINE]
    holds, differs, too_high, nothing, found, false = [], [], [], [], [], []
    for scores, medians, means in zip(sweeps.scores.tolist(), sweeps.medians, sweeps.means, strict=True):
        judged = judge_configurations(
            [_configure(*each) for each in zip(names, scores, strict=True)], range(num_seeds), 1
        )
        if judged is None:
            continue
        best, true_medians = judged.best(), dict(zip(names, medians, strict=True))
        worths = dict(zip(names, means - means[-1], strict=True))
        if best.low is not None and best.high is not None and best.median is not None:
            holds.append(best.low <= true_medians[best.name] <= best.high)
            too_high.append(best.median - true_medians[best.name])
        rivals = [each for each in judged.configurations if each.difference]
        if rivals and (bounds := rivals[0].difference) and bounds.low is not None and bounds.high is not None:
            differs.append(bounds.low <= worths[rivals[0].name] <= bounds.high)
        said = [worths[each.name] > 0 for each in rivals if "better" in judged.verdict(each)]
        if max(worths.values()) <= 0:
            nothing.append(bool(said))
        found.append(any(said))
        false += [not all(said)] if said else []
    results = {"interval": holds, "too_high": too_high, "difference": differs, "nothing": nothing}
    return {name: float(np.mean(each)) for name, each in (results | {"found": found, "false": false}).items() if each}


def _configure(name: str, scores: list[float]) -> Configuration:
    """Return a configuration with such runs; a score of NaN is a run that failed."""
    seeds = {seed: score for seed, score in enumerate(scores) if not np.isnan(score)}
    done = tuple(SeedResult(seed, score, (score - WORST_EPISODE,)) for seed, score in seeds.items())
    failed = tuple(seed for seed in range(len(scores)) if seed not in seeds)
    return Configuration(name, None, {}, None, done, failed)


def table(record: dict[str, Any]) -> str:
    """Return the tables in Markdown. A cell has one finalist and three of them; of intervals, the least of all taus."""
    found = record["results"]
    lines = [
        "| runs | seeds | median's interval holds | median too high | difference's interval holds "
        "| nothing better, one called so | found at tau 0.5 | tau 1 | tau 2 | of these false, tau 1 |",
        f"|{'---|' * 10}",
    ]
    for name, size in itertools.product(RUNS, map(str, SEEDS)):
        both = [[found["runs"][name][str(top)][size][str(tau)] for tau in TAUS] for top in TOPS]
        least = [{key: min(row.get(key, 1.0) for row in rows) for key in ("interval", "difference")} for rows in both]
        too_high = [max(row.get("too_high", 0.0) for row in rows) for rows in both]
        cells = [
            _pair([row["interval"] for row in least]) if int(size) >= MIN_RUNS else "-",
            _pair(too_high, "+.2f") if int(size) >= MIN_RUNS else "-",
            _pair([row["difference"] for row in least]),
            _pair([rows[0]["nothing"] for rows in both]),
            *(_pair([rows[place]["found"] for rows in both]) for place in (1, 2, 3)),
            _pair([rows[2].get("false", 0.0) for rows in both]),
        ]
        lines.append(f"| {name} | {size} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _pair(values: list[float], form: str = ".1%") -> str:
    return " / ".join(format(value, form) for value in values)


def main() -> None:
    """Simulate, write the figures and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulations", type=int, default=2000)
    parser.add_argument("--json", type=Path, help="where the record goes; none: benchmarks/results/coverage.json")
    given = parser.parse_args()
    cases = list(itertools.product(RUNS, TOPS, SEEDS, TAUS))
    results: dict[str, Any] = {name: {str(top): {str(size): {} for size in SEEDS} for top in TOPS} for name in RUNS}
    with ProcessPoolExecutor() as pool:
        simulated = pool.map(simulate, *zip(*cases, strict=True), itertools.repeat(given.simulations))
        for (name, top, size, tau), row in zip(cases, simulated, strict=True):
            results[name][str(top)][str(size)][str(tau)] = row
    record = make_record("coverage", given.simulations, {"runs": results})
    write_record(record, given.json)
    print(table(record))


if __name__ == "__main__":
    main()
