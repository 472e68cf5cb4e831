"""How often is what a certification says true? Simulated runs, whose true laws are known.

    python -m benchmarks.coverage [--simulations 20000]

A configuration is better than the baseline if a run of it does better than one of the baseline on the same seed more
often than not. **Wrong** is a sweep in which, at any of up to four looks at 5, 10, 20 and 40 seeds, a configuration is
called better that does better at most every other time. As in a sweep, only the configuration that ranks highest gets
the seeds of a further look. In `LAWS` finalist and baseline differ in how they fail, and are shifted so that each does
better every other time: the hardest case. In `SEARCHES` the best one or three of 24 configurations are certified, of
which half are fragile, and are better than others when they work. **Found** is a sweep in which one is called better
that is. Welch's rule, which an earlier version had, is judged by the same truth.

The verdicts are those of `judge_configurations`. It is no timing, so that other work on the machine does not matter;
a quarter of an hour on two cores.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, stdtrit

from benchmarks.records import RESULTS, make_record, write_record
from rltune.certification.result import Configuration, SeedResult, judge_configurations
from rltune.records import BASELINE
from rltune.statistics import interquartile_mean

Array = NDArray[Any]
Draw = Callable[[np.random.Generator, tuple[int, ...]], Array]
LOOKS, TOPS = (5, 10, 20, 40), (1, 3)
NUM_INTERVALS = 2000  # The simulated sweeps whose intervals are computed.
POPULATION = 400_001  # Draws that stand for all: the error of their median is two thousandths of a deviation.
SEARCHED = 24
NINETIETH = 1.2816  # The 90th percentile of the standard normal distribution.
FRAGILE_FAILS = 0.3  # How often a run of a fragile configuration fails.
RECORDED = ("ppo_cartpole", "ppo_pendulum", "sac_pendulum", "sac_hopper")
EFFECTS = (0.5, 1.0, 2.0)  # How much better a finalist is than the baseline, in deviations of a run that works.


def draw_normal(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Draw runs of a normal law with a deviation of 1."""
    return rng.normal(size=shape)


def fail(share: float, gap: float, draw: Draw = draw_normal) -> Draw:
    """Return what draws runs of which a share ends ``gap`` deviations lower."""
    return lambda rng, shape: draw(rng, shape) - gap * (rng.random(shape) < share)


def diverge(share: float) -> Draw:
    """Return what draws runs of which a share has no score (NaN)."""
    return lambda rng, shape: np.where(rng.random(shape) < share, np.nan, rng.normal(size=shape))


def draw_recorded(task: str) -> Draw:
    """Return what draws from the final returns that `benchmarks.parity` has recorded, of both libraries."""
    rows = json.loads((RESULTS / "parity.json").read_text())["results"]
    finals = np.array([row["final"] for row in rows if row["task"] == task])
    return lambda rng, shape: rng.choice(finals, shape)


@dataclass(frozen=True)
class Law:
    """How the runs of the finalists and of the baseline are drawn.

    Attributes:
        finalist: Draws the runs of a finalist.
        baseline: Draws those of the baseline.
        shared: Standard deviation of the luck of the start states, which the runs of a seed share.
    """

    finalist: Draw = draw_normal
    baseline: Draw = draw_normal
    shared: float = 0.0


def alike(draw: Draw) -> Law:
    """Return the law of finalists and a baseline whose runs are drawn in the same way."""
    return Law(draw, draw)


LAWS: dict[str, Law] = {
    "normal": Law(),
    "skewed downwards (exponential)": alike(lambda rng, shape: -rng.exponential(size=shape)),
    "heavy tails (Student, 3 degrees)": alike(lambda rng, shape: rng.standard_t(3, shape)),
    "at a cap in 40% of the runs": alike(lambda rng, shape: np.minimum(rng.normal(size=shape), 0.25)),
    "the finalist's spread is five times the baseline's": Law(lambda rng, shape: 5.0 * rng.normal(size=shape)),
    "start states, deviation 2": Law(shared=2.0),
    **{
        f"the finalist fails in {share:.0%}, {gap:g} lower": Law(fail(share, gap))
        for share, gap in itertools.product((0.1, 0.3), (4.0, 20.0, 100.0))
    },
    "the baseline fails in 30%, 20 lower": Law(baseline=fail(0.3, 20.0)),
    "both fail in 30%, 20 lower": alike(fail(0.3, 20.0)),
    "30% of the finalist's runs diverge": Law(diverge(0.3)),
    "30% of all runs diverge": alike(diverge(0.3)),
    **{f"recorded returns, {task}": Law(draw_recorded(task)) for task in RECORDED},
    "recorded returns of both, ppo_cartpole": alike(draw_recorded("ppo_cartpole")),
}


@dataclass(frozen=True)
class Search:
    """A search over configurations of normal worth, half of which are fragile.

    Attributes:
        spread: Standard deviation of the worth, in deviations of a run that works.
        bonus: How much better a fragile configuration is when it works.
        gap: How much lower a run that fails ends.
    """

    spread: float
    bonus: float
    gap: float


SEARCHES = {
    f"spread {spread:g}, the fragile {bonus:g} better, failures {gap:g} lower": Search(spread, bonus, gap)
    for spread, bonus, gap in itertools.product((0.0, 1.0), (1.0, 2.0), (4.0, 20.0, 100.0))
}


def draw_law(
    law: Law, top: int, rng: np.random.Generator, simulations: int, effect: float = 0.0
) -> tuple[Array, Array]:
    """Draw the runs of finalists and baseline, shifted so that a finalist does better every other time.

    Args:
        law: How runs are drawn.
        top: The number of finalists.
        rng: The random numbers.
        simulations: The number of sweeps.
        effect: What is added to a finalist's runs after the shift.

    Returns:
        The scores, shape (simulations, top + 1, 40) with the baseline last, and how often each finalist does better
        than the baseline, shape (simulations, top).
    """
    ours, theirs = law.finalist(rng, (POPULATION,)), law.baseline(rng, (POPULATION,))
    # A run that diverged does worse than each that did not, and two of them are a tie, which nobody wins.
    differences = np.where(np.isnan(ours), -np.inf, np.where(np.isnan(theirs), np.inf, ours - theirs))
    differences = np.where(np.isnan(ours) & np.isnan(theirs), -np.inf, differences)
    middle = np.quantile(differences, 0.5, method="higher")
    shift = effect - (float(middle) if np.isfinite(middle) else 0.0)
    runs = law.finalist(rng, (simulations, top, LOOKS[-1])) + shift
    scores = np.concatenate([runs, law.baseline(rng, (simulations, 1, LOOKS[-1]))], axis=1)
    scores += law.shared * rng.normal(size=(simulations, 1, LOOKS[-1]))
    share = float(np.mean(differences + shift > 1e-9)) if effect else 0.5
    return scores, np.full((simulations, top), share)


def draw_search(search: Search, top: int, rng: np.random.Generator, simulations: int) -> tuple[Array, Array]:
    """Search, and draw the runs of the best configurations and of a baseline that never fails.

    Without failures, the baseline is as good as a fragile configuration in the best tenth.

    Returns:
        As `draw_law`.
    """
    is_fragile = np.arange(SEARCHED) % 2 == 0
    worth = search.spread * rng.normal(size=(simulations, SEARCHED)) + search.bonus * is_fragile

    def draw(worth: Array, is_fragile: Array) -> Array:
        has_failed = is_fragile & (rng.random(worth.shape) < FRAGILE_FAILS)
        return np.asarray(worth + rng.normal(size=worth.shape) - search.gap * has_failed)

    strong = NINETIETH * search.spread + search.bonus
    best = np.argsort(-draw(worth, np.broadcast_to(is_fragile, worth.shape)), axis=1)[:, :top]
    chosen = np.concatenate([np.take_along_axis(worth, best, 1), np.full((simulations, 1), strong)], axis=1)
    fragile = np.concatenate([is_fragile[best], np.zeros((simulations, 1), dtype=bool)], axis=1)
    shape = (*chosen.shape, LOOKS[-1])
    scores = draw(np.broadcast_to(chosen[..., None], shape), np.broadcast_to(fragile[..., None], shape))
    works, fails = (ndtr((chosen[:, :-1] - strong - gap) / math.sqrt(2.0)) for gap in (0.0, search.gap))
    return scores, np.where(fragile[:, :-1], (1 - FRAGILE_FAILS) * works + FRAGILE_FAILS * fails, works)


@functools.cache
def judge(num_wins: tuple[int, ...], num_pairs: tuple[int, ...]) -> tuple[bool, ...]:
    """Return which finalists are called better, by what a sweep calls; only who wins which pair matters to it."""
    baseline = _configure(BASELINE, [0.0] * max(num_pairs))
    finalists = [
        _configure(f"trial {number}", [1.0] * wins + [-1.0] * (pairs - wins))
        for number, (wins, pairs) in enumerate(zip(num_wins, num_pairs, strict=True))
    ]
    judged = judge_configurations([baseline, *finalists], range(max(num_pairs)), 1)
    assert judged is not None
    better = {configuration.name: configuration.better for configuration in judged.configurations}
    return tuple(better[finalist.name] for finalist in finalists)


def _configure(name: str, scores: Sequence[float]) -> Configuration:
    runs = tuple(SeedResult(seed, score, (score,)) for seed, score in enumerate(scores))
    return Configuration(name, None, {}, None, runs)


def follow(scores: Array, wins: Array) -> list[tuple[bool, ...]]:
    """Return which finalists of a sweep are called better at each of the looks.

    Args:
        scores: The runs of the finalists, shape (top, 40).
        wins: Which of them did better than the baseline's, in the same shape.
    """
    num_pairs = [LOOKS[0]] * len(scores)
    verdicts = []
    for size in LOOKS:
        if size > LOOKS[0]:
            middles = [float(interquartile_mean(runs[:count])) for runs, count in zip(scores, num_pairs, strict=True)]
            num_pairs[int(np.argmax(middles))] = size
        num_wins = tuple(int(each[:count].sum()) for each, count in zip(wins, num_pairs, strict=True))
        verdicts.append(judge(num_wins, tuple(num_pairs)))
    return verdicts


def holds_median(scores: Array, medians: Array) -> bool | None:
    """Return whether the winner's interval at the first look holds the median of its runs; None without a winner.

    Args:
        scores: Shape (top + 1, 40), the baseline last; NaN of a run that diverged.
        medians: The true medians, shape (top + 1,).
    """
    names = [*(f"trial {number}" for number in range(len(scores) - 1)), BASELINE]
    configurations = []
    for name, runs in zip(names, scores[:, : LOOKS[0]].tolist(), strict=True):
        done = tuple(SeedResult(seed, score, (score,)) for seed, score in enumerate(runs) if not math.isnan(score))
        failed = tuple(seed for seed, score in enumerate(runs) if math.isnan(score))
        configurations.append(Configuration(name, None, {}, None, done, failed))
    judged = judge_configurations([configurations[-1], *configurations[:-1]], range(LOOKS[0]), 1)
    best = judged.best() if judged else None
    if best is None or best.low is None or best.high is None:
        return None
    return bool(best.low <= medians[names.index(best.name)] <= best.high)


def judge_by_welch(scores: Array, num_seeds: int) -> Array:
    """Return which finalists Welch's interval of the means calls better, as an earlier version did.

    Args:
        scores: Shape (simulations, top + 1, at least num_seeds), the baseline last; NaN counts as the sweep's worst.
        num_seeds: How many seeds are looked at.

    Returns:
        Shape (simulations, top).
    """
    seen = scores[..., :num_seeds]
    seen = np.where(np.isnan(seen), np.nanmin(seen, axis=(1, 2), keepdims=True), seen)
    mean, error = seen.mean(axis=2), seen.var(axis=2, ddof=1) / num_seeds
    both = error[:, :-1] + error[:, -1:]
    freedom = both**2 / ((error[:, :-1] ** 2 + error[:, -1:] ** 2) / (num_seeds - 1))
    half = stdtrit(freedom, 1.0 - 0.05 / max(2, scores.shape[1] - 1)) * np.sqrt(both)
    return np.asarray(mean[:, :-1] - mean[:, -1:] > half)


def simulate(name: str, top: int, effect: float, simulations: int) -> dict[str, Any]:
    """Judge simulated sweeps of the kind ``name``.

    Returns:
        Shares of the sweeps, each a list over the looks: those in which up to this look something was called better
        that is not (``wrong``), and that is (``found``); and both by Welch's rule at this look alone (``welch_wrong``,
        ``welch_found``). And of `LAWS` the share of the first sweeps whose winner's ``interval`` holds its median.
    """
    rng = np.random.default_rng([sum(name.encode()), top, round(10 * effect)])
    if name in LAWS:
        scores, truth = draw_law(LAWS[name], top, rng, simulations, effect)
    else:
        scores, truth = draw_search(SEARCHES[name], top, rng, simulations)
    has_failed = np.isnan(scores)
    ranked = np.where(has_failed, np.nanmin(scores, axis=(1, 2), keepdims=True), scores)
    wins = ~has_failed[:, :-1] & (has_failed[:, -1:] | (ranked[:, :-1] > ranked[:, -1:] + 1e-9))
    verdicts = np.array([follow(*each) for each in zip(ranked[:, :-1], wins, strict=True)])
    said = np.maximum.accumulate(verdicts, axis=1)  # Shape (simulations, looks, top).
    is_better = truth > 0.5 + 1e-12
    welch = np.stack([judge_by_welch(scores, size) for size in LOOKS], axis=1)
    shares = {
        f"{rule}{kind}": (verdict & mask[:, None]).any(axis=2).mean(axis=0).round(5).tolist()
        for rule, verdict in (("", said), ("welch_", welch))
        for kind, mask in (("wrong", ~is_better), ("found", is_better))
    }
    if name in LAWS:
        # All simulated runs of finalists follow one law, so that their middle is its median.
        filled = np.where(has_failed, -np.inf, scores)
        medians = np.array(
            [np.quantile(filled[:, :-1], 0.5, method="lower")] * top + [np.quantile(filled[:, -1], 0.5, method="lower")]
        )
        held = [holds_median(each, medians) for each in scores[:NUM_INTERVALS]]
        shares["interval"] = float(np.mean([each for each in held if each is not None]))
    return shares


def measure_welch(task: str, num_seeds: int, simulations: int) -> float:
    """Return how often Welch's rule calls a finalist better that has the mean of the baseline, but fails now and then.

    The finalist's runs are drawn from the recorded returns of a task. The baseline never fails: its runs are normal
    around the mean of these returns, with the spread of their middle half.
    """
    rng = np.random.default_rng([sum(task.encode()), num_seeds])
    recorded = draw_recorded(task)
    finals = recorded(rng, (POPULATION,))
    low, high = np.quantile(finals, [0.25, 0.75])
    ours = recorded(rng, (simulations, 1, num_seeds))
    theirs = rng.normal(finals.mean(), (high - low) / (2 * 0.6745), ours.shape)
    return float(judge_by_welch(np.concatenate([ours, theirs], axis=1), num_seeds).mean())


def table(record: dict[str, Any]) -> str:
    """Return the tables in Markdown; a cell has one finalist and three of them."""
    results = record["results"]
    looks = " | ".join(f"{size} seeds" if size == LOOKS[0] else f"up to {size}" for size in LOOKS)
    head = f"| called better, and is not | {looks} | Welch, 5 seeds | the winner's interval holds, 5 seeds |"
    lines = [head, f"|{'---|' * (len(LOOKS) + 3)}"]
    for name, row in (results["laws"] | results["searches"]).items():
        cells = [_pair([row[str(top)]["wrong"][look] for top in TOPS]) for look in range(len(LOOKS))]
        cells.append(_pair([row[str(top)]["welch_wrong"][0] for top in TOPS]))
        cells.append(_pair([row[str(top)]["interval"] for top in TOPS]) if name in results["laws"] else "-")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += ["", f"| called better, and is, one finalist | {looks} | Welch, 5 seeds | 10 | 20 |", f"|{'---|' * 8}"]
    for name, row in results["effects"].items():
        cells = [f"{share:.0%}" for share in (*row["found"], *row["welch_found"][:3])]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    for name, row in results["searches"].items():
        found = row["1"]
        cells = [f"{share:.0%}" for share in (*found["found"], *found["welch_found"][:3])]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += ["", "| Welch's rule calls better, though the means are equal | 3 seeds | 5 | 10 |", f"|{'---|' * 4}"]
    for task, row in results["welch"].items():
        lines.append(
            f"| finalist drawn from the recorded returns of {task} | {' | '.join(f'{share:.0%}' for share in row)} |"
        )
    return "\n".join(lines)


def _pair(values: list[float]) -> str:
    return " / ".join(f"{value:.1%}" for value in values)


def main() -> None:
    """Simulate, write the figures and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulations", type=int, default=20_000)
    parser.add_argument("--json", type=Path, help="where the record goes; none: benchmarks/results/coverage.json")
    given = parser.parse_args()
    cases = [(name, top, 0.0) for name in (*LAWS, *SEARCHES) for top in TOPS]
    shown = ("normal", "the finalist fails in 10%, 20 lower", "both fail in 30%, 20 lower", "start states, deviation 2")
    cases += [(name, 1, effect) for name in shown for effect in EFFECTS]
    results: dict[str, Any] = {"laws": {}, "searches": {}, "effects": {}, "welch": {}}
    for task in RECORDED:
        results["welch"][task] = [measure_welch(task, size, given.simulations) for size in (3, 5, 10)]
    with ProcessPoolExecutor() as pool:
        simulated = pool.map(simulate, *zip(*cases, strict=True), itertools.repeat(given.simulations))
        for (name, top, effect), row in zip(cases, simulated, strict=True):
            if effect:
                results["effects"][f"{name}, {effect:g} better"] = row
            else:
                results["laws" if name in LAWS else "searches"].setdefault(name, {})[str(top)] = row
    record = make_record("coverage", given.simulations, results)
    write_record(record, given.json)
    print(table(record))


if __name__ == "__main__":
    main()
