"""Judge how the best configurations and the baseline did on fresh seeds.

The ledger keeps it (`Certification.to_dict`), ``summary.json`` without the single returns.
`rltune.certification.retraining` decides what is trained. A person reads "control" for the baseline. Imports nothing
heavy.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from rltune.records import RunKey
from rltune.statistics import bootstrap_interval, interquartile_mean, probability_of_improvement

BASELINE = "control"
MIN_RUNS = 3  # that an interval is shown of


@dataclass(frozen=True)
class SeedResult:
    """One configuration retrained on one fresh seed, and its best checkpoint's deterministic episodes.

    Attributes:
        seed: The training seed.
        mean: Of the returns: the run's score.
        returns: One an episode; every run plays the same environment seeds.
        checkpoint: What was evaluated, relative to the sweep's folder.
        run: Its run in MLflow, after the configuration that asked first: two of the same values share their runs.
        mlflow_run_id: That run's id; None without MLflow.
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
        name: ``trial 7``, or ``control``: the tuned settings if there are any for the pair, else the algo's own.
        trial: The search's trial; of the control the finalist that has its values, None without one.
        params: Its values.
        search_score: What the search believed: that trial's best report; None without a trial.
        per_seed: The runs.
        failed_seeds: Seeds whose training failed.
        failed_score: What each of them counts as: the lowest return of all runs. None without one that failed.
        mean: Of the scores.
        iqm: Interquartile mean of the scores: the certified score, by which the winner is chosen.
        low: Lower end of the IQM's 95% stratified bootstrap interval over seeds.
        high: Its upper end.
        improvement: Probability that a run of it beats one of the control; None for the control itself.
        optimism: search_score - iqm; None without a search score that is of the whole budget.
        whole_budget: Whether the search's trial had it: a stopped one's score says nothing about optimism.
    """

    name: str
    trial: int | None
    params: Mapping[str, Any]
    search_score: float | None
    per_seed: tuple[SeedResult, ...]
    failed_seeds: tuple[int, ...] = ()
    mean: float = 0.0
    iqm: float = 0.0
    low: float = 0.0
    high: float = 0.0
    improvement: float | None = None
    optimism: float | None = None
    whole_budget: bool = True
    failed_score: float | None = None

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
        """Whether enough runs succeeded to show one."""
        return len(self.per_seed) >= MIN_RUNS

    @property
    def label(self) -> str:
        """As a person reads it: ``trial 0 = control`` where the search tried the control's values."""
        return label(self.name, self.trial)

    @property
    def scores(self) -> list[float]:
        """One a seed, those of failed ones last."""
        failed = [] if self.failed_score is None else [self.failed_score] * len(self.failed_seeds)
        return [*(result.mean for result in self.per_seed), *failed]

    @property
    def worst(self) -> float:
        """The lowest return of any episode."""
        return min(value for result in self.per_seed for value in result.returns)


@dataclass(frozen=True)
class CertifiedPolicy:
    """The one policy that is registered: of the winner's runs the one with the highest score.

    It was chosen by the certification's episodes and is measured on other ones, so that the choice flatters nothing.

    Attributes:
        name: Its configuration.
        seed: The training seed.
        checkpoint: Relative to the sweep's folder.
        episodes: How many it was measured on; the same environment seeds in every sweep.
        mean: Of their returns: the score by which champions are compared.
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
        configurations: The best first by IQM, the control among them, after those with fewer `excess_failures`.
        winner: The first one's name.
        ties: Names of those whose interval overlaps the winner's: these data do not tell them apart.
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
        shown = ("name", "trial", "search_score", "mean", "iqm", "low", "high", "improvement", "optimism")
        return [
            {key: getattr(one, key) for key in shown}
            | {"seeds": len(one.per_seed), "failed_seeds": len(one.failed_seeds), "failed_score": one.failed_score}
            | {"verdict": self.verdict(one)}
            for one in self.configurations
        ]

    def verdict(self, one: Configuration) -> str:
        """Return ``winner``, ``tie``, ``too many failed seeds`` (to win, whatever its IQM) or nothing."""
        if one.name == self.winner:
            return "winner"
        if one.excess_failures > self.best().excess_failures:
            return "too many failed seeds"
        return "tie" if one.name in self.ties else ""

    def summary(self) -> dict[str, Any]:
        """Return it as ``summary.json`` has it."""
        content = {key: value for key, value in self.to_dict().items() if key != "configurations"}
        return content | {"configurations": self.table()}


def label(name: str, trial: int | None) -> str:
    """Return a configuration's name as a person reads it, see `Configuration.label`."""
    return f"trial {trial} = {BASELINE}" if name == BASELINE and trial is not None else name


def drop_duplicates(configurations: Sequence[Configuration]) -> list[Configuration]:
    """Keep one of each set of values: a finalist that has the baseline's is the baseline, and no rival of it.

    Args:
        configurations: The baseline first, then the finalists, best first.

    Returns:
        The same order; the baseline has the trial and the search's score of the finalist that it is.
    """
    found: dict[str, Configuration] = {}
    for one in configurations:
        values = json.dumps(dict(one.params), sort_keys=True)
        first = found.setdefault(values, one)
        if first.name == BASELINE and first.trial is None:
            found[values] = replace(
                first, trial=one.trial, search_score=one.search_score, whole_budget=one.whole_budget
            )
    return list(found.values())


def judge_configurations(
    configurations: Sequence[Configuration], seeds: Sequence[int], episodes: int
) -> Certification | None:
    """Judge configurations by their runs: IQM, intervals, winner, ties.

    Args:
        configurations: With their runs. A failed run counts as the lowest return of all: it is known to be bad, and not
            how bad, so that a configuration of which more runs failed than the IQM leaves out ranks below those with
            fewer.
        seeds: That every configuration was to be trained on.
        episodes: Of each run.

    Returns:
        Winner first: by excess failures, then by IQM, then by mean, then by what the search believed, so that the
        control is the winner only where it is better. None when no run succeeded.
    """
    lowest = min((one.worst for one in configurations if one.per_seed), default=None)
    if lowest is None:
        return None
    begun = [replace(one, failed_score=lowest if one.failed_seeds else None) for one in configurations if one.num_seeds]
    baseline = next((one for one in begun if one.name == BASELINE), None)
    judged = [_judge(one, baseline) for one in begun]
    believed = float("-inf")
    judged.sort(
        key=lambda one: (
            -one.excess_failures,
            one.iqm,
            one.mean,
            believed if one.name == BASELINE or one.search_score is None else one.search_score,
        ),
        reverse=True,
    )
    winner = judged[0]
    ties = tuple(
        one.name
        for one in judged[1:]
        if one.excess_failures == winner.excess_failures and one.high >= winner.low and one.low <= winner.high
    )
    return Certification(tuple(seeds), episodes, 0, tuple(judged), winner.name, ties)


def _judge(one: Configuration, baseline: Configuration | None) -> Configuration:
    score = float(interquartile_mean(one.scores))
    low, high = bootstrap_interval(one.scores)
    return replace(
        one,
        mean=sum(one.scores) / len(one.scores),
        iqm=score,
        low=low,
        high=high,
        improvement=(
            probability_of_improvement(one.scores, baseline.scores) if baseline and one.name != BASELINE else None
        ),
        optimism=one.search_score - score if one.search_score is not None and one.whole_budget else None,
    )
