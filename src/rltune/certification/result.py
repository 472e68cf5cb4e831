"""Compare the best configurations with the baseline by their certification runs, and determine the winner.

`rltune.certification.retraining` decides what is trained. The ledger stores the result (`Certification.to_dict`), and
``summary.json`` has it without the returns of single episodes. Imports nothing heavy.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from statistics import fmean, median
from typing import Any

from rltune.records import BASELINE, Direction, RunKey
from rltune.statistics import ERROR_RATE, SPENT, count_wins_needed, interquartile_mean, median_interval

ENDS = {"": "median", "_low": "low", "_high": "high"}
"""The parts of a metric by the ends of their columns' names."""
MIN_RUNS = min(SPENT)  # The fewest runs for an interval of their median, and the fewest pairs for a verdict.
OUT_OF_ORDER = 1.0 - max(SPENT.values())  # The share of the error rate that is left for a test out of order.


@dataclass(frozen=True)
class SeedResult:
    """The result of retraining one configuration on one fresh seed.

    Attributes:
        seed: The training seed.
        mean: The run's score, as it is reported.
        returns: The return of each episode of the run's best checkpoint, as it is reported.
        target_steps: The environment steps at which its training held ``budget.target``; None if it did not, or if the
            mean of the episodes that choose is worse than the target.
        choice_returns: The returns on the data that choose, whose mean decides the ranks; empty: ``returns`` are.
        checkpoint: The path of this checkpoint, relative to the sweep's folder.
        run: The key of the run in MLflow. Configurations with the same values share their runs.
        mlflow_run_id: The id of the run in MLflow; None without MLflow, or if MLflow has not answered yet.
        metrics: The means of the user's own metrics over the run's episodes; None for one that no episode has.
    """

    seed: int
    mean: float
    returns: tuple[float, ...]
    checkpoint: str = ""
    run: RunKey = field(default_factory=lambda: RunKey(None))
    mlflow_run_id: str | None = None
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    choice_returns: tuple[float, ...] = ()
    target_steps: int | None = None

    @property
    def rank_score(self) -> float:
        """The score by which the run is compared with others."""
        return fmean(self.choice_returns) if self.choice_returns else self.mean

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> SeedResult:
        """Rebuild the result from its dictionary, as JSON stores it."""
        returns = {key: tuple(raw.get(key, ())) for key in ("returns", "choice_returns")}
        return cls(**{**raw, **returns, "run": RunKey(**raw["run"])})


@dataclass(frozen=True)
class Configuration:
    """A certified configuration, and the scores of its runs, one for each seed.

    Attributes:
        name: ``trial 7``, or ``baseline``: the tuned settings of algorithm and environment if there are any, else the
            values of the algorithm file.
        trial: The number of the search's trial. For the baseline, the trial with the same values, or None.
        params: The values of the searched parameters.
        search_score: The score of that trial in the search; None without a trial.
        per_seed: The results of the runs that succeeded.
        failed_seeds: Seeds whose training failed.
        failed_score: The score that each failed seed counts as: the worst return of any single episode of all runs.
            None if no seed failed.
        broken: The constraint that the configuration breaks, in words, so that it cannot win; None if it breaks none.
        place: Its place in the order in which the configurations were chosen, from 1; 0 for the baseline.
        worst: The worst of the scores.
        low: Lower end of the interval of the runs' median (`rltune.statistics.median_interval`); None with fewer than
            `MIN_RUNS`, and where an end of the interval is a failed run.
        high: Upper end of this interval.
        difference: The mean difference to the baseline's runs on the same seeds; None for the baseline, and if either
            has no run that succeeded.
        num_pairs: How many seeds both it and the baseline were trained on.
        num_wins: On how many of these its run did better; neither a tie nor a failed run is won.
        num_ties: On how many of these both did equally well.
        wins_needed: How many have to be won to be better; None for the baseline, and if there are too few pairs.
        better: Whether it won as many: trained again on another seed, it does better than the baseline more often than
            not.
        metrics: ``median``, ``low``, ``high`` and number of ``runs`` of each metric of the user's own, over the runs
            that have it; the interval is that of the median. Failed runs have none.
    """

    name: str
    trial: int | None
    params: Mapping[str, Any]
    search_score: float | None
    per_seed: tuple[SeedResult, ...]
    failed_seeds: tuple[int, ...] = ()
    failed_score: float | None = None
    broken: str | None = None
    place: int = 0
    worst: float | None = None
    low: float | None = None
    high: float | None = None
    difference: float | None = None
    num_pairs: int = 0
    num_wins: int = 0
    num_ties: int = 0
    wins_needed: int | None = None
    better: bool = False
    metrics: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)

    @property
    def num_seeds(self) -> int:
        """Number of training seeds, including those whose run failed."""
        return len(self.per_seed) + len(self.failed_seeds)

    @property
    def excess_failures(self) -> int:
        """Number of failed seeds beyond a quarter of all; with more of them than the winner a configuration loses."""
        return max(0, len(self.failed_seeds) - self.num_seeds // 4)

    @property
    def label(self) -> str:
        """The configuration's displayed name: ``trial 0 = baseline`` if the search tried the baseline's values."""
        return label(self.name, self.trial)

    @property
    def scores(self) -> list[float]:
        """The score of each seed; failed seeds come last and count as `failed_score`."""
        return list(self.score_by_seed.values())

    @property
    def score_by_seed(self) -> dict[int, float]:
        """The scores by training seed, those of failed seeds last."""
        failed = {} if self.failed_score is None else dict.fromkeys(self.failed_seeds, self.failed_score)
        return {result.seed: result.mean for result in self.per_seed} | failed

    def list_rank_scores(self, failed_score: float) -> list[float]:
        """List the scores by which it is compared with others, the mean of whose middle half ranks it."""
        return [run.rank_score for run in self.per_seed] + [failed_score] * len(self.failed_seeds)

    @property
    def target_steps(self) -> float | None:
        """The median of the steps that the runs took to ``budget.target``; None if half of them did not reach it."""
        steps = [run.target_steps or math.inf for run in self.per_seed] + [math.inf] * len(self.failed_seeds)
        middle = median(steps) if steps else math.inf
        return middle if math.isfinite(middle) else None

    @property
    def median(self) -> float | None:
        """The median of the scores of all seeds; None if all seeds failed."""
        return median(self.scores) if self.per_seed else None


Choice = tuple[Configuration, int]
"""A configuration that is to be certified, and on how many of the certification's seeds."""


@dataclass(frozen=True)
class CertifiedPolicy:
    """The policy that is registered in MLflow: that of the winner's run with the best score.

    The certification's episodes chose this run, and champions are compared on episodes that are the same in every
    sweep. The numbers below come from other episodes, so that neither choice makes them too good.

    Attributes:
        name: The name of the configuration.
        seed: The training seed.
        checkpoint: The path of the checkpoint, relative to the sweep's folder.
        episodes: The number of episodes, whose environment seeds no other sweep uses.
        mean: Mean of their returns.
        low: Lower end of the mean's 95% interval (`rltune.statistics.mean_interval`); None if it has none.
        high: Upper end of this interval.
        metrics: ``mean``, ``low``, ``high`` and number of ``episodes`` of each metric of the user's own, over those of
            the episodes that have it.
    """

    name: str
    seed: int
    checkpoint: str
    episodes: int
    mean: float
    low: float | None
    high: float | None
    metrics: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)


@dataclass(frozen=True)
class Certification:
    """The result of a certification: its configurations, best first, and the policy to register.

    Attributes:
        seeds: The training seeds, the same for every configuration and different from those of the search.
        episodes: The number of episodes of each run, whose environment seeds no training used.
        env_steps: The budget of each run.
        configurations: The configurations, including the baseline, best first (see `judge_configurations`).
        winner: The name of the first configuration.
        train_s: Training seconds of all runs.
        policy: The policy that is registered; None before it was measured.
    """

    seeds: tuple[int, ...]
    episodes: int
    env_steps: int
    configurations: tuple[Configuration, ...]
    winner: str
    train_s: float = 0.0
    policy: CertifiedPolicy | None = None

    def best(self) -> Configuration:
        """Return the winning configuration."""
        return self.configurations[0]

    @property
    def num_compared(self) -> int:
        """Number of certified configurations that are compared with the baseline."""
        return sum(configuration.num_pairs > 0 for configuration in self.configurations)

    @property
    def has_target(self) -> bool:
        """Whether a configuration has reached ``budget.target`` with most of its runs."""
        return any(row.target_steps is not None for row in self.configurations)

    def suggest_seeds(self) -> int | None:
        """Suggest how many seeds tell whether the winner is better, if it wins as often on more of them.

        Returns:
            The number; None if the winner is the baseline or is better already, or if 80 seeds would not be enough.
        """
        best = self.best()
        if best.better or not best.num_pairs:
            return None
        is_first = all(each.better for each in self.configurations if 0 < each.place < best.place)
        rate = ERROR_RATE if is_first else _share_error_rate(best.place)
        for size in SPENT:
            needed = count_wins_needed(size, rate)
            if size > len(self.seeds) and needed and best.num_wins * size >= needed * best.num_pairs:
                return size
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return the certification as a dictionary that can be stored as JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Certification:
        """Rebuild the certification from the dictionary that `to_dict` returned, after a round trip through JSON."""
        configurations = [
            Configuration(
                **{
                    **row,
                    "per_seed": tuple(map(SeedResult.from_dict, row["per_seed"])),
                    "failed_seeds": tuple(row["failed_seeds"]),
                }
                | _drop_old_verdict(row)
            )
            for row in raw["configurations"]
        ]
        policy = CertifiedPolicy(**raw["policy"]) if raw.get("policy") else None
        lists = {"seeds": tuple(raw["seeds"]), "configurations": tuple(configurations)}
        return cls(**{**raw, **lists, "policy": policy})

    def table(self) -> list[dict[str, Any]]:
        """Return one flat dictionary of numbers for each configuration, without its parameters and single runs."""
        columns = ("name", "trial", "median", "low", "high", "worst", "difference", "num_pairs", "num_wins")
        return [
            {
                key: getattr(row, key)
                for key in (*columns, "num_ties", "wins_needed", *["target_steps"] * self.has_target)
            }
            | {"seeds": len(row.per_seed), "failed_seeds": len(row.failed_seeds), "verdict": self.verdict(row)}
            | {f"{name}{end}": row.metrics.get(name, {}).get(key) for name in self.metrics for end, key in ENDS.items()}
            for row in self.configurations
        ]

    @property
    def metrics(self) -> list[str]:
        """The names of the user's own metrics, in their order."""
        return list(dict.fromkeys(name for row in self.configurations for name in row.metrics))

    def verdict(self, configuration: Configuration) -> str:
        """Return ``winner``, ``better`` (than the baseline), both, the reason why it cannot win, or an empty string."""
        if configuration.broken:
            return configuration.broken
        if configuration.excess_failures > self.best().excess_failures:
            return "too many failed seeds"
        is_winner = configuration.name == self.winner
        return ", ".join(["winner"] * is_winner + ["better"] * configuration.better)

    def summary(self) -> dict[str, Any]:
        """Return the certification as it is stored in ``summary.json``."""
        content = asdict(replace(self, configurations=()))
        rows = zip(self.table(), self.configurations, strict=True)
        return content | {"configurations": [row | {"scores": configuration.scores} for row, configuration in rows]}


def _drop_old_verdict(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what replaces the verdict of a version that compared means, whose errors were too frequent."""
    old = row["difference"]
    return {"difference": old[0], "better": False} if isinstance(old, Sequence) else {}


def label(name: str, trial: int | None) -> str:
    """Return the name under which a configuration is displayed, see `Configuration.label`."""
    return f"trial {trial} = {BASELINE}" if name == BASELINE and trial is not None else name


def spell_params(params: Mapping[str, Any]) -> str:
    """Serialize parameters to a string that is equal for equal values, to find duplicate configurations."""
    return json.dumps(dict(params), sort_keys=True)


def list_choices(
    baseline: Configuration,
    finalists: Iterable[Configuration],
    begun: Iterable[Choice],
    earlier: Certification | None,
    top: int,
    num_seeds: int,
) -> list[Choice]:
    """List the configurations of a certification, each with the number of its seeds; all differ in their values.

    A configuration with runs stays in the comparison, in its place. If an earlier certification has compared it, then
    its runs are enough; only the best of these gets more seeds, and only if none of them has as many already.

    Args:
        baseline: The baseline, which is trained on all seeds.
        finalists: The trials of the search that can win, best first.
        begun: The configurations that have runs in the ledger with the number of these, in the order of their first.
        earlier: The result of the last certification; None for the first one.
        top: How many finalists are certified besides the baseline, if the search has as many.
        num_seeds: The number of seeds of this certification.

    Returns:
        The baseline first, then the others in the order in which they were first chosen.
    """
    best: dict[str, Configuration] = {}
    for each in finalists:
        if len(best) >= top:
            break
        if (values := spell_params(each.params)) != spell_params(baseline.params):
            best.setdefault(values, each)
    compared = [each for each in earlier.configurations if each.name != BASELINE] if earlier else []
    counts = {spell_params(each.params): each.num_seeds for each in compared}
    if counts and max(counts.values()) < num_seeds:
        counts[next(iter(counts))] = num_seeds
    choices = {spell_params(baseline.params): (baseline, num_seeds)}
    for each, num_runs in begun:
        values = spell_params(each.params)
        choices.setdefault(values, (each, counts.get(values, num_seeds if values in best else num_runs)))
    for values, each in best.items():
        choices.setdefault(values, (each, num_seeds))
    return list(choices.values())


def judge_configurations(
    configurations: Sequence[Configuration],
    seeds: Sequence[int],
    episodes: int,
    direction: Direction = Direction.MAX,
) -> Certification | None:
    """Compare configurations by their runs: rank them, and test which are better than the baseline.

    If the runs have played in two environments, then the episodes in one of them decide the ranks alone, and those in
    the other one everything else: medians, intervals, and what is better than the baseline.

    The test is a sign test over pairs of runs that share their seed and their start states
    (`rltune.statistics.count_wins_needed`). Several configurations are tested in the order in which they were chosen,
    the next one only if the one before is better, so that all together are wrong no more often than one alone (Maurer
    et al. 1995, "Multiple comparisons in drug clinical trials"). What this leaves of the error rate goes to those whose
    predecessors are not better: they have to win more. `benchmarks/coverage.py` simulates how often the verdicts hold.

    Winning says less: one of several equal configurations wins by chance, and its median is too high for the same
    reason, among four with five seeds by half a standard deviation of a run. So the worse end of its interval is
    extended until a third of its runs, pooled with those of the configurations whose intervals it overlaps, are worse:
    if they are equal, then all these runs are one sample.

    Args:
        configurations: Configurations with their runs, in the order in which they were chosen. A failed run counts as
            the worst return of any episode of all runs, because it is unknown how bad it would have been. So a
            configuration with more failed runs than a quarter ranks below those with fewer.
        seeds: The seeds of the certification. A configuration of an earlier one may have runs of the first ones alone.
        episodes: The number of episodes of each run.
        direction: Which scores are better.

    Returns:
        The configurations ranked by excess failures, then by the steps to ``budget.target`` of those whose runs reach
        it, then by the interquartile mean and the mean of their scores; the baseline comes before its
        equals, and those that break a constraint last. None if no configuration can win.
    """
    if not any(configuration.per_seed and not configuration.broken for configuration in configurations):
        return None
    runs = [run for configuration in configurations for run in configuration.per_seed]
    lowest = direction.find_worst(score for run in runs for score in run.returns)
    scored = [
        replace(configuration, failed_score=lowest if configuration.failed_seeds else None)
        for configuration in configurations
        if configuration.num_seeds
    ]
    baseline = next((configuration for configuration in scored if configuration.name == BASELINE), None)
    judged = [_bound(configuration, direction) for configuration in _test_in_order(scored, baseline, direction)]
    worst = find_failed_rank_score(configurations, direction)
    ranked = sorted(judged, key=partial(_rank, direction, worst), reverse=True)
    ranked[0] = _allow_for_choice(ranked, direction)
    bounded = [
        replace(each, low=None, high=None) if math.inf in (abs(each.low or 0.0), abs(each.high or 0.0)) else each
        for each in ranked
    ]
    return Certification(tuple(seeds), episodes, 0, tuple(bounded), bounded[0].name)


def find_failed_rank_score(configurations: Iterable[Configuration], direction: Direction) -> float:
    """Return what a failed run counts as among the ranks: the worst return of any episode that chooses."""
    runs = (run for configuration in configurations for run in configuration.per_seed)
    return direction.find_worst(score for run in runs for score in run.choice_returns or run.returns) or 0.0


def _rank(direction: Direction, worst: float, configuration: Configuration) -> tuple[float, ...]:
    """Return the sort key of a configuration; the winner has the highest key.

    Args:
        direction: Which scores are better.
        worst: What a failed run counts as.
        configuration: The configuration.
    """
    scores = configuration.list_rank_scores(worst)
    return (
        not configuration.broken,
        -configuration.excess_failures,
        -(configuration.target_steps or math.inf),
        direction.sign * float(interquartile_mean(scores)),
        direction.sign * sum(scores) / len(scores),
        configuration.name == BASELINE,
    )


def _test_in_order(
    configurations: Sequence[Configuration], baseline: Configuration | None, direction: Direction
) -> Iterator[Configuration]:
    """Yield the configurations with their verdicts, in the order in which they were chosen."""
    place, is_in_order = 0, True
    for configuration in configurations:
        if baseline is None or configuration is baseline:
            yield configuration
            continue
        place += 1
        compared = replace(_compare_runs(configuration, baseline, direction), place=place)
        needed = count_wins_needed(compared.num_pairs, ERROR_RATE if is_in_order else _share_error_rate(place))
        is_better = needed is not None and compared.num_wins >= needed
        is_in_order = is_in_order and is_better
        yield replace(compared, wins_needed=needed, better=is_better)


def _share_error_rate(place: int) -> float:
    """Return the error rate of a configuration that is tested out of order; over all places they add up."""
    return float(ERROR_RATE * OUT_OF_ORDER * 2.0 ** (1 - place))


def _compare_runs(configuration: Configuration, baseline: Configuration, direction: Direction) -> Configuration:
    """Fill in how many pairs of runs on the same seed a configuration wins, and their mean difference."""
    ours, theirs = configuration.score_by_seed, baseline.score_by_seed
    seeds = [seed for seed in ours if seed in theirs]
    wins = [
        seed not in configuration.failed_seeds
        and (seed in baseline.failed_seeds or direction.is_better(ours[seed], theirs[seed]))
        for seed in seeds
    ]
    has_both = seeds and configuration.per_seed and baseline.per_seed
    difference = fmean(ours[seed] - theirs[seed] for seed in seeds) if has_both else None
    failed = {*configuration.failed_seeds, *baseline.failed_seeds}
    num_ties = sum(ours[seed] == theirs[seed] and seed not in failed for seed in seeds)
    return replace(configuration, num_pairs=len(seeds), num_wins=sum(wins), num_ties=num_ties, difference=difference)


def _bound(configuration: Configuration, direction: Direction) -> Configuration:
    """Fill in the worst run of a configuration and the interval of its median."""
    lost = -direction.sign * math.inf  # Nobody knows how bad a failed run would have been.
    scores = [result.mean for result in configuration.per_seed] + [lost] * len(configuration.failed_seeds)
    low, high = (median_interval(scores) if configuration.per_seed else None) or (None, None)
    worst = direction.find_worst(configuration.scores)
    return replace(configuration, worst=worst, low=low, high=high, metrics=_bound_metrics(configuration))


def _bound_metrics(configuration: Configuration) -> dict[str, dict[str, float | None]]:
    """Return the median of each metric over the runs that have it, with its interval."""
    bounded: dict[str, dict[str, float | None]] = {}
    for name in dict.fromkeys(name for run in configuration.per_seed for name in run.metrics):
        means = _list_means(configuration, name)
        low, high = median_interval(means) or (None, None)
        bounded[name] = {"median": median(means) if means else None, "low": low, "high": high, "runs": len(means)}
    return bounded


def _list_means(configuration: Configuration, name: str) -> list[float]:
    """List the means of a metric in the runs that have it."""
    return [mean for run in configuration.per_seed if (mean := run.metrics.get(name)) is not None]


def _allow_in_metric(judged: Sequence[Configuration], name: str) -> dict[str, float | None]:
    """Return a metric of the winner with a wider interval, on both sides: more of it may be better or worse."""
    bounded = dict(judged[0].metrics[name])
    if (ends := _read_ends(judged[0], name)) is None:
        return bounded
    pool: list[float] = []
    for rival in judged:
        others = _read_ends(rival, name)
        if others is not None and not rival.broken and others[0] <= ends[1] and others[1] >= ends[0]:
            pool += _list_means(rival, name)
    ordered, third = sorted(pool), len(pool) // 3
    return bounded | {"low": min(ends[0], ordered[third]), "high": max(ends[1], ordered[-1 - third])}


def _read_ends(configuration: Configuration, name: str) -> tuple[float, float] | None:
    """Return both ends of a metric's interval; None if it has none."""
    bounded = configuration.metrics.get(name, {})
    low, high = bounded.get("low"), bounded.get("high")
    return None if low is None or high is None else (low, high)


def _allow_for_choice(judged: Sequence[Configuration], direction: Direction) -> Configuration:
    """Return the winner with a wider interval, which allows for the bias of having been chosen as the best."""
    winner = replace(judged[0], metrics={name: _allow_in_metric(judged, name) for name in judged[0].metrics})
    if winner.low is None or winner.high is None:
        return winner
    pool = [
        score
        for rival in judged
        if rival.low is not None and rival.high is not None and not rival.broken
        if rival.low <= winner.high and rival.high >= winner.low
        for score in rival.scores
    ]
    worse_third = sorted(pool, key=lambda score: direction.sign * score)[len(pool) // 3]
    if direction is Direction.MAX:
        return replace(winner, low=min(winner.low, worse_third))
    return replace(winner, high=max(winner.high, worse_third))
