"""Is the search any good? Whole sweeps are replayed over learning curves of configurations that were all trained.

    python -m benchmarks.judge --data FOLDER [--beside 10] [--portfolio-from FOLDER]

The searcher, the stopping rule, the ranking and the certification are the product's; only the training is looked up, in
what `judge_pool.py` reads. A proposal is replaced by the most similar configuration of the pool that was not tried yet:
whoever tries most of the pool is left with what nobody proposed.
A choice scores 0 if it is no better than the median configuration and 1 if it is the best of all, by the mean over all
seeds. Intervals are 95%, by Student's t over the pairs' means (`benchmarks/intervals.py`). The baseline, whose return
is not known here, costs its trainings and cannot win.

All strategies may spend the same: ``--cost`` full trainings, those of the certification and of the baseline among them.
``defaults`` is the searcher, the stopping rule and the certification of conf/, with as many trials as the cost pays
for, over the pool's space: without portfolio, tuned settings or the algorithm file's values as first trials. In a row
with a number of trials it has the default number, and the others beside it spend what it spends.

Peers: ``random`` is random search whose highest score wins, ``random_certified`` the same with the certification of
``defaults``, and ``ray`` Optuna's TPE with successive halving as Ray Tune does both: its own scheduler decides, its
``OptunaSearch`` reports stopped trials to Optuna as complete, and ``get_best_result`` takes the highest last score.

``portfolio`` is ``defaults`` whose first trials are the configurations that `benchmarks/portfolio.py` chooses from the
curves of ``--portfolio-from`` without the replayed task, and ``portfolio_family`` without its whole family. The first
of them is the baseline, which costs its trainings in the certification as everywhere.

How similar a proposal and a configuration are is measured on the axes that matter. If all axes counted alike, the
nearest one of 256 configurations in a dozen dimensions would have little to do with the proposal. How well the most
similar other configuration stands for one is measured too (``likeness``), and ``--beside`` replays with all axes alike.

About an hour on two cores for 26 pairs. It is no timing, so that other work does not matter.
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
from types import SimpleNamespace
from typing import Any

import numpy as np
import optuna
import yaml
from numpy.typing import NDArray
from ray.tune.schedulers import AsyncHyperBandScheduler

from benchmarks.intervals import bound_mean
from benchmarks.judge_pool import Pool, read_pools
from benchmarks.judge_surrogate import Surrogate
from benchmarks.portfolio import LEAVE, Problem
from benchmarks.records import ROOT, make_record, write_record
from rltune.certification.result import Configuration, SeedResult, judge_configurations
from rltune.config.budget import size_certification
from rltune.ledger.optuna_study import suggest
from rltune.ledger.ranking import rank_records
from rltune.records import WHOLE_BUDGET, Direction, Report, TrialForSampler, TrialRecord
from rltune.search.sampler_view import choose_view
from rltune.search.samplers import build_sampler, get_traits
from rltune.search.schedulers import GO_ON, Decision, GoOn, Stop, build_stopping_rule
from rltune.search.seeds import derive_sampler_seed

ALONE = ("defaults", "random", "random_certified", "ray")  # what is replayed at other costs
PORTFOLIO_COSTS = (12.0, 24.0, 48.0)
PORTFOLIO = ("defaults", "random", "portfolio", "portfolio_family")  # what is replayed at these
NOISE = 0.5  # standard deviation of what is added to a report, in those of a configuration's seeds at its end
COST = 48.0
MIN_COST = 8.0  # A certification of three seeds takes six of them.
PLAIN, SURROGATE = "all axes alike", "surrogate"


@dataclass(frozen=True)
class Strategy:
    """How a sweep searches and chooses.

    Attributes:
        searcher: ``kind`` and ``args`` of a searcher file.
        scheduler: ``kind`` and ``args`` of a scheduler file.
        replicates: The number of seeds of a trial.
        is_certified: Whether the best configurations are certified, as many as fit the number of trials. Otherwise the
            trial with the highest score wins.
        is_ray: Whether trials are stopped, reported to Optuna and ranked as Ray Tune does it; see `RayHalving`.
        leave: ``task`` or ``family``: the first trials are a portfolio that was chosen without those of the replayed
            pair, see `benchmarks/portfolio.py`. None: there is no portfolio.
    """

    searcher: Mapping[str, Any]
    scheduler: Mapping[str, Any]
    replicates: int = 1
    is_certified: bool = False
    is_ray: bool = False
    leave: str | None = None

    def size_certification(self, num_trials: int) -> tuple[int, int]:
        """Return how many configurations are certified after so many trials, and with how many seeds each."""
        return size_certification(num_trials) if self.is_certified else (0, 0)

    def certification_cost(self, num_trials: int) -> int:
        """Return how many full trainings certification takes after so many trials, the baseline's among them."""
        top, seeds = self.size_certification(num_trials)
        return (top + 1) * seeds


class RayHalving:
    """Ray Tune's own scheduler with a rung at a tenth of the budget, behind the interface of a stopping rule.

    Args:
        env_steps: A trial's whole budget.
        args: ``grace_fraction`` and ``reduction_factor``.
    """

    def __init__(self, env_steps: int, args: Mapping[str, Any]) -> None:
        self._scheduler = AsyncHyperBandScheduler(
            time_attr="env_steps",
            metric="score",
            mode="max",
            max_t=env_steps,
            grace_period=args["grace_fraction"] * env_steps,
            reduction_factor=args["reduction_factor"],
        )
        self._trials: dict[int, Any] = {}

    def decide(self, report: Report) -> Decision:
        """Return the scheduler's decision about a trial's report."""
        if report.number not in self._trials:
            self._trials[report.number] = SimpleNamespace(trial_id=str(report.number))
            self._scheduler.on_trial_add(None, self._trials[report.number])
        result = {"env_steps": report.nominal_steps, "score": report.score}
        action = self._scheduler.on_trial_result(None, self._trials[report.number], result)
        return GO_ON if action == self._scheduler.CONTINUE else Stop(report.nominal_steps)


def read_settings() -> dict[str, Any]:
    """Read the settings of a sweep that is started by typing nothing, and the files of its searcher and scheduler."""

    def read(name: str) -> Any:
        return yaml.safe_load((ROOT / "conf" / name).read_text())

    settings = read("run.yaml")
    chosen = {group: name for entry in settings["defaults"] if isinstance(entry, dict) for group, name in entry.items()}
    return settings | {group: read(f"{group}/{chosen[group]}.yaml") for group in ("searcher", "scheduler")}


SETTINGS = read_settings()
RANDOM = {"kind": "random"}
NONE = {"kind": "none"}
FORMER_RULE = {"kind": "asha", "args": {"grace_fraction": 0.1, "reduction_factor": 3}}
TPE = {"kind": "tpe", "args": {"n_startup_trials": 8}}
DEFAULTS = Strategy(SETTINGS["searcher"], SETTINGS["scheduler"], SETTINGS["replicates"], is_certified=True)
STRATEGIES: dict[str, Strategy] = {
    "defaults": DEFAULTS,
    "random": Strategy(RANDOM, NONE),
    "random_certified": Strategy(RANDOM, NONE, is_certified=True),
    "ray": Strategy(
        {"kind": "tpe"}, {"kind": "ray", "args": {"grace_fraction": 0.1, "reduction_factor": 4}}, is_ray=True
    ),
    "portfolio": replace(DEFAULTS, leave="task"),
    "portfolio_family": replace(DEFAULTS, leave="family"),
    "former_defaults": Strategy(TPE, FORMER_RULE, is_certified=True),
    # What each part of the defaults adds.
    "rf": Strategy({"kind": "rf"}, NONE),
    "former_rule": replace(DEFAULTS, scheduler=FORMER_RULE),
    "tpe": replace(DEFAULTS, searcher=TPE),
    "random_draws": replace(DEFAULTS, searcher=RANDOM),
}


@dataclass
class Replay:
    """One sweep over a pool.

    Attributes:
        pool: The pair.
        strategy: How it searches.
        cost: The full trainings that it may spend, those of certification and baseline among them; None with
            ``num_trials``.
        slots: The number of trials at once.
        seed: The seed of everything that is drawn.
        num_trials: The number of trials; None if the cost decides.
        first: The configurations of the first trials.
        records: The trials.
        spent: The full trainings that were spent; fewer than the cost if the pool has no more configurations.
    """

    pool: Pool | Surrogate
    strategy: Strategy
    cost: float | None
    slots: int
    seed: int
    num_trials: int | None = None
    first: Sequence[Mapping[str, Any]] = ()
    records: list[TrialRecord] = field(default_factory=list)
    spent: float = 0.0

    def __post_init__(self) -> None:
        strategy, pool = self.strategy, self.pool
        self._rng = np.random.default_rng([self.seed, zlib.crc32(pool.name.encode())])
        self._view = view_as_ray if strategy.is_ray else choose_view(get_traits(strategy.searcher["kind"]))
        self._study = optuna.create_study(direction="maximize")
        kind, args = strategy.scheduler["kind"], strategy.scheduler.get("args") or {}
        self._rule = (
            RayHalving(pool.marks[-1], args) if strategy.is_ray else build_stopping_rule(kind, args, pool.marks[-1])
        )
        self._distributions = pool.space.distributions()
        self._taken: list[int] = []
        self._asked: dict[int, optuna.Trial] = {}
        self._order: list[NDArray[np.int64]] = []  # of the seeds, by trial
        self._lowest: float | None = None

    def choose(self) -> int:
        """Run the sweep; return the configuration that wins."""
        self._search()
        top, seeds = self.strategy.size_certification(len(self.records))
        if top:
            return self._certify(top, seeds)
        rank = rank_as_ray if self.strategy.is_ray else rank_whole_first
        return self._taken[max(self.records, key=rank).number]

    def _search(self) -> None:
        """Run trials in the slots until the search's share of the cost is spent; the last ones run to their end."""
        points, per_point, spent = len(self.pool.marks), self.strategy.replicates, 0
        running: list[tuple[int, int, int]] = []  # The time of the next report, the trial's number, the report's index.
        now = 0
        while True:
            while len(running) < self.slots and self._can_begin(spent + len(running) * per_point):
                heapq.heappush(running, (now + 1, self._begin(), 0))
            if not running:
                return
            now, number, point = heapq.heappop(running)
            spent += per_point
            self.spent += per_point / points
            if self._report(number, point):
                heapq.heappush(running, (now + 1, number, point + 1))

    def _can_begin(self, num_points: int) -> bool:
        """Return whether another trial begins after so many reports, those of running trials' next ones included."""
        if isinstance(self.pool, Pool) and len(self._taken) == len(self.pool.configurations):
            return False
        if self.cost is None:
            return len(self.records) < (self.num_trials or 0)
        left = self.cost - self.strategy.certification_cost(len(self.records) + 1)
        return num_points < round(left * len(self.pool.marks))

    def _begin(self) -> int:
        """Propose a trial, and put the pool's nearest configuration in its place, for the searcher too."""
        number, pool, searcher = len(self.records), self.pool, self.strategy.searcher
        seed = derive_sampler_seed(self.seed, number)
        study = self._study
        args, conditional = searcher.get("args") or {}, pool.space.is_conditional
        study.sampler = build_sampler(searcher["kind"], args, seed, conditional, sweep_seed=self.seed)
        self._asked[number] = asked = study.ask()
        if number < len(self.first):  # A value that the pool does not have is no axis of the distance.
            drawn = pool.space.encode(self.first[number])
        else:
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

    def _certify(self, top: int, num_seeds: int) -> int:
        """Certify the best trials by seeds that the search did not use, and return the winner.

        The baseline, whose true return is not known here, costs its trainings and does not win.
        """
        replicates, pool = self.strategy.replicates, self.pool
        best = list(itertools.islice(rank_records(self.records, Direction.MAX), top))
        self.spent += (len(best) + 1) * num_seeds
        configurations = []
        for record in best:
            index = self._taken[record.number]
            seeds = self._order[record.number][replicates : replicates + num_seeds]
            last = pool.curves[index][seeds, -1]
            results = [SeedResult(s, float(v), (float(v),)) for s, v in enumerate(last) if not np.isnan(v)]
            failed = tuple(s for s, v in enumerate(last) if np.isnan(v))
            configurations.append(
                Configuration(record.name, record.number, record.params, record.score, tuple(results), failed)
            )
        certification = judge_configurations(configurations, range(num_seeds), 1)
        if certification is None:
            return self._taken[best[0].number] if best else self._taken[0]
        winner = certification.best().trial
        assert winner is not None
        return self._taken[winner]


def rank_whole_first(record: TrialRecord) -> tuple[bool, float]:
    """Rank a trial without certification by its last score, those with a whole training first."""
    last = list(record.reports.values())[-1:] or [-np.inf]
    return record.state == "COMPLETE", last[0]


def rank_as_ray(record: TrialRecord) -> float:
    """Rank a trial as Ray Tune's ``get_best_result`` does: by its last score, stopped or not."""
    return (list(record.reports.values())[-1:] or [-np.inf])[0]


def view_as_ray(record: TrialRecord, _: float | None) -> TrialForSampler:
    """Report a trial to Optuna as Ray Tune's ``OptunaSearch`` does: complete with its last score, stopped or not."""
    if record.diverged or not record.reports:
        return TrialForSampler("FAIL")
    return TrialForSampler("COMPLETE", rank_as_ray(record), {})


def replay(
    pool: Pool, strategy: Strategy, case: Case, cost: float | None, first: Sequence[Mapping[str, Any]] = ()
) -> list[tuple[float, int, float]]:
    """Return the score, the number of configurations tried and the trainings spent of each repetition of a pair."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    rows = []
    for seed in range(case.repetitions):
        over = Surrogate(pool) if case.over == SURROGATE else pool
        sweep = Replay(over, strategy, cost, case.slots, seed, None if cost else case.num_trials, first)
        score = over.score(sweep.choose())
        rows.append((score, len(sweep.records), sweep.spent))
    return rows


@dataclass(frozen=True)
class Case:
    """The conditions under which strategies are compared.

    Attributes:
        over: ``pool``; ``all axes alike``: all axes count for how similar configurations are; ``surrogate``: a forest
            guesses each proposal's curve.
        cost: The full trainings that a sweep may spend; None with ``num_trials``.
        slots: The number of trials at once.
        repetitions: The number of replays of each pair.
        num_trials: The number of trials of the first strategy; the others spend as much as it does on average.
    """

    over: str
    cost: float | None
    slots: int
    repetitions: int
    num_trials: int | None = None

    @property
    def size(self) -> str:
        """The size of a sweep, in words."""
        return f"{self.cost:g}" if self.cost else f"{self.num_trials} trials"

    def __str__(self) -> str:
        return f"{self.over}, {self.size}, {self.slots} at once"


def judge(
    pools: Sequence[Pool],
    strategies: Mapping[str, Strategy],
    case: Case,
    portfolios: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]] | None = None,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Replay each strategy over all pairs.

    Args:
        pools: The pairs.
        strategies: By name.
        case: The conditions.
        portfolios: The first configurations by pair and by what was left out of their choice.

    Yields:
        A strategy's name and its figures: the means of the configurations ``tried`` and of the trainings ``spent``, and
        the mean score of each of the ``pairs``.
    """
    pools = [replace(pool, is_plain=case.over == PLAIN) for pool in pools]
    cost = case.cost
    # Forked processes of one that has threads may hang, so they are spawned.
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as executor:
        for name, strategy in strategies.items():
            firsts = [(portfolios or {}).get((pool.name, strategy.leave or ""), ()) for pool in pools]
            jobs = [
                executor.submit(replay, pool, strategy, case, cost, first)
                for pool, first in zip(pools, firsts, strict=True)
            ]
            for done, _ in enumerate(as_completed(jobs), 1):
                print(f"\r{case}, {name}: {done} of {len(jobs)} pairs", end="", file=sys.stderr, flush=True)
            own, tried, spent = np.moveaxis([job.result() for job in jobs], -1, 0)
            cost = cost or float(spent.mean())
            pairs = {pool.name: round(float(mean), 4) for pool, mean in zip(pools, own.mean(axis=1), strict=True)}
            figures = {"tried": tried.mean(), "spent": spent.mean(), "pairs": pairs}
            print(f"\r{case}, {name}: {bound_mean(list(pairs.values())).show('.3f')}", file=sys.stderr, flush=True)
            yield name, figures


def table(record: Mapping[str, Any]) -> str:
    """Return the record as Markdown."""
    lines = [
        "| over | full trainings | slots | strategy | score | all but the worst tenth of pairs | `defaults` less it "
        "| repetitions | configurations tried | trainings spent |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for part in record["results"]:
        scores = {name: np.array(list(figures["pairs"].values())) for name, figures in part["strategies"].items()}
        for name, figures in part["strategies"].items():
            other = scores.get("defaults") if name != "defaults" else None
            lead = "" if other is None else bound_mean(other - scores[name]).show("+.3f")
            lines.append(
                f"| {part['over']} | {part['size']} | {part['slots']} | {name} "
                f"| {bound_mean(scores[name]).show('.3f')} | {np.quantile(scores[name], 0.1):.3f} | {lead} "
                f"| {part['repetitions']} | {figures['tried']:.0f} | {figures['spent']:.1f} |"
            )
    lines += list_by_algorithm(record["results"])
    likeness = record["likeness"].values()
    plain, stretched = (float(np.mean([each[name] for each in likeness])) for name in ("plain", "stretched"))
    lines.append(
        f"\nRank correlation of a configuration's worth with that of the one most like it: {stretched:.2f}; "
        f"with that of the nearest one, all axes alike: {plain:.2f} (means over pairs)."
    )
    return "\n".join(lines)


def list_by_algorithm(parts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what a portfolio is worth to each algorithm, in Markdown."""
    lines = []
    for part in parts:
        strategies = {name: figures["pairs"] for name, figures in part["strategies"].items()}
        for name in strategies:
            if STRATEGIES.get(name, DEFAULTS).leave is None or "defaults" not in strategies:
                continue
            gains: dict[str, list[float]] = {}
            for pair, score in strategies[name].items():
                gains.setdefault(pair.partition("_")[0], []).append(score - strategies["defaults"][pair])
            worth = ", ".join(f"{algo} {bound_mean(scores).show('+.3f')}" for algo, scores in gains.items())
            lines.append(f"- {name} less defaults, {part['size']} full trainings: {worth}")
    return ["", *lines] if lines else []


def choose_portfolios(folder: Path, pools: Sequence[Pool]) -> dict[tuple[str, str], list[Mapping[str, Any]]]:
    """Choose a portfolio for each pair without its task, and one without its family, from the curves of a folder."""
    sources = read_pools(folder)
    portfolios: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for algo in dict.fromkeys(pool.algorithm for pool in pools):
        problem = Problem.of_pools([source for source in sources if source.algorithm == algo])
        for pool, leave in itertools.product((pool for pool in pools if pool.algorithm == algo), LEAVE):
            chosen = problem.choose_without(pool.name, leave)
            portfolios[pool.name, leave] = [problem.configurations[index] for index in chosen]
    return portfolios


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
        help=f"N repetitions of {', '.join(ALONE)} with the default number of trials, at half and twice the cost, with "
        "four trials at once, with all axes alike, and over a forest that was fitted to the pool",
    )
    parser.add_argument(
        "--portfolio-from",
        type=Path,
        metavar="FOLDER",
        help=f"replay {', '.join(PORTFOLIO)} at {', '.join(f'{cost:g}' for cost in PORTFOLIO_COSTS)} trainings; the "
        "portfolio is chosen from the curves of this folder, without the replayed task or its family",
    )
    parser.add_argument("--only", default=",".join(STRATEGIES), help=f"comma-separated, of {', '.join(STRATEGIES)}")
    parser.add_argument("--json", type=Path, help="where the record goes; none: benchmarks/results/judge.json")
    given = parser.parse_args()
    if unknown := [name for name in given.only.split(",") if name not in STRATEGIES]:
        parser.error(f"--only: there is no {', '.join(unknown)}; choose from {', '.join(STRATEGIES)}")
    if given.cost < 2 * MIN_COST:
        parser.error(f"--cost={given.cost:g}: at least {2 * MIN_COST}, because half of it is replayed as well")
    try:
        pools = read_pools(given.data)
    except ValueError as error:
        parser.error(f"--data: {error}")
    portfolios = choose_portfolios(given.portfolio_from, pools) if given.portfolio_from else {}
    chosen = {
        name: strategy
        for name, strategy in STRATEGIES.items()
        if name in given.only.split(",") and (portfolios or not strategy.leave)
    }
    alone = {name: strategy for name, strategy in chosen.items() if name in ALONE}
    cost, beside = given.cost, given.beside
    cases = [(Case("pool", cost, 1, given.repetitions), chosen)]
    if given.portfolio_from:
        beside_it = {name: strategy for name, strategy in chosen.items() if name in PORTFOLIO}
        cases += [(Case("pool", each, 1, given.repetitions), beside_it) for each in PORTFOLIO_COSTS if each != cost]
    if beside and not alone:
        parser.error(f"--beside: there is none of {', '.join(ALONE)} in --only")
    if beside:
        others = [
            Case("pool", None, 1, beside, SETTINGS["budget"]["trials"]),
            Case("pool", cost / 2, 1, beside),
            Case("pool", cost * 2, 1, beside),
            Case("pool", cost, 4, beside),
            Case(PLAIN, cost, 1, beside),
            Case(SURROGATE, cost, 1, beside),
        ]
        cases += [(case, alone) for case in others]
    likeness = {pool.name: pool.measure_likeness() for pool in pools}
    parts: list[dict[str, Any]] = []
    forest = {"scikit-learn": metadata.version("scikit-learn")}
    record = {**make_record("judge", given.repetitions, parts, forest), "likeness": likeness}
    for case, strategies in cases:
        rows: dict[str, Any] = {}
        parts.append({**asdict(case), "size": case.size, "strategies": rows})
        for name, figures in judge(pools, strategies, case, portfolios):
            rows[name] = figures
            write_record(record, given.json)  # Whatever there is by now is kept if the rest is interrupted.
    print(table(record))


if __name__ == "__main__":
    main()
