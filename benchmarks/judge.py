"""Is the search any good? Whole sweeps replayed over learning curves of configurations that were all trained.

    python -m benchmarks.judge --data FOLDER [--beside 10]

Searcher, stopping rule, ranking and certification are the product's; only the training is looked up, in what
`judge_pool.py` reads. A proposal is the configuration of the pool that is the most like it, of those that were not
tried yet. A choice scores 0 where it is no better than the median configuration and 1 where it is the best of all, by
the mean over all seeds. All strategies may spend the same: ``--cost`` full trainings, certification's among them,
without the baseline's, which here has no worth that is known. ``defaults`` is what conf/ says; ``today`` what it said
before it was judged. Intervals are 95%, by bootstrap over pairs and repetitions.

What is like a proposal: the configuration that is near to it on the axes that matter. Where all axes count alike, the
nearest one of 256 in a dozen dimensions has little to do with it. How well the nearest other configuration stands for
one is measured too (``likeness``), and ``--beside`` replays with all axes alike.

About 20 minutes on two cores for 26 pairs and the first three strategies, longer for all, most of it TPE's proposals.
It is no timing, so that other work does not matter.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import multiprocessing
import os
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import yaml
from numpy.typing import NDArray

from benchmarks.judge_pool import Pool, read_pools
from benchmarks.judge_surrogate import Surrogate
from benchmarks.records import ROOT, make_record, write_record
from rltune.certification.result import Configuration, SeedResult, judge_configurations
from rltune.ledger.optuna_study import suggest
from rltune.ledger.ranking import rank_records
from rltune.records import WHOLE_BUDGET, Direction, Report, TrialRecord
from rltune.search.sampler_view import choose_view
from rltune.search.samplers import build_sampler
from rltune.search.schedulers import GoOn, build_stopping_rule
from rltune.search.seeds import derive_sampler_seed

Array = NDArray[np.float64]
ALONE = ("defaults", "today", "random")  # what is replayed beside
NOISE = 0.5  # standard deviation of what is added to a report, in those of a configuration's seeds at its end
RESAMPLES = 2000
COST = 48.0


@dataclass(frozen=True)
class Strategy:
    """How a sweep searches and chooses.

    Attributes:
        searcher: ``kind`` and ``args`` of a searcher file.
        scheduler: ``kind`` and ``args`` of a scheduler file.
        replicates: Seeds a trial.
        top: Configurations that are certified; 0: the search's highest number wins.
        seeds: Fresh seeds for each of them.
    """

    searcher: Mapping[str, Any]
    scheduler: Mapping[str, Any]
    replicates: int = 1
    top: int = 0
    seeds: int = 0


def read_defaults() -> Strategy:
    """Read what a sweep does when nothing is typed."""

    def read(name: str) -> Any:
        return yaml.safe_load((ROOT / "conf" / name).read_text())

    run, certify = read("run.yaml"), read("certify/on.yaml")
    chosen = {key: value for one in run["defaults"] if isinstance(one, dict) for key, value in one.items()}
    searcher, scheduler = (read(f"{group}/{chosen[group]}.yaml") for group in ("searcher", "scheduler"))
    return Strategy(searcher, scheduler, run["replicates"], certify["top"], certify["seeds"])


RANDOM = {"kind": "random"}
ASHA = {"kind": "asha", "args": {"grace_fraction": 0.1, "reduction_factor": 3}}
NONE = {"kind": "none"}
DEFAULTS = read_defaults()
STRATEGIES: dict[str, Strategy] = {
    "defaults": DEFAULTS,
    "today": Strategy({"kind": "tpe", "args": {"n_startup_trials": 8}}, ASHA, 1, 3, 5),
    "random": Strategy(RANDOM, NONE),
    # as users run Optuna's TPE with Ray's ASHA
    "tpe_asha": Strategy({"kind": "tpe"}, {"kind": "asha", "args": {"grace_fraction": 0.1, "reduction_factor": 4}}),
    "rf": Strategy({"kind": "rf"}, NONE),
    # what each part adds
    "former_rule": replace(DEFAULTS, scheduler=ASHA),
    "tpe": replace(DEFAULTS, searcher={"kind": "tpe", "args": {"n_startup_trials": 8}}),
    "random_draws": replace(DEFAULTS, searcher=RANDOM),
    "little_random": replace(DEFAULTS, searcher={"kind": "rf", "args": {"random_fraction": 0.1}}),
}


@dataclass
class Replay:
    """One sweep over a pool.

    Attributes:
        pool: The pair.
        strategy: How it searches.
        cost: Full trainings that it may spend, certification's among them.
        slots: Trials at once.
        seed: Of all that is drawn.
        records: The trials.
        spent: Full trainings; less than the cost where the pool has no more configurations.
    """

    pool: Pool | Surrogate
    strategy: Strategy
    cost: float
    slots: int
    seed: int
    records: list[TrialRecord] = field(default_factory=list)
    spent: float = 0.0

    def __post_init__(self) -> None:
        strategy, pool = self.strategy, self.pool
        self._rng = np.random.default_rng([self.seed, zlib.crc32(pool.name.encode())])
        self._view = choose_view(strategy.searcher["kind"])
        self._study = optuna.create_study(direction="maximize")
        scheduler = strategy.scheduler
        self._rule = build_stopping_rule(scheduler["kind"], scheduler.get("args") or {}, pool.marks[-1])
        self._distributions = pool.space.distributions()
        self._taken: list[int] = []
        self._asked: dict[int, optuna.Trial] = {}
        self._order: list[NDArray[np.int64]] = []  # of the seeds, by trial
        self._lowest: float | None = None

    def choose(self) -> int:
        """Run the sweep; return the configuration that wins.

        Raises:
            ValueError: The cost does not even pay for the certification.
        """
        if self.cost <= self.strategy.top * self.strategy.seeds:
            raise ValueError(f"a cost of {self.cost:g} is spent by the certification alone")
        self._search()
        if not self.strategy.top:
            return self._taken[max(self.records, key=_believe).number]
        return self._certify()

    def _search(self) -> None:
        """Run trials in the slots until the search's share of the cost is spent; what runs then comes to its end."""
        strategy, points = self.strategy, len(self.pool.marks)
        budget = round((self.cost - strategy.top * strategy.seeds) * points)
        per_point, spent = strategy.replicates, 0
        running: list[tuple[int, int, int]] = []  # when its next report comes, number, which one it is
        now = 0
        while True:
            while len(running) < self.slots and spent + len(running) * per_point < budget:
                if isinstance(self.pool, Pool) and len(self._taken) == len(self.pool.configurations):
                    break
                heapq.heappush(running, (now + 1, self._begin(), 0))
            if not running:
                return
            now, number, point = heapq.heappop(running)
            spent += per_point
            self.spent += per_point / points
            if self._report(number, point):
                heapq.heappush(running, (now + 1, number, point + 1))

    def _begin(self) -> int:
        """Propose a trial, and put the pool's nearest configuration in its place, for the searcher too."""
        number, pool, searcher = len(self.records), self.pool, self.strategy.searcher
        seed = derive_sampler_seed(self.seed, number)
        study = self._study
        args, conditional = searcher.get("args") or {}, pool.space.is_conditional
        study.sampler = build_sampler(searcher["kind"], args, seed, conditional, sweep_seed=self.seed)
        self._asked[number] = asked = study.ask()
        drawn = pool.space.draw(lambda label, distribution: suggest(asked, label, distribution))
        index = pool.nearest(drawn, self._taken)
        self._taken.append(index)
        self._order.append(self._rng.permutation(pool.num_seeds))
        self.records.append(TrialRecord(number, "RUNNING", pool.configurations[index], drawn=pool.drawn[index]))
        return number

    def _report(self, number: int, point: int) -> bool:
        """Take in a trial's next report; return whether it goes on."""
        index, mark = self._taken[number], self.pool.marks[point]
        seeds = self._order[number][: self.strategy.replicates]
        values = self.pool.curves[index][seeds, point]
        record = self.records[number]
        if np.isnan(values).any():
            self._end(replace(record, state="PRUNED", diverged=True))
            return False
        objective = float(values.mean() + self._rng.normal(0, NOISE * self.pool.noise) / len(seeds) ** 0.5)
        self.records[number] = record = replace(record, reports={**record.reports, mark: objective})
        decision = self._rule.decide(Report(number, mark, objective))
        if mark == self.pool.marks[-1]:
            self._end(replace(record, state="COMPLETE", stop_reason=WHOLE_BUDGET))
        elif not isinstance(decision, GoOn):
            self._end(replace(record, state="PRUNED"))
        else:
            return True
        return False

    def _end(self, record: TrialRecord) -> None:
        self.records[record.number] = record
        told = self._view(record, self._lowest)
        if told.value is not None:
            self._lowest = told.value if self._lowest is None else min(self._lowest, told.value)
        asked = self._asked.pop(record.number)
        self._study.tell(asked, state=optuna.trial.TrialState.FAIL)
        trial = optuna.trial.create_trial(
            state=optuna.trial.TrialState[told.state],
            value=told.value,
            params=dict(record.drawn or {}),
            distributions={label: self._distributions[label] for label in record.drawn or {}},
            system_attrs=self._study.get_trials(deepcopy=False)[asked.number].system_attrs,
            intermediate_values=dict(told.reports),
        )
        self._study.add_trial(trial)

    def _certify(self) -> int:
        """Certify the best by seeds that the search did not use, and return the winner."""
        strategy, pool = self.strategy, self.pool
        best = list(itertools.islice(rank_records(self.records, Direction.MAX), strategy.top))
        self.spent += len(best) * strategy.seeds
        configurations = []
        for record in best:
            index = self._taken[record.number]
            seeds = self._order[record.number][strategy.replicates : strategy.replicates + strategy.seeds]
            last = pool.curves[index][seeds, -1]
            results = [SeedResult(s, float(v), (float(v),)) for s, v in enumerate(last) if not np.isnan(v)]
            failed = tuple(s for s, v in enumerate(last) if np.isnan(v))
            configurations.append(
                Configuration(record.name, record.number, record.params, record.score, tuple(results), failed)
            )
        found = judge_configurations(configurations, range(strategy.seeds), 1)
        if found is None:
            return self._taken[best[0].number] if best else self._taken[0]
        winner = found.best().trial
        assert winner is not None
        return self._taken[winner]


def _believe(record: TrialRecord) -> tuple[bool, float]:
    """Return what is thought of a trial where nothing is certified: its last number, of a whole training first."""
    last = list(record.reports.values())[-1:] or [-np.inf]
    return record.state == "COMPLETE", last[0]


def replay(
    pool: Pool, strategy: Strategy, cost: float, slots: int, repetitions: int, surrogate: bool = False
) -> list[tuple[float, int, float]]:
    """Return of the repetitions of one pair the score, how many configurations were tried, and the trainings spent."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    found = []
    for seed in range(repetitions):
        over = Surrogate(pool) if surrogate else pool
        sweep = Replay(over, strategy, cost, slots, seed)
        score = over.score(sweep.choose())
        found.append((score, len(sweep.records), sweep.spent))
    return found


def summarize(scores: Array) -> dict[str, float]:
    """Return the mean with its interval, and what all but the worst tenth of pairs reach, of [pairs, repetitions]."""
    return {**_bound(scores), "worst_tenth": float(np.quantile(scores.mean(axis=1), 0.1))}


def _bound(scores: Array) -> dict[str, float]:
    """Bootstrap over pairs, and within each over repetitions."""
    rng = np.random.default_rng(0)
    num_pairs, repetitions = scores.shape
    pairs = rng.integers(num_pairs, size=(RESAMPLES, num_pairs, 1))
    means = scores[pairs, rng.integers(repetitions, size=(RESAMPLES, num_pairs, repetitions))].mean(axis=(1, 2))
    low, high = np.quantile(means, (0.025, 0.975))
    return {"mean": float(scores.mean()), "low": float(low), "high": float(high)}


@dataclass(frozen=True)
class Case:
    """What strategies are compared under.

    Attributes:
        over: ``pool``; ``all axes alike``: a proposal is the nearest configuration; ``surrogate``: a forest's guess.
        cost: Full trainings that a sweep may spend.
        slots: Trials at once.
        repetitions: Replays a pair.
    """

    over: str
    cost: float
    slots: int
    repetitions: int

    def __str__(self) -> str:
        """Name it for a person."""
        return f"{self.over}, {self.cost:g} trainings, {self.slots} at once"


def judge(
    pools: Sequence[Pool], strategies: Mapping[str, Strategy], case: Case
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Replay each strategy over all pairs.

    Yields:
        A strategy's name and `summarize`'s figures, ``tried`` configurations and ``spent`` trainings, ``pairs`` with
        the mean score of each, and ``minus`` with the mean paired difference to each strategy before it and its
        interval.
    """
    pools = [replace(one, is_plain=case.over == "all axes alike") for one in pools]
    scores: dict[str, Array] = {}
    # Started afresh: a forked process of one that has threads may hang.
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as executor:
        for name, strategy in strategies.items():
            settings = strategy, case.cost, case.slots, case.repetitions, case.over == "surrogate"
            jobs = [executor.submit(replay, pool, *settings) for pool in pools]
            for done, _ in enumerate(as_completed(jobs), 1):
                print(f"\r{case}, {name}: {done} of {len(jobs)} pairs", end="", file=sys.stderr, flush=True)
            own, tried, spent = np.moveaxis([job.result() for job in jobs], -1, 0)
            pairs = {pool.name: round(float(mean), 4) for pool, mean in zip(pools, own.mean(axis=1), strict=True)}
            minus = {other: _bound(own - before) for other, before in scores.items()}
            figures = {**summarize(own), "tried": tried.mean(), "spent": spent.mean(), "pairs": pairs, "minus": minus}
            print(f"\r{case}, {name}: {describe(figures)}", file=sys.stderr, flush=True)
            scores[name] = own
            yield name, figures


def describe(one: Mapping[str, float]) -> str:
    """Return a mean with its interval."""
    return f"{one['mean']:.3f} [{one['low']:.3f}, {one['high']:.3f}]"


def table(record: Mapping[str, Any]) -> str:
    """Return the record as Markdown."""
    lines = [
        "| over | full trainings | slots | strategy | score | all but the worst tenth of pairs | `defaults` less it "
        "| configurations tried | trainings spent |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for part in record["results"]:
        for name, one in part["strategies"].items():
            other = one["minus"].get("defaults")
            lead = f"{-other['mean']:+.3f} [{-other['high']:+.3f}, {-other['low']:+.3f}]" if other else ""
            lines.append(
                f"| {part['over']} | {part['cost']:g} | {part['slots']} | {name} | {describe(one)} "
                f"| {one['worst_tenth']:.3f} | {lead} | {one['tried']:.0f} | {one['spent']:.1f} |"
            )
    if missing := [name for name in STRATEGIES if name not in record["results"][0]["strategies"]]:
        lines.append(f"\nNot measured yet: {', '.join(missing)}.")
    likeness = record["likeness"].values()
    plain, stretched = (float(np.mean([one[name] for one in likeness])) for name in ("plain", "stretched"))
    lines.append(
        f"\nRank correlation of a configuration's worth with that of the one most like it: {stretched:.2f}; "
        f"with that of the nearest one, all axes alike: {plain:.2f} (means over pairs)."
    )
    return "\n".join(lines)


def main() -> None:
    """Replay, write the figures and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of curves.npz and configurations.json.gz")
    parser.add_argument("--cost", type=float, default=COST, help="full trainings that a sweep may spend")
    parser.add_argument("--repetitions", type=int, default=30)
    parser.add_argument(
        "--beside",
        type=int,
        default=0,
        metavar="N",
        help=f"N repetitions of {', '.join(ALONE)} at half and twice the cost, with four trials at once, with all axes "
        "alike, and over a forest that was fitted to the pool",
    )
    parser.add_argument("--only", default=",".join(STRATEGIES), help=f"comma-separated, of {', '.join(STRATEGIES)}")
    parser.add_argument("--json", type=Path, help="where the record goes; none: benchmarks/results/judge.json")
    given = parser.parse_args()
    if unknown := [name for name in given.only.split(",") if name not in STRATEGIES]:
        parser.error(f"--only: there is no {', '.join(unknown)}; choose from {', '.join(STRATEGIES)}")
    try:
        pools = read_pools(given.data)
    except ValueError as error:
        parser.error(f"--data: {error}")
    chosen = {name: one for name, one in STRATEGIES.items() if name in given.only.split(",")}
    alone = {name: one for name, one in chosen.items() if name in ALONE}
    cost = given.cost
    cases = [(Case("pool", cost, 1, given.repetitions), chosen)]
    others = (
        ("pool", cost / 2, 1),
        ("pool", cost * 2, 1),
        ("pool", cost, 4),
        ("all axes alike", cost, 1),
        ("surrogate", cost, 1),
    )
    cases += [(Case(*one, given.beside), alone) for one in others if given.beside]
    if given.beside and not alone:
        parser.error(f"--beside: there is none of {', '.join(ALONE)} in --only")
    for case, strategies in cases:
        if wrong := [name for name, one in strategies.items() if case.cost <= one.top * one.seeds]:
            parser.error(f"--cost={cost:g}: of {case.cost:g} trainings {wrong[0]} would certify alone; at least 32")
    likeness = {pool.name: pool.measure_likeness() for pool in pools}
    parts: list[dict[str, Any]] = []
    forest = {"scikit-learn": metadata.version("scikit-learn")}
    record = {**make_record("judge", given.repetitions, parts, forest), "likeness": likeness}
    for case, strategies in cases:
        found: dict[str, Any] = {}
        parts.append({**asdict(case), "strategies": found})
        for name, figures in judge(pools, strategies, case):
            found[name] = figures
            if len(parts) == 1:
                record[name] = {key: figures[key] for key in ("mean", "low", "high")}
            write_record(record, given.json)  # what there is by now, should the rest be ended
    print(table(record))


if __name__ == "__main__":
    main()
