"""How often do the intervals of a certification hold? Simulated certifications, whose true values are known.

    python -m benchmarks.coverage [--simulations 5000] [--policies 2000]

The functions are those that a sweep calls. First table: runs of one configuration, and the winner among four equal
ones, whose interval and score must not owe anything to being chosen. Two rows differ in the start states alone: each
training seed plays others, as a sweep's do, or all seeds play the same ones, whose luck no interval can see. Second
table: the registered policy, whose interval is to hold the mean of fresh episodes. About six minutes; it is no timing,
so that other work does not matter.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.records import make_record, write_record
from rltune.certification.result import Configuration, SeedResult, judge_configurations
from rltune.statistics import interquartile_mean, median_interval, predictive_interval

Array = NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, ...]], Array]
NAMES = ("baseline", "trial 1", "trial 2", "trial 3")
POPULATION = 1_000_000  # values that stand for all: the median's error is a thousandth of a deviation


def draw_bimodal(share: float) -> Draw:
    """Return what draws runs of which a share comes out far lower."""
    return lambda rng, shape: np.where(rng.random(shape) < share, 10.0, 200.0) + rng.normal(0, 10, shape)


def draw_on_start_states(shared: bool) -> Draw:
    """Return what draws runs whose start states move their return by one standard deviation of a training seed.

    Args:
        shared: All runs of a certification play the same start states. Else each training seed has its own, which the
            configurations share.
    """

    def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        luck = shape if len(shape) == 1 else (shape[0], 1, 1 if shared else shape[2])
        return rng.normal(200, 20, shape) + rng.normal(0, 20, luck)

    return draw


RUNS: dict[str, Draw] = {
    "normal": lambda rng, shape: rng.normal(200, 20, shape),
    "skewed upwards (exponential)": lambda rng, shape: rng.exponential(100, shape),
    "skewed downwards (exponential)": lambda rng, shape: 500 - rng.exponential(100, shape),
    "log-normal": lambda rng, shape: 100 * rng.lognormal(size=shape),
    "heavy tails (Student, 2 degrees)": lambda rng, shape: 200 + 20 * rng.standard_t(2, shape),
    "bimodal, 10% bad seeds": draw_bimodal(0.1),
    "bimodal, 30% bad seeds": draw_bimodal(0.3),
    "bimodal, 45% bad seeds": draw_bimodal(0.45),
    "at a cap (500 in half of the runs)": lambda rng, shape: np.minimum(rng.normal(500, 5, shape).round(), 500),
    "start states of its own for each seed": draw_on_start_states(shared=False),
    "the same start states for all seeds (not so here)": draw_on_start_states(shared=True),
}
EPISODES: dict[str, Draw] = {
    "normal": lambda rng, shape: rng.normal(100, 20, shape),
    "exponential": lambda rng, shape: rng.exponential(100, shape),
    "2% failures": lambda rng, shape: np.where(rng.random(shape) < 0.02, 0, rng.normal(480, 10, shape)),
    "0.5% large failures": lambda rng, shape: np.where(rng.random(shape) < 0.005, -1000, rng.normal(480, 10, shape)),
}
PLAYED = (50, 100, 100)  # episodes that choose the policy, that compare champions, and that measure it: conf/certify/on


def simulate_runs(draw: Draw, num_seeds: int, simulations: int) -> dict[str, float]:
    """Simulate certifications of four equal configurations.

    Returns:
        Shares of intervals that hold: ``alone`` of one configuration, ``winner`` of the chosen one; and in standard
        deviations how much too high the winner's score is: ``raw`` as its own runs are, ``shown`` as it is shown, both
        beside the same of one configuration alone.
    """
    rng = np.random.default_rng(0)
    population = draw(rng, (POPULATION,))
    median, deviation = float(np.median(population)), float(population.std())
    scores = draw(rng, (simulations, len(NAMES), num_seeds))
    alone, winner, raw, shown = [], [], [], []
    for equals in scores:
        ends = median_interval(equals[0])
        assert ends is not None
        alone.append(ends[0] <= median <= ends[1])
        found = judge_configurations(
            [
                Configuration(name, None, {}, None, tuple(SeedResult(s, v, (v,)) for s, v in enumerate(own)))
                for name, own in zip(NAMES, equals.tolist(), strict=True)
            ],
            range(num_seeds),
            1,
        )
        assert found is not None
        best = found.best()
        assert best.low is not None
        assert best.high is not None
        assert best.raw_iqm is not None
        winner.append(best.low <= median <= best.high)
        raw.append(best.raw_iqm)
        shown.append(best.iqm)
    fair = interquartile_mean(scores[:, 0]).mean()
    return {
        "alone": float(np.mean(alone)),
        "winner": float(np.mean(winner)),
        "raw": float(np.mean(raw) - fair) / deviation,
        "shown": float(np.mean(shown) - fair) / deviation,
    }


def simulate_policy(draw: Draw, simulations: int) -> dict[str, float]:
    """Simulate the measurement of a registered policy; return the share of its intervals that hold."""
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(simulations):
        chosen, compared, measured = (draw(rng, (count,)) for count in PLAYED)
        worst = float(min(chosen.min(), compared.min(), measured.min()))
        low, high = predictive_interval(measured, len(measured), worst)
        inside += low <= draw(rng, (PLAYED[-1],)).mean() <= high
    return {"policy": inside / simulations}


def table(record: dict[str, Any]) -> str:
    """Return both tables in Markdown."""
    found = record["results"]
    lines = [
        "| runs | seeds | one configuration | winner of four equals | its score, as chosen | as shown |",
        "|---|---|---|---|---|---|",
    ]
    for name, sizes in found["runs"].items():
        for size, row in sizes.items():
            cells = f"{row['alone']:.1%} | {row['winner']:.1%} | {row['raw']:+.2f} | {row['shown']:+.2f}"
            lines.append(f"| {name} | {size} | {cells} |")
    lines += ["", "| episodes of the policy | interval holds |", "|---|---|"]
    lines += [f"| {name} | {row['policy']:.1%} |" for name, row in found["policies"].items()]
    return "\n".join(lines)


def main() -> None:
    """Simulate, write the figures and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulations", type=int, default=5000)
    parser.add_argument("--policies", type=int, default=2000, help="simulated policies, which take longer")
    parser.add_argument("--json", type=Path, help="where the record goes; none: benchmarks/results/coverage.json")
    given = parser.parse_args()
    results = {
        "runs": {
            name: {str(size): simulate_runs(draw, size, given.simulations) for size in (5, 10)}
            for name, draw in RUNS.items()
        },
        "policies": {name: simulate_policy(draw, given.policies) for name, draw in EPISODES.items()},
    }
    record = make_record("coverage", given.simulations, results)
    write_record(record, given.json)
    print(table(record))


if __name__ == "__main__":
    main()
