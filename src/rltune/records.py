"""Dataclasses that the packages exchange: reports, checkpoints, trials, sweeps, runs in MLflow.

Typed, and without behaviour beyond reading themselves. Imports nothing of rltune.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

TRIALS, CERTIFY = "trials", "certify"
"""Kinds of trials, and the folders of both in a sweep's: the search's, and the certification's runs."""

STOP, ENQUEUE, RETRY, SPACE = "stop", "enqueue", "retry", "space"
"""Kinds of requests to a sweep's driver."""

WHOLE_BUDGET = "whole budget"
"""Why a COMPLETE trial has ended."""

TARGET_HELD, PLATEAU = "budget.target held at two reports", "no better score in budget.plateau reports"
"""Why a COMPLETE trial has ended before its budget was spent, see `rltune.config.early_end`."""

OUT_OF_MEMORY = "out of memory on its GPU"
"""Prefix of the failure reason of a trial that needs more of a GPU's memory than it can get."""

SCORED_SHARE = 1 / 20
"""The last part of a trial's budget: a report's score is the mean of the episodes that ended in so many steps."""

EVALUATION_STEPS = 10_000
"""The default of ``env.evaluation_steps``: the steps after which an evaluated episode is cut."""

SCORED_EPISODES = 5
"""The number of episodes that a score is the mean of at least, as soon as so many have ended."""


class Direction(StrEnum):
    """Whether higher or lower scores are better. Scores are never negated."""

    MAX = "max"
    MIN = "min"

    @property
    def sign(self) -> int:
        """1 if higher scores are better, -1 if lower ones are; multiplied by it, higher scores are always better."""
        return 1 if self is Direction.MAX else -1

    def is_better(self, score: float, other: float) -> bool:
        """Return whether a score is strictly better than another one."""
        return score > other if self is Direction.MAX else score < other

    def find_worst(self, scores: Iterable[float]) -> float | None:
        """Return the worst of several scores; None if there are none."""
        return min(scores, default=None) if self is Direction.MAX else max(scores, default=None)


BASELINE = "baseline"
"""The configuration that the winner must beat, as a person and MLflow read it."""

WARM_START, TUNED, PORTFOLIO, SEARCHER, ENQUEUED = "warm_start", "tuned", "portfolio", "searcher", "enqueued"
"""Origins of a trial's values. `BASELINE` is one, too: the algorithm file's own, where no tuned ones are known."""


def trial_dir_of(kind: str, number: int) -> str:
    """Return the folder of a trial or certification run relative to the sweep's: ``trials/7``, ``certify/3``."""
    return f"{kind}/{number}"


@dataclass(frozen=True)
class CheckpointRecord:
    """A checkpoint as recorded in the ledger; files with another digest are not this checkpoint.

    Attributes:
        path: Relative to the sweep's folder.
        env_steps: When it was taken.
        objective: The report's score then; None before the first episode ended, or between two reports.
        digest: sha256 over its files.
        sequence: The position among the trial's checkpoints in the order in which the ledger recorded them; 0 before.
            No clock says which one is newer: those of two nodes differ.
        replay: Whether the trial's replay memory was written with it.
    """

    path: str
    env_steps: int
    objective: float | None
    digest: str
    sequence: int = 0
    replay: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the record as a dictionary, as workers send it to the driver."""
        return asdict(self)


@dataclass(frozen=True)
class Report:
    """One report of a trial, that is one point of its learning curve.

    Every trial reports at the same marks of its budget, so that like is compared with like. It trains by whole
    iterations, so that it has sampled somewhat more by then.

    Attributes:
        number: The trial's number.
        nominal_steps: The mark, in environment steps of each seed: where reports are compared, and drawn.
        score: What trials are compared by: the mean of the objective over the episodes that ended in the last twentieth
            of the budget, and at least over the last five; NaN before the first episode has ended.
        numbers: All logged numbers by name, the score among them; see `rltune.trial.metrics`.
        time_s: When it came, in seconds of the epoch.
        overshoot_steps: What each seed had sampled beyond the mark.
    """

    number: int
    nominal_steps: int
    score: float
    numbers: Mapping[str, float] = field(default_factory=dict)
    time_s: float = 0.0
    overshoot_steps: int = 0

    @property
    def env_steps(self) -> int:
        """The environment steps that each seed had really sampled at this report, at least `nominal_steps`."""
        return self.nominal_steps + self.overshoot_steps


@dataclass(frozen=True)
class Check:
    """The result of one constraint for one trial.

    Attributes:
        name: Of what is measured.
        bound: ``< 60``.
        value: What was measured; NaN where nothing was.
        excess: By how much it breaks the bound; zero or less keeps it. NaN where nothing was measured, which breaks it.
    """

    name: str
    bound: str
    value: float
    excess: float

    @property
    def is_broken(self) -> bool:
        """Whether the trial breaks the constraint, and therefore cannot win."""
        return not self.excess <= 0

    def __str__(self) -> str:
        """The broken constraint in words: ``train_s=75.2, not < 60``."""
        value = "unknown" if math.isnan(self.value) else f"{self.value:.6g}"
        return f"{self.name}={value}, not {self.bound}"


@dataclass(frozen=True)
class RunKey:
    """Identifies the MLflow run of a trial, of the baseline, or of one certification seed of either.

    Attributes:
        trial: The trial's number; None for the baseline that the search did not try.
        seed_index: Which of the certification's seeds, from 0; None for the trial or the baseline itself.
    """

    trial: int | None
    seed_index: int | None = None

    @property
    def name(self) -> str:
        """The run's name in MLflow: ``trial-007``, ``baseline`` or ``trial-007-seed-1``, with seeds from 1."""
        owner = BASELINE if self.trial is None else f"trial-{self.trial:03d}"
        return owner if self.seed_index is None else f"{owner}-seed-{self.seed_index + 1}"

    @property
    def parent(self) -> RunKey | None:
        """The parent run in MLflow, which is the configuration's for a certification seed; None is the sweep's run."""
        return None if self.seed_index is None else RunKey(self.trial)


@dataclass(frozen=True)
class TrialRecord:
    """One trial of the search, or one certification run, as recorded in the ledger.

    Attributes:
        number: Its number among those of its kind.
        state: RUNNING (also: interrupted, to be continued), COMPLETE, PRUNED (stopped by the rule, or diverged), FAIL.
        params: Sampled values by name, decoded.
        reports: Objective by nominal steps, in order. Whole reports are read by `TrialTable.read_reports`.
        kind: TRIALS or CERTIFY.
        drawn: The searched quantities by their labels in Optuna's study; None for a run of a certification.
        origin: Where its values come from: `PORTFOLIO`, `SEARCHER`, ...; None for a run of a certification.
        seeds: One for each replicate.
        env_steps: Environment steps that each seed has sampled.
        train_s: Seconds of training, all seeds together.
        node: The host of its worker; None before its first report.
        stop_reason: Why it ended or was interrupted; None while it runs.
        diverged: Whether it was stopped because its loss or return was no number.
        traceback: Of its failure.
        log: The file that describes its failure, relative to the sweep's folder.
        checkpoint: That of its best report; None before the first.
        latest: That of its newest state; None before the first.
        mlflow_run_id: Its MLflow run; None while MLflow has not answered.
        began_s: When it was proposed, in seconds of the epoch.
        ended_s: When it ended; None before that.
        key: What makes two runs of a certification the same; None for a trial of the search.
        of_trial: The trial that a run of a certification retrains; None for the baseline, and for a trial.
        seed_index: Which of the certification's seeds a run has, from 0; None for a trial.
        returns: The returns of the episodes that a run of the certification played at its end, in the environment in
            which results are reported.
        choice_returns: Those of the episodes in ``score.env``, by which runs are chosen; empty if ``returns`` are.
        metrics: The user's own metrics of the reported episodes, by their names in reports; None in one whose infos
            lack it.
        cause: Who failed, as whoever saw the failure says, such as ``environment`` (`rltune.errors.Cause`); None if it
            has not failed.
        parent: The trial and the checkpoint from which it was forked; None, as no version forks trials yet.
        schedule: Values that change during training, by parameter and environment steps; None, as for ``parent``.
        numbers: All logged numbers of its newest report.
        checks: One for each of the sweep's constraints, see `rltune.config.criteria`.
        second: Its value in the sweep's second objective; None without one, or before it is measured.
        enqueued_by: Who has enqueued its values by hand, ``maria@host``; None for one that the search proposed.
    """

    number: int
    state: str
    params: Mapping[str, Any]
    reports: Mapping[int, float] = field(default_factory=dict)
    kind: str = TRIALS
    drawn: Mapping[str, Any] | None = None
    origin: str | None = None
    seeds: tuple[int, ...] = ()
    env_steps: int = 0
    train_s: float = 0.0
    node: str | None = None
    stop_reason: str | None = None
    diverged: bool = False
    traceback: str | None = None
    log: str | None = None
    checkpoint: CheckpointRecord | None = None
    latest: CheckpointRecord | None = None
    mlflow_run_id: str | None = None
    began_s: float | None = None
    ended_s: float | None = None
    key: str | None = None
    of_trial: int | None = None
    seed_index: int | None = None
    returns: tuple[float, ...] = ()
    choice_returns: tuple[float, ...] = ()
    metrics: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    cause: str | None = None
    parent: Mapping[str, Any] | None = None
    schedule: Mapping[str, Any] | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)
    checks: tuple[Check, ...] = ()
    second: float | None = None
    enqueued_by: str | None = None

    @property
    def is_infeasible(self) -> bool:
        """Whether its parameter values can never win, because training diverged or no GPU has enough memory."""
        return self.diverged or (self.state == "FAIL" and (self.stop_reason or "").startswith(OUT_OF_MEMORY))

    @property
    def target_steps(self) -> int | None:
        """The environment steps at which its score had held ``budget.target``; None if it did not."""
        return max(self.reports) if self.state == "COMPLETE" and self.stop_reason == TARGET_HELD else None

    def can_be_retried(self, env_steps: int) -> bool:
        """Return whether the trial failed before its budget was used up; otherwise a retry would train nothing."""
        return self.state == "FAIL" and max(self.reports, default=0) < env_steps

    @property
    def broken(self) -> tuple[Check, ...]:
        """The constraints that the trial breaks, so it cannot win; none before its first report, or if it failed."""
        is_judged = self.reports and self.state != "FAIL"
        return tuple(check for check in self.checks if check.is_broken) if is_judged else ()

    @property
    def breaks(self) -> str:
        """The broken constraints in words; empty if there are none."""
        return "; ".join(map(str, self.broken))

    @property
    def scores(self) -> dict[int, float]:
        """The trial's finite scores, by nominal environment steps."""
        return {mark: score for mark, score in self.reports.items() if math.isfinite(score)}

    @property
    def score(self) -> float | None:
        """The score by which it is ranked: of the last report, or for a certification run the mean of its returns.

        None before the first finite report, or before the episodes were played.
        """
        if self.kind == TRIALS:
            return next(reversed(self.scores.values()), None)
        return sum(self.returns) / len(self.returns) if self.returns else None

    @property
    def run_key(self) -> RunKey:
        """The key of its run in MLflow."""
        return RunKey(self.number) if self.kind == TRIALS else RunKey(self.of_trial, self.seed_index)

    @property
    def name(self) -> str:
        """The name that users see: ``trial 7``, or for a certification run the name of its MLflow run."""
        return f"trial {self.number}" if self.kind == TRIALS else self.run_key.name


@dataclass(frozen=True)
class SweepRecord:
    """A sweep as recorded in the ledger: status, settings, versions, results.

    Attributes:
        name: Its name.
        status: running, or how it ended: complete, stopped, interrupted, failed.
        folder: Where it was last worked on.
        key: What marks its runs in MLflow, so that they are found when their ids were lost.
        config: Its settings as YAML.
        versions: Packages' versions by name.
        git_commit: The commit of the folder in which it began; None outside of git.
        command: What was typed.
        began: When it began, ISO 8601 in UTC.
        wall_s: Seconds that its drivers took, together.
        winner: As ``summary.json`` has it; None without one.
        model: The registered model's version, as ``summary.json`` has it; None where nothing was registered.
        certification: `rltune.certification.result.Certification` as plain values; None without.
        mlflow_run_id: Its run in MLflow; None while MLflow has not answered.
        mlflow: Where its runs are: ``uri``, the tracking store's address without a login, and ``experiment``, the id of
            the MLflow experiment; None while MLflow has not answered.
    """

    name: str
    status: str | None = None
    folder: str | None = None
    key: str = ""
    config: str | None = None
    versions: Mapping[str, str] | None = None
    git_commit: str | None = None
    command: str | None = None
    began: str | None = None
    wall_s: float = 0.0
    winner: Mapping[str, Any] | None = None
    model: Mapping[str, Any] | None = None
    certification: Mapping[str, Any] | None = None
    mlflow_run_id: str | None = None
    mlflow: Mapping[str, str] | None = None

    @property
    def current_winner(self) -> Mapping[str, Any] | None:
        """The winner; None without one, or if a driver has taken the sweep up again and not ended it since.

        The trials of such a sweep go on, so that another one may be better by now, and the checkpoint of the last end's
        winner may be deleted. A certified winner stays, because its runs have ended for good.
        """
        is_final = self.status != "running" or (self.winner is not None and is_certified(self.winner))
        return self.winner if is_final else None


def is_certified(winner: Mapping[str, Any]) -> bool:
    """Return whether the policy of a sweep's winner is one of the certification's runs, and not a trial's."""
    return str(winner.get("checkpoint")).startswith(f"{CERTIFY}/")


@dataclass(frozen=True)
class SweepRequest:
    """A user's request to a sweep's driver, which is sent through the ledger.

    Attributes:
        id: Its row in the ledger.
        kind: STOP, ENQUEUE, RETRY or SPACE, a resume with other ranges, which the driver records itself.
        payload: What is asked in detail: of ENQUEUE the values by name; of RETRY the numbers, by TRIALS and CERTIFY;
            of SPACE the ranges by name.
        requested_s: When, in seconds of the epoch.
        requested_by: Who, ``maria@host`` or ``trial 7``.
        taken_s: When a driver has seen to it; None before.
        trial: The number that an enqueued configuration got; None before.
    """

    id: int
    kind: str
    payload: Mapping[str, Any]
    requested_s: float
    requested_by: str
    taken_s: float | None = None
    trial: int | None = None


@dataclass(frozen=True)
class TrialForSampler:
    """An ended trial in the form that a sampler reads.

    Attributes:
        state: COMPLETE, PRUNED or FAIL, in Optuna's sense.
        value: The value of a COMPLETE trial; None otherwise.
        reports: The scores by nominal steps. Of a PRUNED trial Optuna takes the last one as its value.
        excess: By how much the trial breaks each constraint, by the constraint's name; zero or less keeps it.
    """

    state: str
    value: float | None = None
    reports: Mapping[int, float] = field(default_factory=dict)
    excess: Mapping[str, float] = field(default_factory=dict)


SamplerView = Callable[[TrialRecord, float | None], TrialForSampler]
"""Turns a trial that has ended, and the worst value told so far, into what the sampler sees of the trial."""
