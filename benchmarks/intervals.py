"""95% intervals of means of few values, for all tables of benchmarks/, and how often they hold.

    python -m benchmarks.intervals

Simulates it in half a minute, for as many values as the tables have: for two groups, such as sweeps with two kinds of
settings, and for differences of pairs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from benchmarks.records import make_record, write_record

DRAWS = 20_000
SIZES = {"4 and 4": (4, 4), "6 and 6": (6, 6), "10 and 5": (10, 5), "10 and 10": (10, 10)}
SIZES |= {f"{pairs} pairs": (pairs,) for pairs in (5, 6, 12, 26)}
FAIL, FALL = 0.1, 12.0  # The share of runs that fail, and by how many deviations of the others they lie lower.


class Bounds(NamedTuple):
    """A mean and its 95% interval."""

    mean: float
    low: float
    high: float

    def show(self, form: str) -> str:
        """Return all three in a format, such as ``+.3f``."""
        return f"{self.mean:{form}} [{self.low:{form}}, {self.high:{form}}]"


def bound_mean(values: ArrayLike, less: ArrayLike = ()) -> Bounds:
    """Return a mean with its interval by Student's t, or a difference of two means with Welch's.

    Args:
        values: What the mean is of; a single value has no bounds.
        less: A second group, whose mean is subtracted; none for the mean of ``values`` alone.
    """
    groups = [np.asarray(group, dtype=np.float64) for group in (values, less) if np.size(group)]
    mean = float(groups[0].mean() - sum(group.mean() for group in groups[1:]))
    if min(map(len, groups)) < 2:
        return Bounds(mean, -np.inf, np.inf)
    errors = [group.var(ddof=1) / len(group) for group in groups]
    if not sum(errors):
        return Bounds(mean, mean, mean)
    terms = [error**2 / (len(group) - 1) for error, group in zip(errors, groups, strict=True)]
    half = float(stdtrit(sum(errors) ** 2 / sum(terms), 0.975) * np.sqrt(sum(errors)))
    return Bounds(mean, mean - half, mean + half)


def draw_normal(rng: np.random.Generator, count: int) -> NDArray[np.float64]:
    """Draw runs without failures."""
    return rng.normal(size=count)


def draw_skewed(rng: np.random.Generator, count: int) -> NDArray[np.float64]:
    """Draw runs that are skewed downwards."""
    return 1.0 - rng.exponential(size=count)


def draw_failing(rng: np.random.Generator, count: int) -> NDArray[np.float64]:
    """Draw runs of which some fail."""
    return rng.normal(size=count) - FALL * ((rng.random(count) < FAIL) - FAIL)


RUNS: dict[str, Callable[[np.random.Generator, int], NDArray[np.float64]]] = {
    "normal": draw_normal,
    "skewed downwards (exponential)": draw_skewed,
    f"{FAIL:.0%} fail, {FALL:g} deviations lower": draw_failing,
}
"""Laws whose mean is 0, so that 0 is also the difference of two groups."""


def simulate(sizes: tuple[int, ...], draw: Callable[[np.random.Generator, int], NDArray[np.float64]]) -> float:
    """Return how often the interval holds the true mean of one group, or the true difference of two."""
    rng = np.random.default_rng(0)
    bounds = (bound_mean(*(draw(rng, size) for size in sizes)) for _ in range(DRAWS))
    return sum(each.low <= 0 <= each.high for each in bounds) / DRAWS


def table(record: dict[str, Any]) -> str:
    """Return the record as Markdown, a line for each number of values."""
    kinds = list(next(iter(record["results"].values())))
    lines = [f"| values | {' | '.join(kinds)} |", "|---" * (len(kinds) + 1) + "|"]
    for sizes, shares in record["results"].items():
        lines.append(f"| {sizes} | {' | '.join(f'{share:.1%}' for share in shares.values())} |")
    return "\n".join(lines)


def main() -> None:
    """Simulate, write the record and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="where the record goes; none: benchmarks/results/intervals.json")
    arguments = parser.parse_args()
    results = {words: {name: simulate(sizes, draw) for name, draw in RUNS.items()} for words, sizes in SIZES.items()}
    record = make_record("intervals", DRAWS, results)
    write_record(record, arguments.json)
    print(table(record))


if __name__ == "__main__":
    main()
