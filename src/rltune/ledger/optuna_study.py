"""Derive Optuna's study from the ledger: samplers propose from it, and optuna-dashboard shows it.

It holds nothing that the ledger lacks but a sampler's own state. It is told of a trial when that begins and when it has
ended, by Optuna's public interface, and reconciled with the ledger when a driver opens it. Samplers propose from a
copy in memory: a proposal in the database takes a transaction a parameter, 13 ms for five. Runs in the driver.
"""

from __future__ import annotations

import functools
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.exceptions import OptunaError
from optuna.storages import BaseStorage, InMemoryStorage, RDBStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy import event
from sqlalchemy.exc import IntegrityError, ProgrammingError, SQLAlchemyError

from rltune.errors import StudyError
from rltune.ledger.journal import TIMEOUT_S, choose_journal
from rltune.ledger.ledger import make_storage_error
from rltune.ledger.tables import file_of, set_pragmas, wait_for_restarts
from rltune.records import Direction, ToldTrial, TrialRecord

Draw = Callable[[Callable[[str, BaseDistribution], Any]], dict[str, Any]]
View = Callable[[TrialRecord, float | None], ToldTrial]
TABLE_ATTEMPTS = 8
MAX_POINTS = 10  # of a trial's curve: each takes a transaction of 0.5 ms; the whole curve is in the ledger
DERIVED = "rltune.derived"  # an attribute of each study that was made from a ledger, and may be made again
RUNNING = ToldTrial("RUNNING")
MEMORY_ID = 0  # of the only study that a storage in memory has
logger = logging.getLogger(__name__)
optuna.logging.set_verbosity(optuna.logging.WARNING)
logging.getLogger("alembic").setLevel(logging.WARNING)


class OptunaStudy:
    """The study of one sweep.

    Args:
        url: An Optuna storage URL.
        name: The sweep.
        view: What the searcher is told of a trial that has ended, from its record and the worst value told so far.
        distributions: What is searched, by label: a trial that the study lacks is put in with them.
        shared: Whether other hosts see the file of a SQLite address.
        earlier: Trials of earlier sweeps, which the sampler sees before this sweep's. They are in none of its tables.
        direction: Which scores are better.

    Raises:
        StudyError: There is a study of this name that was not made from a ledger.
        Exception: The storage cannot be opened: whatever Optuna or its driver says.
    """

    def __init__(
        self,
        url: str,
        name: str,
        view: View,
        distributions: Mapping[str, BaseDistribution],
        shared: bool = False,
        earlier: Sequence[TrialRecord] = (),
        direction: Direction = Direction.MAX,
    ) -> None:
        self._url, self._name, self._view, self._distributions = url, name, view, distributions
        self._shared, self._earlier, self._direction = shared, earlier, direction
        self._open()

    def _open(self) -> None:
        self._storage = _open_storage(self._url, self._shared)
        self._study = optuna.create_study(
            study_name=self._name, storage=self._storage, direction=self._optuna_direction, load_if_exists=True
        )
        if DERIVED not in self._study.user_attrs:
            if self._study.get_trials(deepcopy=False):  # an older rltune's, or a person's own: it must not be deleted
                raise StudyError(
                    f"name={self._name}: study.storage has a study of this name that is not this sweep's",
                    "a name of its own for each sweep",
                    "choose another name=",
                )
            self._study.set_user_attr(DERIVED, True)
        self._study_id = self._storage.get_study_id_from_name(self._name)
        self._is_behind = False

    @property
    def _optuna_direction(self) -> StudyDirection:
        return StudyDirection.MAXIMIZE if self._direction is Direction.MAX else StudyDirection.MINIMIZE

    def reconcile(self, records: Sequence[TrialRecord]) -> None:
        """Make the study agree with the ledger, whatever a killed driver, a restored copy or a lost file has left.

        Also where trials are tried again that have ended: what samplers keep in the others stays.

        Args:
            records: All trials of the search.
        """
        self._memory = InMemoryStorage()
        self._proposing = optuna.create_study(storage=self._memory, direction=self._optuna_direction)
        self._largest: dict[str, float] = {}  # excess, by constraint
        known, kept, kept_by_trial = self._study.get_trials(deepcopy=False), {}, {}
        is_other = self._study.direction != self._optuna_direction or len(known) > len(records)
        if is_other or any(map(_contradicts, known, records)):
            logger.warning("the study %s is made again from the ledger", self._name)
            kept = self._storage.get_study_system_attrs(self._study_id)
            kept_by_trial = {one.number: one.system_attrs for one in known if _has_values(one, records)}
            optuna.delete_study(study_name=self._name, storage=self._storage)
            self.close()
            self._open()
            known = []
        self._worst: float | None = None
        shown = [self._make_trial(record, self._view_of(record)) for record in self._earlier]
        values = [value for trial in (*shown, *known) if (value := _finite_value(trial)) is not None]
        self._worst = self._direction.find_worst(values)
        # In the order in which they ended: what is told of one may depend on those before it.
        untold = [one for one in records if one.state != "RUNNING" and not _has_ended(known, one.number)]
        told = {one.number: self._view_of(one) for one in sorted(untold, key=lambda one: one.ended_s or 0.0)}
        for record in records:
            if record.number >= len(known):
                state = kept_by_trial.get(record.number)
                self._study.add_trial(self._make_trial(record, told.get(record.number, RUNNING), state))
            elif record.number in told:
                self._tell_stored(record, told[record.number])
        for key, value in kept.items():
            self._storage.set_study_system_attr(self._study_id, key, value)
        for trial in (*shown, *self._study.get_trials(deepcopy=False)):
            self._proposing.add_trial(trial)
        for key, value in self._storage.get_study_system_attrs(self._study_id).items():
            self._memory.set_study_system_attr(MEMORY_ID, key, value)

    def propose(self, given: Mapping[str, Any], sampler: optuna.samplers.BaseSampler, draw: Draw) -> dict[str, Any]:
        """Propose the next trial; nothing is written before `begin`.

        Args:
            given: Searched quantities by label to take as they are (a warm start); the sampler draws the others.
            sampler: Proposes it.
            draw: Draws the searched quantities one by one, as `Space.draw` does: which ones may depend on the others'
                values.

        Returns:
            The searched quantities by label.
        """
        self._proposing.sampler = sampler
        if given:
            self._proposing.enqueue_trial(dict(given))
        return draw(functools.partial(suggest, self._proposing.ask()))

    def begin(self, record: TrialRecord) -> None:
        """Show the trial that was proposed last as running, once the ledger has it."""
        self._store(lambda: self._begin_stored(record))

    def _begin_stored(self, record: TrialRecord) -> None:
        """Show a trial as running, with what samplers keep for the next one: CMA-ES in the trial, QMC in the study."""
        state = self._memory.get_trial(self._memory_id(record)).system_attrs
        self._study.add_trial(self._make_trial(record, RUNNING, state))
        if kept := self._memory.get_study_system_attrs(MEMORY_ID):
            stored = self._storage.get_study_system_attrs(self._study_id)
            for key in [key for key in kept if kept[key] != stored.get(key)]:
                self._storage.set_study_system_attr(self._study_id, key, kept[key])

    def tell(self, record: TrialRecord) -> None:
        """Tell of a trial that has ended, as the searcher is to see it."""
        told = self._view_of(record)
        self._tell_storage(self._memory, self._memory_id(record), told)
        self._store(lambda: self._tell_stored(record, told))

    def _memory_id(self, record: TrialRecord) -> int:
        """Return a trial's id in memory, where ids count all trials, the earlier sweeps' first."""
        return record.number + len(self._earlier)

    def _store(self, work: Callable[[], Any]) -> None:
        """Change what is stored; where that fails it stays behind until the sweep is opened the next time.

        Raises:
            Exception: It has failed for the first time: whatever Optuna or its driver says.
        """
        if not self._is_behind:
            self._is_behind = True
            work()
            self._is_behind = False

    def _tell_stored(self, record: TrialRecord, told: ToldTrial) -> None:
        trial_id = int(self._storage.get_trial_id_from_study_id_trial_number(self._study_id, record.number))
        for name, text in _describe_end(record).items():
            self._storage.set_trial_user_attr(trial_id, name, text)
        self._tell_storage(self._storage, trial_id, told)

    def _tell_storage(self, storage: BaseStorage, trial_id: int, told: ToldTrial) -> None:
        """Tell as `Study.tell` does, which reads the whole trial twice, and asks a grid's sampler to stop the study."""
        for env_steps, objective in told.reports.items():
            storage.set_trial_intermediate_value(trial_id, env_steps, objective)
        for key, excess in _spell_constraints(told).items():
            storage.set_trial_system_attr(trial_id, key, excess)
        value = _value_in_optuna(told)
        storage.set_trial_state_values(trial_id, TrialState[told.state], None if value is None else [value])

    def close(self) -> None:
        """Give connections back."""
        self._storage.remove_session()
        self._storage.engine.dispose()

    def _view_of(self, record: TrialRecord) -> ToldTrial:
        for check in record.checks:
            if math.isfinite(check.excess):
                self._largest[check.name] = max(self._largest.get(check.name, 1.0), check.excess)
        # No sampler takes an unknown excess, nor a trial that lacks one: what was never measured counts as the worst.
        excess = {
            check.name: self._largest.get(check.name, 1.0) if math.isnan(check.excess) else check.excess
            for check in record.checks
        }
        told = replace(self._view(record, self._worst), excess=excess)
        if told.value is not None and math.isfinite(told.value):
            told_values = (told.value,) if self._worst is None else (told.value, self._worst)
            self._worst = self._direction.find_worst(told_values)
        return replace(told, reports=_thin(told.reports))

    def _make_trial(
        self, record: TrialRecord, told: ToldTrial, sampler_state: Mapping[str, Any] | None = None
    ) -> FrozenTrial:
        """Make a trial as the study has it where it is told of it."""
        drawn = record.drawn or {}
        about = {"params": dict(record.params), "seeds": list(record.seeds)}
        return create_trial(
            state=TrialState[told.state],
            value=_value_in_optuna(told),
            params=dict(drawn),
            distributions={label: self._distributions[label] for label in drawn},
            user_attrs=about if told == RUNNING else about | _describe_end(record),
            system_attrs={**(sampler_state or {}), **_spell_constraints(told)},
            intermediate_values=dict(told.reports),
        )


def open_optuna_study(
    url: str,
    name: str,
    view: View,
    distributions: Mapping[str, BaseDistribution],
    records: Sequence[TrialRecord],
    own_file: Path | None = None,
    shared: bool = False,
    earlier: Sequence[TrialRecord] = (),
    direction: Direction = Direction.MAX,
) -> OptunaStudy:
    """Open a sweep's study so that it agrees with the ledger; a damaged file is made again.

    Args:
        url: An Optuna storage URL.
        name: The sweep.
        view: See `OptunaStudy`.
        distributions: See `OptunaStudy`.
        records: All trials of the search, as the ledger has them.
        own_file: The file at the address where it holds this study alone; None where it holds more, and is left alone.
        shared: Whether other hosts see the file.
        earlier: See `OptunaStudy`.
        direction: Which scores are better.

    Raises:
        StudyError: The database cannot be used.
    """
    try:
        study = OptunaStudy(url, name, view, distributions, shared, earlier, direction)
        study.reconcile(records)
    except Exception as error:  # Optuna raises whatever it likes about a damaged file, or one of another version
        if own_file is None or not own_file.exists():
            if isinstance(error, SQLAlchemyError | OptunaError | RuntimeError):  # the last one: of another version
                raise make_storage_error(url, error) from None
            raise
        logger.warning("%s cannot be used, and is made again from the ledger: %s", own_file, error)
        for part in own_file.parent.glob(f"{own_file.name}*"):  # with its write-ahead log
            part.unlink()
        study = OptunaStudy(url, name, view, distributions, shared, earlier, direction)
        study.reconcile(records)
    return study


def _contradicts(trial: FrozenTrial, record: TrialRecord) -> bool:
    """Whether Optuna's trial cannot become what the ledger has by being told of its end."""
    if trial.state in (TrialState.RUNNING, TrialState.WAITING):
        return trial.state == TrialState.WAITING or dict(trial.params) != dict(record.drawn or {})
    return record.state == "RUNNING" or dict(trial.params) != dict(record.drawn or {})


def _has_values(trial: FrozenTrial, records: Sequence[TrialRecord]) -> bool:
    """Whether the ledger's trial of this number has the same values."""
    return trial.number < len(records) and dict(trial.params) == dict(records[trial.number].drawn or {})


def _has_ended(trials: Sequence[FrozenTrial], number: int) -> bool:
    """Whether the study was told of a trial's end."""
    return number < len(trials) and trials[number].state.is_finished()


def _finite_value(trial: FrozenTrial) -> float | None:
    """Return the value that a finished trial has in Optuna."""
    if trial.values is None:
        return None
    (value,) = trial.values
    return float(value) if math.isfinite(value) else None


def _value_in_optuna(told: ToldTrial) -> float | None:
    """Return the value that Optuna keeps of a trial: of a stopped one the last point of its curve."""
    if told.state != "PRUNED" or not told.reports:
        return told.value
    last = told.reports[max(told.reports)]
    return None if math.isnan(last) else last


def _spell_constraints(told: ToldTrial) -> dict[str, Any]:
    """Return the attributes by which Optuna knows a trial's constraints; it sets them itself only while it runs one."""
    return dict(create_trial(state=TrialState.FAIL, constraints=dict(told.excess)).system_attrs)


def _describe_end(record: TrialRecord) -> dict[str, Any]:
    """Return what optuna-dashboard shows of the end of a trial that had less than its whole budget."""
    return {"stop_reason": record.stop_reason} if record.stop_reason and record.state != "COMPLETE" else {}


def _thin(reports: Mapping[int, float]) -> dict[int, float]:
    """Return at most MAX_POINTS of a curve, evenly spread, the last among them."""
    steps = sorted(reports)
    every = math.ceil(len(steps) / MAX_POINTS) or 1
    return {env_steps: reports[env_steps] for env_steps in steps[::-1][::every][::-1]}


def suggest(trial: optuna.Trial, name: str, distribution: BaseDistribution) -> Any:
    """Draw from a distribution, which Optuna's own calls take apart."""
    if isinstance(distribution, CategoricalDistribution):
        return trial.suggest_categorical(name, distribution.choices)
    if isinstance(distribution, IntDistribution):
        return trial.suggest_int(
            name, distribution.low, distribution.high, step=distribution.step, log=distribution.log
        )
    assert isinstance(distribution, FloatDistribution)
    low, high = distribution.low, distribution.high
    return trial.suggest_float(name, low, high, step=distribution.step, log=distribution.log)


def _open_storage(url: str, shared: bool) -> RDBStorage:
    file = file_of(url)
    # Another reader (a dashboard) may hold the file for a moment: wait rather than fail.
    options = {"connect_args": {"timeout": TIMEOUT_S}} if file else {"pool_pre_ping": True}
    for attempt in range(TABLE_ATTEMPTS):
        try:
            storage = RDBStorage(url, options)
            break
        except (IntegrityError, ProgrammingError):  # sweeps that start together make the tables of a new server twice
            if attempt == TABLE_ATTEMPTS - 1:
                raise
            time.sleep(0.2 * (attempt + 1))
    if file:
        storage.engine.dispose()  # connections from before the listener, which would keep the file as it is
        event.listen(storage.engine, "connect", set_pragmas)
        choose_journal(file, shared)
    else:
        wait_for_restarts(storage.engine, is_known=True)
    return storage
