"""Hold one trial as the ledger has it, and rank trials."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from optuna.trial import FrozenTrial, TrialState

LATE_RUN = "mlflow_run_id/"


@dataclass(frozen=True)
class TrialRecord:
    """Hold one trial, or one run of a certification, as the ledger has it.

    Attributes:
        number: Its number.
        state: RUNNING, COMPLETE, PRUNED or FAIL.
        params: Sampled values by name, decoded.
        reports: Objective by environment step, in order.
        attributes: All else that was noted of it. The properties below read it with its types.
        value: The best reported objective of a finished trial; None without.
        began_s: When it was proposed, in seconds of the epoch; None for one that waits.
        ended_s: When it ended; None before that.
    """

    number: int
    state: str
    params: Mapping[str, Any]
    reports: Mapping[int, float]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    value: float | None = None
    began_s: float | None = None
    ended_s: float | None = None

    @property
    def best(self) -> float | None:
        """The best finite report; None before the first."""
        finite = [value for value in self.reports.values() if math.isfinite(value)]
        return max(finite) if finite else None

    @property
    def env_steps(self) -> int:
        """Environment steps at its last report."""
        return int(self.attributes.get("env_steps", 0)) or max(self.reports, default=0)

    @property
    def seeds(self) -> tuple[int, ...]:
        """One seed for each replicate; empty where a driver was killed before it had noted them."""
        return tuple(self.attributes.get("seeds", ()))

    @property
    def checkpoint(self) -> dict[str, Any] | None:
        """The checkpoint of its best report, as `rltune.study.checkpoints` records it; None before the first."""
        return self.attributes.get("checkpoint")

    @property
    def latest(self) -> dict[str, Any] | None:
        """The checkpoint of its newest state; None before the first."""
        return self.attributes.get("latest")

    @property
    def stop_reason(self) -> str | None:
        """Why it ended or was interrupted; None before that."""
        return self.attributes.get("stop_reason")

    @property
    def train_s(self) -> float:
        """Seconds of training; 0 before they are noted."""
        return float(self.attributes.get("train_s", 0.0))

    @property
    def mlflow_run_id(self) -> str | None:
        """Its MLflow run; None while MLflow has not answered."""
        return self.attributes.get("mlflow_run_id")

    @property
    def name(self) -> str:
        """Its name in MLflow and for a person: a run of the certification has one of its own."""
        return str(self.attributes.get("name", f"trial {self.number}"))

    @property
    def key(self) -> str | None:
        """What makes two runs of a certification the same; None for a trial of the search."""
        return self.attributes.get("key")

    @property
    def configuration(self) -> str | None:
        """Which configuration a run of the certification retrains; None for a trial of the search."""
        return self.attributes.get("configuration")

    @property
    def seed_index(self) -> int:
        """Which of the certification's seeds a run has, from 0."""
        return int(self.attributes.get("place", 0))

    @property
    def returns(self) -> tuple[float, ...]:
        """The returns of the episodes that a run of the certification played at its end."""
        return tuple(self.attributes.get("returns", ()))

    @property
    def score(self) -> float | None:
        """The mean of `returns`; None before they were played."""
        return self.attributes.get("score")


def make_trial_record(trial: FrozenTrial, late: Mapping[str, Any]) -> TrialRecord:
    """Make the record of one of Optuna's trials; ``late`` holds MLflow runs that became known after its end."""
    attributes = dict(trial.user_attrs)
    if f"{LATE_RUN}{trial.number}" in late:
        attributes["mlflow_run_id"] = late[f"{LATE_RUN}{trial.number}"]
    return TrialRecord(
        number=trial.number,
        state="RUNNING" if trial.state == TrialState.WAITING else trial.state.name,
        params=trial.user_attrs.get("params", {}),
        reports=dict(sorted(trial.intermediate_values.items())),
        attributes=attributes,
        value=trial.value if trial.state == TrialState.COMPLETE else None,
        began_s=trial.datetime_start.timestamp() if trial.datetime_start else None,
        ended_s=trial.datetime_complete.timestamp() if trial.datetime_complete else None,
    )


def rank_records(records: Iterable[TrialRecord]) -> list[TrialRecord]:
    """Sort the trials that can win, best first.

    A trial with its whole budget comes before one that was stopped: its policy is the one that the sweep was to find.
    The higher objective comes first among them, and the lower number among equals.

    Returns:
        The trials with a finite report that did not fail.
    """
    able = [record for record in records if record.state != "FAIL" and record.best is not None]
    return sorted(able, key=lambda record: (record.state != "COMPLETE", -(record.best or 0.0), record.number))


def order_records(records: Iterable[TrialRecord]) -> list[TrialRecord]:
    """Sort all trials for a person: those that can win as `rank_records` has them, then the others by number."""
    able = rank_records(records := list(records))
    numbers = {record.number for record in able}
    return able + sorted((one for one in records if one.number not in numbers), key=lambda one: one.number)
