"""Judge the best configurations and the baseline by their runs on fresh seeds.

`rltune.certification.retraining` decides what is trained. The ledger stores the result (`Certification.to_dict`), and
``summary.json`` has it without the returns of single episodes. Imports nothing heavy.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from rltune.records import BASELINE, Direction, RunKey
from rltune.statistics import interquartile_mean, median_interval, probability_of_improvement

MIN_RUNS = 5  # `median_interval` has no 95% interval for fewer runs.


@dataclass(frozen=True)
class SeedResult:
    """The result of retraining one configuration on one fresh seed.

    Attributes:
        seed: The training seed.
        mean: The run's score.
        returns: The return of each deterministic episode of the run's best checkpoint.
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
        """Read what ``asdict`` returned, after it was stored as JSON."""
        return cls(**{**raw, "returns": tuple(raw["returns"]), "run": RunKey(**raw["run"])})


@dataclass(frozen=True)
class Configuration:
    """A configuration and its certified score, computed from one score for each seed.

    Attributes:
        name: ``trial 7``, or ``baseline``: the tuned settings of algorithm and environment if there are any, else the
            values of the algorithm file.
        trial: The number of the search's trial. For the baseline, the trial with the same values, or None.
        params: The values of the searched parameters.
        search_score: The score of that trial in the search; None without a trial.
        per_seed: The results of the runs that succeeded.
        failed_seeds: Seeds whose training failed.
        failed_score: The score that each failed seed counts as: the worst return of all runs. None if no seed failed.
        mean: Mean of the scores.
        raw_iqm: Interquartile mean of the scores, which decides the winner; None in a record that lacks it.
        broken: The constraint that the configuration breaks, in words, so that it cannot win; None if it breaks none.
        iqm: The certified score: `raw_iqm`, for the winner corrected for the choice (see `judge_configurations`).
        low: Lower end of the 95% interval of the runs' median; None without an interval (`has_interval`).
        high: Upper end of this interval.
        improvement: Probability that a run scores better than a run of the baseline; None for the baseline.
    """

    name: str
    trial: int | None
    params: Mapping[str, Any]
    search_score: float | None
    per_seed: tuple[SeedResult, ...]
    failed_seeds: tuple[int, ...] = ()
    mean: float = 0.0
    iqm: float = 0.0
    low: float | None = None
    high: float | None = None
    improvement: float | None = None
    failed_score: float | None = None
    raw_iqm: float | None = None
    broken: str | None = None

    @property
    def num_seeds(self) -> int:
        """Number of runs, including failed ones."""
        return len(self.per_seed) + len(self.failed_seeds)

    @property
    def excess_failures(self) -> int:
        """Number of failed seeds beyond the quarter that the IQM trims: the remaining runs are no fair sample."""
        return max(0, len(self.failed_seeds) - self.num_seeds // 4)

    @property
    def has_interval(self) -> bool:
        """Whether there are enough runs for an interval, and no more failed seeds than the IQM trims."""
        return self.num_seeds >= MIN_RUNS and not self.excess_failures

    @property
    def label(self) -> str:
        """The displayed name: ``trial 0 = baseline`` if the search tried the baseline's values."""
        return label(self.name, self.trial)

    @property
    def scores(self) -> list[float]:
        """The score of each seed, with failed seeds last."""
        return list(self.by_seed.values())

    @property
    def by_seed(self) -> dict[int, float]:
        """The scores by seed, with failed seeds last."""
        failed = {} if self.failed_score is None else dict.fromkeys(self.failed_seeds, self.failed_score)
        return {result.seed: result.mean for result in self.per_seed} | failed

    def without(self, seed: int) -> Configuration:
        """Return the configuration without the runs of one seed."""
        return replace(
            self,
            per_seed=tuple(result for result in self.per_seed if result.seed != seed),
            failed_seeds=tuple(failed for failed in self.failed_seeds if failed != seed),
        )


@dataclass(frozen=True)
class CertifiedPolicy:
    """The policy that is registered: that of the winner's run with the best score.

    The certification's episodes chose this run, and champions are compared on episodes that are the same in every
    sweep. The numbers below come from other episodes, so that neither choice makes them too good.

    Attributes:
        name: The name of the configuration.
        seed: The training seed.
        checkpoint: The path of the checkpoint, relative to the sweep's folder.
        episodes: The number of episodes, whose environment seeds no other sweep uses.
        mean: Mean of their returns.
        iqm: Interquartile mean of their returns.
        low: Lower end of the 95% interval of the mean of as many fresh episodes (`statistics.predictive_interval`).
        high: Upper end of this interval.
    """

    name: str
    seed: int
    checkpoint: str
    episodes: int
    mean: float
    iqm: float
    low: float
    high: float


@dataclass(frozen=True)
class Certification:
    """The result of a certification.

    Attributes:
        seeds: The training seeds, the same for every configuration and different from those of the search.
        episodes: The number of episodes of each run, whose environment seeds no training used.
        env_steps: The budget of each run.
        configurations: The configurations, including the baseline, best first (see `judge_configurations`).
        winner: The name of the first configuration.
        ties: The names of configurations whose interval overlaps the winner's: the data do not tell them apart. Empty
            with fewer than five seeds, which give no intervals.
        train_s: Training seconds of all runs.
        policy: The policy that is registered; None before it was measured.
    """

    seeds: tuple[int, ...]
    episodes: int
    env_steps: int
    configurations: tuple[Configuration, ...]
    winner: str
    ties: tuple[str, ...]
    train_s: float = 0.0
    policy: CertifiedPolicy | None = None

    def best(self) -> Configuration:
        """Return the winner."""
        return self.configurations[0]

    def to_dict(self) -> dict[str, Any]:
        """Return the certification as a dict for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Certification:
        """Read what `to_dict` returned, after it was stored as JSON."""
        configurations = [
            Configuration(
                **{
                    **row,
                    "per_seed": tuple(map(SeedResult.from_dict, row["per_seed"])),
                    "failed_seeds": tuple(row["failed_seeds"]),
                }
            )
            for row in raw["configurations"]
        ]
        policy = CertifiedPolicy(**raw["policy"]) if raw.get("policy") else None
        lists = {key: tuple(raw[key]) for key in ("seeds", "ties")}
        return cls(**{**raw, **lists, "configurations": tuple(configurations), "policy": policy})

    def table(self) -> list[dict[str, Any]]:
        """Return one flat row for each configuration, without its parameters and single runs."""
        columns = ("name", "trial", "search_score", "mean", "iqm", "raw_iqm", "low", "high", "improvement")
        return [
            {key: getattr(row, key) for key in columns}
            | {"seeds": len(row.per_seed), "failed_seeds": len(row.failed_seeds), "failed_score": row.failed_score}
            | {"verdict": self.verdict(row)}
            for row in self.configurations
        ]

    def verdict(self, configuration: Configuration) -> str:
        """Return ``winner``, ``tie``, the reason why a configuration cannot win, or an empty text."""
        if configuration.name == self.winner:
            return "winner"
        if configuration.broken:
            return configuration.broken
        if configuration.excess_failures > self.best().excess_failures:
            return "too many failed seeds"
        return "tie" if configuration.name in self.ties else ""

    def summary(self) -> dict[str, Any]:
        """Return the certification as ``summary.json`` has it."""
        content = {key: value for key, value in self.to_dict().items() if key != "configurations"}
        rows = zip(self.table(), self.configurations, strict=True)
        return content | {"configurations": [row | {"scores": configuration.scores} for row, configuration in rows]}


def label(name: str, trial: int | None) -> str:
    """Return a configuration's displayed name, see `Configuration.label`."""
    return f"trial {trial} = {BASELINE}" if name == BASELINE and trial is not None else name


def spell_params(params: Mapping[str, Any]) -> str:
    """Write parameters as a text that is the same for equal values."""
    return json.dumps(dict(params), sort_keys=True)


def drop_duplicates(configurations: Sequence[Configuration]) -> list[Configuration]:
    """Keep the first configuration of each set of values, so that a finalist with the baseline's values is no rival.

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
    """Judge configurations by their runs: IQM, intervals, winner, ties.

    The best of several IQMs is biased: among four equal configurations with five seeds, by half a standard deviation of
    a run. So the winner's reported score is corrected for the choice by cross-validation (Stone 1974; Varma & Simon
    2006): for each seed, the configuration that the other seeds choose is scored on this seed. The worse end of the
    winner's interval is extended until a third of its runs, pooled with those of the configurations that it overlaps,
    are worse: if they are equal, then all these runs are one sample. `benchmarks/coverage.py` simulates both.

    Args:
        configurations: Configurations with their runs. A failed run counts as the worst return of all runs, because it
            is unknown how bad it would have been. So a configuration with more failed runs than the IQM trims ranks
            below those with fewer.
        seeds: The seeds that every configuration was to be trained on.
        episodes: The number of episodes of each run.
        direction: Which scores are better.

    Returns:
        The configurations ranked by excess failures, then IQM, mean, and the search's score, so that the baseline wins
        only if it is better; those that break a constraint come last. None if no configuration can win.
    """
    if not any(configuration.per_seed and not configuration.broken for configuration in configurations):
        return None
    runs = [run for configuration in configurations for run in configuration.per_seed]
    worst = direction.find_worst(score for run in runs for score in run.returns)
    scored = [
        replace(configuration, failed_score=worst if configuration.failed_seeds else None)
        for configuration in configurations
        if configuration.num_seeds
    ]
    ranked = sorted(scored, key=partial(_rank, direction), reverse=True)
    baseline = next((configuration for configuration in ranked if configuration.name == BASELINE), None)
    judged = [_judge(configuration, configuration.scores, baseline, direction) for configuration in ranked]
    judged[0] = _correct_for_choice(judged, baseline, direction)
    winner = judged[0]
    ties = tuple(rival.name for rival in judged[1:] if _overlap(rival, winner))
    return Certification(tuple(seeds), episodes, 0, tuple(judged), winner.name, ties)


def _rank(direction: Direction, configuration: Configuration) -> tuple[float, ...]:
    """Return the sort key of a configuration; the best has the highest."""
    scores, search_score = configuration.scores, configuration.search_score
    is_searched = configuration.name != BASELINE
    return (
        not configuration.broken,
        -configuration.excess_failures,
        direction.sign * float(interquartile_mean(scores)),
        direction.sign * sum(scores) / len(scores),
        direction.sign * search_score if is_searched and search_score is not None else -math.inf,
    )


def _judge(
    configuration: Configuration,
    corrected_scores: Sequence[float],
    baseline: Configuration | None,
    direction: Direction,
) -> Configuration:
    """Compute a configuration's numbers.

    Args:
        configuration: The configuration with its runs.
        corrected_scores: Its scores, or the scores of `_correct_for_choice`.
        baseline: The baseline, if it was trained.
        direction: Which scores are better.
    """
    scores = configuration.scores
    low, high = (median_interval(scores) if configuration.has_interval else None) or (None, None)
    improvement = None
    if baseline is not None and configuration.name != BASELINE:
        improvement = probability_of_improvement(corrected_scores, baseline.scores, direction)
    return replace(
        configuration,
        mean=sum(scores) / len(scores),
        raw_iqm=float(interquartile_mean(scores)),
        iqm=float(interquartile_mean(corrected_scores)),
        low=low,
        high=high,
        improvement=improvement,
    )


def _correct_for_choice(
    judged: Sequence[Configuration], baseline: Configuration | None, direction: Direction
) -> Configuration:
    """Return the winner, the first configuration, with its numbers corrected for the choice."""
    winner = judged[0]
    held_out = []
    for seed in winner.by_seed:
        rivals = [rival for rival in judged if seed in rival.by_seed and rival.num_seeds > 1]
        chosen = max(rivals, key=lambda rival: _rank(direction, rival.without(seed)), default=winner)
        held_out.append(chosen.by_seed[seed])
    corrected = _judge(winner, held_out, baseline, direction)
    if corrected.low is None or corrected.high is None:
        return corrected
    pool = [score for rival in judged if rival is winner or _overlap(rival, winner) for score in rival.scores]
    worse_third = sorted(pool, key=lambda score: direction.sign * score)[len(pool) // 3]
    low, high = min(corrected.low, corrected.iqm), max(corrected.high, corrected.iqm)
    if direction is Direction.MAX:
        return replace(corrected, low=min(low, worse_third), high=high)
    return replace(corrected, low=low, high=max(high, worse_third))


def _overlap(first: Configuration, second: Configuration) -> bool:
    """Return whether two intervals overlap; False if one is missing, or if a configuration cannot win."""
    if first.broken or second.broken:
        return False
    if first.low is None or first.high is None or second.low is None or second.high is None:
        return False
    return first.low <= second.high and first.high >= second.low
