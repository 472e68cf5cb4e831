"""Compare the best configurations with the baseline by their certification runs, and determine the winner.

`rltune.certification.retraining` decides what is trained. The ledger stores the result (`Certification.to_dict`), and
``summary.json`` has it without the returns of single episodes. Imports nothing heavy.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from statistics import median
from typing import Any

from rltune.records import BASELINE, Direction, RunKey
from rltune.statistics import Difference, bound_difference, interquartile_mean, median_interval

MIN_RUNS = 5  # The fewest runs for which `median_interval` has a 95% interval.
MANY_TIMES = 10  # More seeds than so many times those of a certification are not suggested.


@dataclass(frozen=True)
class SeedResult:
    """The result of retraining one configuration on one fresh seed.

    Attributes:
        seed: The training seed.
        mean: The run's score.
        returns: The return of each episode of the run's best checkpoint.
        checkpoint: The path of this checkpoint, relative to the sweep's folder.
        run: The key of the run in MLflow. Configurations with the same values share their runs.
        mlflow_run_id: The id of the run in MLflow; None without MLflow, or if MLflow has not answered yet.
    """

    seed: int
    mean: float
    returns: tuple[float, ...]
    checkpoint: str = ""
    run: RunKey = field(default_factory=lambda: RunKey(None))
    mlflow_run_id: str | None = None

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> SeedResult:
        """Rebuild the result from its dictionary, as JSON stores it."""
        return cls(**{**raw, "returns": tuple(raw["returns"]), "run": RunKey(**raw["run"])})


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
        failed_score: The score that each failed seed counts as: the worst return of all runs. None if no seed failed.
        broken: The constraint that the configuration breaks, in words, so that it cannot win; None if it breaks none.
        worst: The worst of the scores.
        low: Lower end of the 95% interval of the runs' median; None with fewer than `MIN_RUNS`, and if all failed.
        high: Upper end of this interval.
        difference: How far the mean of the scores is from the baseline's; None for the baseline, and if either has no
            run.
        better: Whether the interval of the difference has the configuration better than the baseline.
    """

    name: str
    trial: int | None
    params: Mapping[str, Any]
    search_score: float | None
    per_seed: tuple[SeedResult, ...]
    failed_seeds: tuple[int, ...] = ()
    failed_score: float | None = None
    broken: str | None = None
    worst: float | None = None
    low: float | None = None
    high: float | None = None
    difference: Difference | None = None
    better: bool = False

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
        failed = [] if self.failed_score is None else [self.failed_score] * len(self.failed_seeds)
        return [result.mean for result in self.per_seed] + failed

    @property
    def median(self) -> float | None:
        """The median of the scores of all seeds; None if all seeds failed."""
        return median(self.scores) if self.per_seed else None


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
        low: Lower end of the mean's 95% interval (`rltune.statistics.mean_interval`); None below five episodes.
        high: Upper end of this interval.
    """

    name: str
    seed: int
    checkpoint: str
    episodes: int
    mean: float
    low: float | None
    high: float | None


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
        return sum(configuration.difference is not None for configuration in self.configurations)

    def count_seeds_to_decide(self) -> int | None:
        """Estimate how many seeds tell the winner from the baseline, if the difference of their means stays the same.

        Returns:
            The number; None if they can be told apart already, or only by more than `MANY_TIMES` as many seeds.
        """
        best = self.best()
        difference, num_seeds = best.difference, best.num_seeds
        if difference is None:
            return None
        if difference.low is None or difference.high is None:
            return MIN_RUNS
        if difference.low > 0 or difference.high < 0 or not difference.mean:
            return None
        # An interval is about half as wide with four times as many seeds.
        needed = num_seeds * ((difference.high - difference.low) / 2 / difference.mean) ** 2
        return max(num_seeds + 1, math.ceil(needed)) if needed <= MANY_TIMES * num_seeds else None

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
                    "difference": Difference(*row["difference"]) if row["difference"] else None,
                }
            )
            for row in raw["configurations"]
        ]
        policy = CertifiedPolicy(**raw["policy"]) if raw.get("policy") else None
        lists = {"seeds": tuple(raw["seeds"]), "configurations": tuple(configurations)}
        return cls(**{**raw, **lists, "policy": policy})

    def table(self) -> list[dict[str, Any]]:
        """Return one flat dictionary of numbers for each configuration, without its parameters and single runs."""
        columns, ends = ("name", "trial", "median", "low", "high", "worst"), ("", "_low", "_high")
        return [
            {key: getattr(row, key) for key in columns}
            | {f"difference{end}": value for end, value in zip(ends, row.difference or (None,) * 3, strict=True)}
            | {"seeds": len(row.per_seed), "failed_seeds": len(row.failed_seeds), "verdict": self.verdict(row)}
            for row in self.configurations
        ]

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
        content = {key: value for key, value in self.to_dict().items() if key != "configurations"}
        rows = zip(self.table(), self.configurations, strict=True)
        return content | {"configurations": [row | {"scores": configuration.scores} for row, configuration in rows]}


def label(name: str, trial: int | None) -> str:
    """Return the name under which a configuration is displayed, see `Configuration.label`."""
    return f"trial {trial} = {BASELINE}" if name == BASELINE and trial is not None else name


def spell_params(params: Mapping[str, Any]) -> str:
    """Serialize parameters to a string that is equal for equal values, to find duplicate configurations."""
    return json.dumps(dict(params), sort_keys=True)


def drop_duplicates(configurations: Sequence[Configuration]) -> list[Configuration]:
    """Drop later configurations with equal values, so that the baseline does not compete with a copy of itself.

    Args:
        configurations: The baseline first, then the finalists, best first.

    Returns:
        The configurations in the same order. The baseline gets trial and score of the first finalist with its values.
    """
    unique: dict[str, Configuration] = {}
    for configuration in configurations:
        values = spell_params(configuration.params)
        first = unique.setdefault(values, configuration)
        if first.name == BASELINE and first.trial is None:
            unique[values] = replace(first, trial=configuration.trial, search_score=configuration.search_score)
    return list(unique.values())


def judge_configurations(
    configurations: Sequence[Configuration],
    seeds: Sequence[int],
    episodes: int,
    direction: Direction = Direction.MAX,
) -> Certification | None:
    """Compare configurations by their runs: rank them, compute confidence intervals, and compare with the baseline.

    A configuration is better than the baseline if the interval of the difference of their means excludes zero
    (`rltune.statistics.bound_difference`). Winning says less: one of several equal configurations wins by chance, and
    its median is too high for the same reason, among four with five seeds by half a standard deviation of a run. So the
    worse end of its interval is extended until a third of its runs, pooled with those of the configurations whose
    intervals it overlaps, are worse: if they are equal, then all these runs are one sample. `benchmarks/coverage.py`
    simulates how often this holds.

    Args:
        configurations: Configurations with their runs, those first that win where all is equal. A failed run counts as
            the worst return of all runs, because it is unknown how bad it would have been. So a configuration with more
            failed runs than a quarter ranks below those with fewer.
        seeds: The seeds that every configuration was to be trained on.
        episodes: The number of episodes of each run.
        direction: Which scores are better.

    Returns:
        The configurations ranked by excess failures, then by the interquartile mean and the mean of their scores; the
        baseline comes before its equals, and those that break a constraint last. None if no configuration can win.
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
    ranked = sorted(scored, key=partial(_rank, direction), reverse=True)
    baseline = next((configuration for configuration in ranked if configuration.name == BASELINE), None)
    num_compared = sum(configuration.name != BASELINE and bool(configuration.per_seed) for configuration in ranked)
    judged = [_judge(configuration, baseline, num_compared, direction) for configuration in ranked]
    judged[0] = _allow_for_choice(judged, direction)
    return Certification(tuple(seeds), episodes, 0, tuple(judged), judged[0].name)


def _rank(direction: Direction, configuration: Configuration) -> tuple[float, ...]:
    """Return the sort key of a configuration; the winner has the highest key."""
    scores = configuration.scores
    return (
        not configuration.broken,
        -configuration.excess_failures,
        direction.sign * float(interquartile_mean(scores)),
        direction.sign * sum(scores) / len(scores),
        configuration.name == BASELINE,
    )


def _judge(
    configuration: Configuration, baseline: Configuration | None, num_compared: int, direction: Direction
) -> Configuration:
    """Fill in the interval of a configuration's median and its difference from the baseline.

    Args:
        configuration: The configuration with its runs.
        baseline: The baseline, if it was trained.
        num_compared: How many configurations are compared with the baseline.
        direction: Which scores are better.
    """
    scores = configuration.scores
    low, high = (median_interval(scores) if configuration.per_seed else None) or (None, None)
    judged = replace(configuration, worst=direction.find_worst(scores), low=low, high=high)
    if baseline is None or configuration.name == BASELINE or not (configuration.per_seed and baseline.per_seed):
        return judged
    difference = bound_difference(scores, baseline.scores, num_compared)
    return replace(judged, difference=difference, better=difference.is_better(direction))


def _allow_for_choice(judged: Sequence[Configuration], direction: Direction) -> Configuration:
    """Return the winner with a wider interval, which allows for the bias of having been chosen as the best."""
    winner = judged[0]
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
