"""Does the report say truly what mattered? Simulated sweeps, whose true shares are known.

    python -m benchmarks.importance [--simulations 200] [--trials 50]

The functions are those that a report calls. Half of the trials are stopped at a tenth or at three tenths of the budget.
A row for each kind of sweep: the true shares, the mean of those that are told, how often the 95% intervals hold the
truth, how often nothing is told, and of the parameters without an effect, how often one is said to have one. Ten
minutes on two cores; it is no timing.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.records import make_record, write_record
from rltune.config.criteria import NO_CRITERIA
from rltune.formatting import format_duration
from rltune.records import SweepRecord, TrialRecord
from rltune.reporting.importance.what_mattered import find_what_mattered
from rltune.reporting.sweep_data import SweepData
from rltune.search.space import Space, parse_space

Array = NDArray[np.float64]
BUDGET, REPORTS, STOPS = 100_000, 20, (0.1, 0.3)
STOPPED = {"weak": "weak ones", "chance": "any"}
LUCK, LASTING = 0.2, 0.6  # of the variance at the whole budget; what of it is the same in all of a trial's reports
SPACE = parse_space(
    {
        "lr": ["loguniform", 1e-5, 1e-2],
        "gamma": ["one_minus_loguniform", 0.001, 0.1],
        "ent_coef": ["uniform", 0.0, 0.1],
        "minibatch_size": ["pow2", 64, 512],
        "activation": ["choice", "relu", "tanh"],
        "use_lstm": ["choice", True, False],
    }
)


@dataclass(frozen=True)
class Kind:
    """A kind of sweep.

    Attributes:
        score: The score of variance 1 at places from 0 to 1 by name, at a share of the budget.
        true: Each parameter's share of that, alone and together with others.
    """

    score: Callable[[Mapping[str, Array], float], Array]
    true: Mapping[str, float]


def _rise(places: Array) -> Array:
    """A straight line of variance 1."""
    return np.asarray(np.sqrt(12.0) * (places - 0.5))


def _flip(places: Array) -> Array:
    """Minus and plus 1 at a choice of two."""
    return 2.0 * places - 1.0


KINDS = {
    "one matters, best inside": Kind(
        lambda at, done: (0.37 / 3 - (at["lr"] - 0.7) ** 2) / np.sqrt(0.0341 - (0.37 / 3) ** 2), {"lr": 1.0}
    ),
    "two act together only": Kind(
        lambda at, done: _rise(at["lr"]) * _rise(at["ent_coef"]), {"lr": 1.0, "ent_coef": 1.0}
    ),
    "two choices act together only": Kind(
        lambda at, done: _flip(at["activation"]) * _flip(at["use_lstm"]), {"activation": 1.0, "use_lstm": 1.0}
    ),
    "three matter": Kind(
        lambda at, done: 0.8 * _rise(at["lr"]) + 0.5 * _flip(at["activation"]) + 0.3317 * _rise(at["gamma"]),
        {"lr": 0.64, "activation": 0.25, "gamma": 0.11},
    ),
    "one matters late only": Kind(
        lambda at, done: 0.8 * (done > 0.5) * _rise(at["lr"]) + 0.6 * _rise(at["ent_coef"]),
        {"lr": 0.64, "ent_coef": 0.36},
    ),
    "none matters": Kind(lambda at, done: np.zeros(len(at["lr"])), {}),
}


class SimulatedSweep(SweepData):
    """A sweep that never ran."""

    @property
    def space(self) -> Space:
        """That of all of them."""
        return SPACE


def simulate_sweep(kind: Kind, num_trials: int, seed: int, stop: str = "weak") -> SweepData:
    """Simulate a sweep of random search, half of whose trials are stopped.

    Args:
        kind: What matters.
        num_trials: All of them.
        seed: Of everything.
        stop: Which are stopped: the weak ones, as a stopping rule does, or any, by chance.
    """
    rng = np.random.default_rng(seed)
    sizes = [len(one.args) if one.kind == "choice" else 0 for one in SPACE.dimensions]
    at: dict[str, Array] = {
        one.name: rng.integers(size, size=num_trials).astype(float) if size else rng.random(num_trials)
        for one, size in zip(SPACE.dimensions, sizes, strict=True)
    }
    luck = LUCK if kind.true else 1.0
    lasting = rng.normal(0, np.sqrt(luck * LASTING), num_trials)
    done = np.arange(1, REPORTS + 1) / REPORTS
    passing = rng.normal(0, np.sqrt(3 * luck * (1 - LASTING)), (REPORTS, num_trials))  # a score is of three reports
    curves = np.array(
        [
            100 * share**0.5 * (2 + np.sqrt(1 - luck) * kind.score(at, share) + lasting + noise)
            for share, noise in zip(done, passing, strict=True)
        ]
    ).T
    left, reached = np.arange(num_trials), np.full(num_trials, REPORTS)
    for share in STOPS:
        last = round(share * REPORTS)
        order = rng.random(len(left)) if stop == "chance" else curves[left, max(0, last - 3) : last].mean(axis=1)
        stopped = left[np.argsort(order)[: num_trials // 4]]
        reached[stopped], left = last, np.setdiff1d(left, stopped)
    trials = [
        TrialRecord(
            number,
            "COMPLETE" if reached[number] == REPORTS else "PRUNED",
            {one.name: _value(one, at[one.name][number]) for one in SPACE.dimensions},
            {round(BUDGET * done[each]): float(curves[number, each]) for each in range(reached[number])},
        )
        for number in range(num_trials)
    ]
    return SimulatedSweep("simulated", SweepRecord("simulated"), {}, trials, (), (), {}, NO_CRITERIA)


def _value(one: Any, place: float) -> Any:
    """Return a parameter's value at a place from 0 to 1, or of a choice's number."""
    if one.kind == "choice":
        return one.args[int(place)]
    low, high = one.args
    if one.kind == "pow2":
        return 2 ** int(np.log2(low) + int(place * (1 + np.log2(high / low))))
    return one.decode(float(low + place * (high - low) if one.kind == "uniform" else low * (high / low) ** place))


def look_at_sweep(kind: str, stop: str, num_trials: int, seed: int) -> dict[str, tuple[float, float, float, bool]]:
    """Return what a report says of one simulated sweep: a parameter's share, its interval, and whether it shows.

    Args:
        kind: What matters, one of `KINDS`.
        stop: Which trials are stopped, see `simulate_sweep`.
        num_trials: All of them.
        seed: Of everything.
    """
    shares = find_what_mattered(simulate_sweep(KINDS[kind], num_trials, seed, stop)).shares
    return {name: (one.mean, one.low, one.high, bool(one.shows)) for name, one in shares.items()}


def count_sweeps(
    kind: str, stop: str, found: Sequence[Mapping[str, tuple[float, float, float, bool]]]
) -> dict[str, Any]:
    """Return a row of the record: what was told of so many sweeps of a kind."""
    true = {name: (1 - LUCK) * share for name, share in KINDS[kind].true.items()}
    told = [one for one in found if one]
    idle = [each.name for each in SPACE.dimensions if each.name not in true]
    return {
        "kind": kind,
        "stopped": stop,
        "sweeps": len(found),
        "told": len(told),
        "true": true,
        "mean": {name: float(np.mean([one[name][0] for one in told])) for name in true if told},
        "held": {name: float(np.mean([one[name][1] <= share <= one[name][2] for one in told]))
                 for name, share in true.items() if told},
        "without_effect": float(np.mean([bool(one) and one[name][3] for one in found for name in idle])),
    }  # fmt: skip


def table(record: Mapping[str, Any]) -> str:
    """Return the record as Markdown."""
    lines = [
        "| what matters | stopped | true shares | told, mean | in the interval | told nothing | no effect, yet told |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in record["results"]:
        shares = ", ".join(f"{name} {share:.0%}" for name, share in row["true"].items()) or "none"
        means, held = (", ".join(f"{one:.0%}" for one in row[each].values()) or "-" for each in ("mean", "held"))
        silent, wrong = f"{1 - row['told'] / row['sweeps']:.0%}", f"{row['without_effect']:.1%}"
        cells = (row["kind"], STOPPED[row["stopped"]], shares, means, held, silent, wrong)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Simulate, print the table, and keep the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulations", type=int, default=200, help="of each kind")
    parser.add_argument("--trials", type=int, default=50, help="of each sweep")
    parser.add_argument("--json", type=Path, help="where the record goes; none: benchmarks/results/importance.json")
    given = parser.parse_args()
    results: list[dict[str, Any]] = []
    record = make_record("importance", given.simulations, results)
    began, kinds = time.monotonic(), [(kind, stop) for kind in KINDS for stop in STOPPED]
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        for done, (kind, stop) in enumerate(kinds, 1):
            look = functools.partial(look_at_sweep, kind, stop, given.trials)
            results.append(count_sweeps(kind, stop, list(pool.map(look, range(given.simulations), chunksize=5))))
            write_record(record, given.json)  # what there is by now, should the rest be ended
            left = (time.monotonic() - began) / done * (len(kinds) - done)
            print(f"{kind}, {STOPPED[stop]}: done; {format_duration(left)} left", file=sys.stderr, flush=True)
    print(table(record))


if __name__ == "__main__":
    main()
