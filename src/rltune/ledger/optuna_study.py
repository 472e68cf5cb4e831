"""Keep a sweep's Optuna study in memory, rebuilt from the ledger, so that samplers can propose trials. Driver only.

The study is rebuilt from the ledger when a driver opens the sweep. What a sampler remembers in the attributes of trials
and study, as CMA-ES and NSGA-II do, is stored in the ledger together with the trial that was proposed. A proposal in a
database would take a transaction for each parameter.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import InMemoryStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from rltune.ledger.trial_table import TrialTable
from rltune.records import Direction, SamplerView, TrialForSampler, TrialRecord

ReadDrawn = Callable[[TrialRecord], Mapping[str, tuple[Any, BaseDistribution]] | None]
Draw = Callable[[Callable[[str, BaseDistribution], Any]], dict[str, Any]]
# Optuna gets at most this many points of a trial's learning curve, because more would make proposals slow.
MAX_POINTS = 10
STUDY_ID = 0  # Optuna's InMemoryStorage gives its only study this id.
optuna.logging.set_verbosity(optuna.logging.WARNING)


@dataclass(frozen=True)
class Proposal:
    """What a sampler proposes for the next trial: the drawn values and the sampler's own state.

    Attributes:
        drawn: The searched quantities by label.
        trial_state: What the sampler remembers in the trial, which the ledger stores with it.
        study_state: What the sampler remembers in the study; None if this has not changed.
    """

    drawn: dict[str, Any]
    trial_state: Mapping[str, Any]
    study_state: Mapping[str, Any] | None


class OptunaStudy:
    """The Optuna study of one sweep.

    Args:
        trials: The trials of the search in the ledger.
        view: Returns what the sampler sees of a trial that has ended.
        read_drawn: Returns what was drawn for a trial, with its distribution, by label; None for a trial whose values
            are no longer searched, which the sampler does not see.
        earlier: Trials of earlier sweeps, which the sampler sees before this sweep's.
    """

    def __init__(
        self,
        trials: TrialTable,
        view: SamplerView,
        read_drawn: ReadDrawn,
        earlier: Sequence[TrialRecord] = (),
    ) -> None:
        self._trials, self._view, self._read_drawn, self._earlier = trials, view, read_drawn, earlier
        self._build()

    def reopen(self, record: TrialRecord) -> None:
        """Forget the end of a trial that goes on; this has no effect if the study does not know of one."""
        if self._storage.get_trial(record.number + len(self._earlier)).state.is_finished():
            self._build()

    def _build(self) -> None:
        """Build the study from the ledger."""
        self._storage = InMemoryStorage()
        self._direction = self._trials.criteria.direction
        self._study = optuna.create_study(storage=self._storage, direction=get_optuna_direction(self._direction))
        self._worst: float | None = None
        # For each constraint by name, the largest amount by which a trial has broken it so far.
        self._largest: dict[str, float] = {}
        for record in self._earlier:
            self._study.add_trial(self._make_trial(record, self._view_trial(record)))
        records = self._trials.records()
        trial_states, self._study_state = self._trials.read_sampler_states()
        # A failed trial is shown to the sampler with the worst value of the trials that ended before it, so the order
        # counts.
        seen = [record for record in records if self._read_drawn(record) is not None]
        ended = sorted((record for record in seen if record.state != "RUNNING"), key=lambda end: end.ended_s or 0.0)
        views = {record.number: self._view_trial(record) for record in ended}
        for record in records:
            trial = self._make_trial(record, views.get(record.number), trial_states.get(record.number))
            self._study.add_trial(trial)
        for key, value in self._study_state.items():
            self._storage.set_study_system_attr(STUDY_ID, key, value)

    def propose(self, given: Mapping[str, Any], sampler: optuna.samplers.BaseSampler, draw: Draw) -> Proposal:
        """Let the sampler propose the next trial, and add it to the study as running.

        Args:
            given: Searched quantities by label to take as they are (a warm start); the sampler draws the others.
            sampler: Proposes the trial.
            draw: Draws the searched quantities one by one, as `Space.draw` does: which quantities are drawn may depend
                on the values of others.
        """
        self._study.sampler = sampler
        if given:
            self._study.enqueue_trial(dict(given))
        trial = self._study.ask()
        drawn = draw(functools.partial(suggest, trial))
        state = dict(self._storage.get_study_system_attrs(STUDY_ID))
        is_changed, self._study_state = state != self._study_state, state
        trial_state = self._storage.get_trial(trial.number).system_attrs
        return Proposal(drawn, trial_state, state if is_changed else None)

    def tell(self, record: TrialRecord) -> None:
        """Report a trial that has ended to the study."""
        if self._read_drawn(record) is None:
            return
        trial = self._view_trial(record)
        trial_id = record.number + len(self._earlier)
        # `Study.tell` is not used, because it lets GridSampler stop the study.
        for env_steps, objective in trial.reports.items():
            self._storage.set_trial_intermediate_value(trial_id, env_steps, objective)
        for key, excess in _make_constraints(trial).items():
            self._storage.set_trial_system_attr(trial_id, key, excess)
        value = _get_optuna_value(trial)
        self._storage.set_trial_state_values(trial_id, TrialState[trial.state], None if value is None else [value])

    def _view_trial(self, record: TrialRecord) -> TrialForSampler:
        for check in record.checks:
            if math.isfinite(check.excess):
                self._largest[check.name] = max(self._largest.get(check.name, 1.0), check.excess)
        # Samplers accept neither NaN nor a missing value. So if a trial never measured a constraint, the sampler sees
        # it broken by the largest amount of any trial so far.
        excess = {
            check.name: self._largest.get(check.name, 1.0) if math.isnan(check.excess) else check.excess
            for check in record.checks
        }
        trial = replace(self._view(record, self._worst), excess=excess)
        if trial.value is not None and math.isfinite(trial.value):
            values = (trial.value,) if self._worst is None else (trial.value, self._worst)
            self._worst = self._direction.find_worst(values)
        return replace(trial, reports=thin_curve(trial.reports))

    def _make_trial(
        self, record: TrialRecord, view: TrialForSampler | None, trial_state: Mapping[str, Any] | None = None
    ) -> FrozenTrial:
        """Make Optuna's FrozenTrial from a ledger record; `view` is None while the trial runs."""
        drawn = self._read_drawn(record)
        if drawn is None:  # It keeps its place, because trials have the same order in study and ledger.
            return create_trial(state=TrialState.FAIL)
        view = view or TrialForSampler("RUNNING")
        return create_trial(
            state=TrialState[view.state],
            value=_get_optuna_value(view),
            params={label: raw for label, (raw, _) in drawn.items()},
            distributions={label: distribution for label, (_, distribution) in drawn.items()},
            system_attrs={**(trial_state or {}), **_make_constraints(view)},
            intermediate_values=dict(view.reports),
        )


def get_optuna_direction(direction: Direction) -> StudyDirection:
    """Convert a direction into Optuna's enum."""
    return StudyDirection.MAXIMIZE if direction is Direction.MAX else StudyDirection.MINIMIZE


def _get_optuna_value(trial: TrialForSampler) -> float | None:
    """Return the value of a trial in the study; a pruned trial's value is the last point of its learning curve."""
    if trial.state != "PRUNED" or not trial.reports:
        return trial.value
    last = trial.reports[max(trial.reports)]
    return None if math.isnan(last) else last


def _make_constraints(trial: TrialForSampler) -> dict[str, Any]:
    """Return the system attributes in which Optuna stores a trial's constraints."""
    return dict(create_trial(state=TrialState.FAIL, constraints=dict(trial.excess)).system_attrs)


def thin_curve(curve: Mapping[int, float]) -> dict[int, float]:
    """Return at most MAX_POINTS evenly spaced points of a learning curve, always including its last one."""
    steps = sorted(curve)
    every = math.ceil(len(steps) / MAX_POINTS) or 1
    return {step: curve[step] for step in steps[::-1][::every][::-1]}


def suggest(trial: optuna.Trial, name: str, distribution: BaseDistribution) -> Any:
    """Draw a value by the method of `optuna.Trial` for this kind of distribution."""
    if isinstance(distribution, CategoricalDistribution):
        return trial.suggest_categorical(name, distribution.choices)
    if isinstance(distribution, IntDistribution):
        return trial.suggest_int(
            name, distribution.low, distribution.high, step=distribution.step, log=distribution.log
        )
    assert isinstance(distribution, FloatDistribution)
    low, high = distribution.low, distribution.high
    return trial.suggest_float(name, low, high, step=distribution.step, log=distribution.log)
