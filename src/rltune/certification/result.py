"""Judge how the best configurations and the baseline did on fresh seeds.

The ledger keeps it (`Certification.to_dict`), ``summary.json`` without the single returns.
`rltune.certification.retraining` decides what is trained. Imports nothing heavy.
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

MIN_RUNS = 5  # that `median_interval` has an interval of


@dataclass(frozen=True)
class SeedResult:
    """One configuration retrained on one fresh seed, and its best checkpoint's deterministic episodes.

    Attributes:
        seed: The training seed.
        mean: Of the returns: the run's score.
        returns: One an episode; every run plays the same environment seeds.
        checkpoint: What was evaluated, relative to the sweep's folder.
        run: Its run in MLflow, after the configuration that asked first: two of the same values share their runs.
        mlflow_run_id: That run's id; None without MLflow, or where it had not answered by then.
    """

    seed: int
    mean: float
    returns: tuple[float, ...]
    checkpoint: str = ""
    run: RunKey = field(default_factory=lambda: RunKey(None))
    mlflow_run_id: str | None = None

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> SeedResult:
        """Read what ``asdict`` returned, through JSON."""
        return cls(**{**raw, "returns": tuple(raw["returns"]), "run": RunKey(**raw["run"])})


@dataclass(frozen=True)
class Configuration:
    """One configuration's certified worth. Scores are one a seed.

    Attributes:
        name: ``trial 7``, or ``baseline``: the tuned settings if there are any for the pair, else the algo's own.
        trial: The search's trial; of the baseline the finalist that has its values, None without one.
        params: Its values.
        search_score: What the search believed: that trial's score; None without a trial.
        per_seed: The runs.
        failed_seeds: Seeds whose training failed.
        failed_score: What each of them counts as: the worst return of all runs. None if no seed failed.
        mean: Of the scores.
        raw_iqm: Interquartile mean of the scores, by which the winner is chosen; None in a record that lacks it.
        broken: The constraint that it breaks, in words: it cannot win. None without one.
        iqm: The certified score: the same, and the winner's free of the choice, see `judge_configurations`.
        low: Lower end of the 95% interval of the runs' median; None without an interval (`has_interval`).
        high: Its upper end.
        improvement: Probability that a run of it beats one of the baseline; None for the baseline itself.
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
        """Runs, the failed ones too."""
        return len(self.per_seed) + len(self.failed_seeds)

    @property
    def excess_failures(self) -> int:
        """Failed seeds beyond the quarter that the IQM leaves out: survivors alone are no fair sample."""
        return max(0, len(self.failed_seeds) - self.num_seeds // 4)

    @property
    def has_interval(self) -> bool:
        """Whether there are runs enough, and no more failed than the IQM leaves out."""
        return self.num_seeds >= MIN_RUNS and not self.excess_failures

    @property
    def label(self) -> str:
        """As a person reads it: ``trial 0 = baseline`` where the search tried the baseline's values."""
        return label(self.name, self.trial)

    @property
    def scores(self) -> list[float]:
        """One a seed, those of failed ones last."""
        return list(self.by_seed.values())

    @property
    def by_seed(self) -> dict[int, float]:
        """The scores by their seeds, those of failed ones last."""
        failed = {} if self.failed_score is None else dict.fromkeys(self.failed_seeds, self.failed_score)
        return {result.seed: result.mean for result in self.per_seed} | failed

    def without(self, seed: int) -> Configuration:
        """Return it as it would be without one of its seeds."""
        return replace(
            self,
            per_seed=tuple(result for result in self.per_seed if result.seed != seed),
            failed_seeds=tuple(failed for failed in self.failed_seeds if failed != seed),
        )


@dataclass(frozen=True)
class CertifiedPolicy:
    """The one policy that is registered: of the winner's runs the one with the best score.

    It was chosen by the certification's episodes, and champions are compared on those that are the same in every sweep;
    it is measured on the sweep's own, so that neither choice flatters it.

    Attributes:
        name: Its configuration.
        seed: The training seed.
        checkpoint: Relative to the sweep's folder.
        episodes: How many it was measured on, of environment seeds that are this sweep's own.
        mean: Of their returns.
        iqm: Interquartile mean of their returns.
        low: Lower end of the mean's 95% interval over so many fresh episodes (`statistics.predictive_interval`).
        high: Upper end.
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
    """What certification found.

    Attributes:
        seeds: The training seeds, the same for every configuration and none of them the search's.
        episodes: Of each run, with environment seeds that no training saw.
        env_steps: Each run's budget.
        configurations: The best first by `raw_iqm`, the baseline among them, after those with fewer `excess_failures`;
            one that breaks a constraint comes last.
        winner: The first one's name.
        ties: Names of those whose interval overlaps the winner's: these data do not tell them apart. None of fewer
            than five seeds, which have no intervals.
        train_s: Training seconds of all its runs.
        policy: What is registered; None before it was measured.
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
        """Return it as JSON can hold it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Certification:
        """Read what `to_dict` returned, through JSON."""
        configurations = [
            Configuration(
                **{
                    **one,
                    "per_seed": tuple(map(SeedResult.from_dict, one["per_seed"])),
                    "failed_seeds": tuple(one["failed_seeds"]),
                }
            )
            for one in raw["configurations"]
        ]
        policy = CertifiedPolicy(**raw["policy"]) if raw.get("policy") else None
        lists = {key: tuple(raw[key]) for key in ("seeds", "ties")}
        return cls(**{**raw, **lists, "configurations": tuple(configurations), "policy": policy})

    def table(self) -> list[dict[str, Any]]:
        """Return one flat row a configuration, without params and single runs."""
        columns = ("name", "trial", "search_score", "mean", "iqm", "raw_iqm", "low", "high", "improvement")
        return [
            {key: getattr(one, key) for key in columns}
            | {"seeds": len(one.per_seed), "failed_seeds": len(one.failed_seeds), "failed_score": one.failed_score}
            | {"verdict": self.verdict(one)}
            for one in self.configurations
        ]

    def verdict(self, one: Configuration) -> str:
        """Return ``winner``, ``tie``, why it cannot win (what it breaks, ``too many failed seeds``) or nothing."""
        if one.name == self.winner:
            return "winner"
        if one.broken:
            return one.broken
        if one.excess_failures > self.best().excess_failures:
            return "too many failed seeds"
        return "tie" if one.name in self.ties else ""

    def summary(self) -> dict[str, Any]:
        """Return it as ``summary.json`` has it."""
        content = {key: value for key, value in self.to_dict().items() if key != "configurations"}
        rows = zip(self.table(), self.configurations, strict=True)
        return content | {"configurations": [row | {"scores": one.scores} for row, one in rows]}


def label(name: str, trial: int | None) -> str:
    """Return a configuration's name as a person reads it, see `Configuration.label`."""
    return f"trial {trial} = {BASELINE}" if name == BASELINE and trial is not None else name


def spell_params(params: Mapping[str, Any]) -> str:
    """Spell values so that equal ones are equal."""
    return json.dumps(dict(params), sort_keys=True)


def drop_duplicates(configurations: Sequence[Configuration]) -> list[Configuration]:
    """Keep one of each set of values: a finalist that has the baseline's is the baseline, and no rival of it.

    Args:
        configurations: The baseline first, then the finalists, best first.

    Returns:
        The same order; the baseline has the trial and the search's score of the finalist that it is.
    """
    found: dict[str, Configuration] = {}
    for one in configurations:
        values = spell_params(one.params)
        first = found.setdefault(values, one)
        if first.name == BASELINE and first.trial is None:
            found[values] = replace(first, trial=one.trial, search_score=one.search_score)
    return list(found.values())


def judge_configurations(
    configurations: Sequence[Configuration],
    seeds: Sequence[int],
    episodes: int,
    direction: Direction = Direction.MAX,
) -> Certification | None:
    """Judge configurations by their runs: IQM, intervals, winner, ties.

    The best of several IQMs is too good: among four equals by half a standard deviation of a run at five seeds. So the
    winner's reported score is corrected for the choice: each seed contributes the score of the configuration that the
    other seeds choose, which is cross-validation of the whole choice (Stone 1974; Varma & Simon 2006). The worse end of
    its interval extends to where a third of its runs and those of the configurations that it overlaps are worse: among
    equals these runs would all be one sample. `benchmarks/coverage.py` simulates both.

    Args:
        configurations: With their runs. A failed run counts as the worst return of all, because it is not known how bad
            it would have been. So a configuration with more failed runs than the IQM leaves out ranks below those with
            fewer.
        seeds: The seeds that every configuration was to be trained on.
        episodes: The number of episodes of each run.
        direction: Which scores are better.

    Returns:
        Winner first: by excess failures, then by IQM, then by mean, then by the search's score, so that the baseline
        wins only if it is better. None if none of the runs that can win succeeded.
    """
    if not any(one.per_seed and not one.broken for one in configurations):
        return None
    runs = [run for configuration in configurations for run in configuration.per_seed]
    worst = direction.find_worst(score for run in runs for score in run.returns)
    begun = [replace(one, failed_score=worst if one.failed_seeds else None) for one in configurations if one.num_seeds]
    ranked = sorted(begun, key=partial(_rank, direction), reverse=True)
    baseline = next((one for one in ranked if one.name == BASELINE), None)
    judged = [_judge(one, one.scores, baseline, direction) for one in ranked]
    judged[0] = _correct_for_choice(judged, baseline, direction)
    winner = judged[0]
    ties = tuple(one.name for one in judged[1:] if _overlap(one, winner))
    return Certification(tuple(seeds), episodes, 0, tuple(judged), winner.name, ties)


def _rank(direction: Direction, configuration: Configuration) -> tuple[float, ...]:
    """Return the key that configurations are ranked by, the highest first."""
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
        configuration: With its runs.
        corrected_scores: Its scores, or those of `_correct_for_choice`.
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
    """Return the winner, the first of all, with its numbers corrected for its having been chosen."""
    winner = judged[0]
    held_out = []
    for seed in winner.by_seed:
        rivals = [one for one in judged if seed in one.by_seed and one.num_seeds > 1]
        chosen = max(rivals, key=lambda one: _rank(direction, one.without(seed)), default=winner)
        held_out.append(chosen.by_seed[seed])
    corrected = _judge(winner, held_out, baseline, direction)
    if corrected.low is None or corrected.high is None:
        return corrected
    pool = [score for one in judged if one is winner or _overlap(one, winner) for score in one.scores]
    worse_third = sorted(pool, key=lambda score: direction.sign * score)[len(pool) // 3]
    low, high = min(corrected.low, corrected.iqm), max(corrected.high, corrected.iqm)
    if direction is Direction.MAX:
        return replace(corrected, low=min(low, worse_third), high=high)
    return replace(corrected, low=low, high=max(high, worse_third))


def _overlap(one: Configuration, other: Configuration) -> bool:
    """Whether two intervals overlap; without one there is nothing to tell by, and what cannot win is no rival."""
    if one.broken or other.broken:
        return False
    if one.low is None or one.high is None or other.low is None or other.high is None:
        return False
    return one.low <= other.high and one.high >= other.low
