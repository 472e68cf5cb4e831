"""Keep the ledger: one Optuna study holds every trial's values, reports, checkpoints, state, seeds and MLflow run.

The one truth of a sweep; Tune and MLflow can be rebuilt from it. States: RUNNING (also: interrupted, to be continued),
COMPLETE (whole budget), PRUNED (stopped by the scheduler), FAIL (with its reason). Runs in the driver.
"""

from __future__ import annotations

import functools
import logging
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast
from urllib.parse import unquote

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import RDBStorage
from optuna.trial import TrialState
from sqlalchemy import event
from sqlalchemy.exc import IntegrityError, ProgrammingError

from rltune.compat.optuna_rows import choose_write
from rltune.config.uris import redact, redact_address
from rltune.errors import StudyError
from rltune.study.record import LATE_RUN, TrialRecord, make_trial_record

Draw = Callable[[Callable[[str, BaseDistribution], Any]], dict[str, Any]]
TABLE_ATTEMPTS = 8
optuna.logging.set_verbosity(optuna.logging.WARNING)
logging.getLogger("alembic").setLevel(logging.WARNING)


class MissingStudyError(StudyError):
    """There is a storage, but no such study in it."""


class Study:
    """An Optuna study with the few operations that a sweep needs.

    Args:
        storage: An Optuna storage URL.
        name: The study's name, the sweep's.
        create: True for a new study, False for one that must be there.
        fresh: Whether the storage was just made.

    Raises:
        StudyError: It exists already, is missing, or cannot be read.
    """

    def __init__(self, storage: str, name: str, *, create: bool = False, fresh: bool = False) -> None:
        try:
            self._storage = _open_storage(storage, fresh)
            make = optuna.create_study if create else optuna.load_study
            options: dict[str, Any] = {"direction": "maximize"} if create else {}
            self._study = make(study_name=name, storage=self._storage, **options)
        except optuna.exceptions.DuplicatedStudyError:
            raise StudyError(
                f"name={name}: a study of this name exists", "a new name", "choose another name="
            ) from None
        except KeyError:
            raise MissingStudyError(
                f"the study '{name}' is not in its storage", "a study of this sweep", "python -m sweeps.list"
            ) from None
        except Exception as error:
            raise StudyError(
                f"study.storage={_redact_url(storage)} cannot be opened: {_redact_message(error, storage)}",
                "a readable Optuna storage",
                "see study.storage in conf/run.yaml",
            ) from None
        self._study_id = self._storage.get_study_id_from_name(name)
        self._write_to = choose_write(self._storage)
        self._ids: dict[int, int] = {}
        # What this driver wrote of the trials that are not finished: reading a trial costs four queries. Only one
        # driver writes, so that the ledger holds the same; it is written first.
        self._open: dict[int, TrialRecord] = {}
        self._num_trials: int | None = None

    # -- writing -------------------------------------------------------------------------------------

    @property
    def num_trials(self) -> int:
        """How many trials were proposed so far."""
        if self._num_trials is None:  # Optuna reads all trials to count them (5.0)
            self._num_trials = int(self._storage.get_n_trials(self._study_id))
        return self._num_trials

    def ask(
        self,
        draw: Draw,
        fixed: Mapping[str, Any],
        sampler: optuna.samplers.BaseSampler | None = None,
    ) -> tuple[int, dict[str, Any]]:
        """Begin a new trial.

        Args:
            draw: Draws the searched quantities one by one, as `Space.draw` does: which ones may
                depend on the others' values.
            fixed: Searched quantities to take as they are (a warm start); the sampler draws the others.
            sampler: Proposes it; None is Optuna's own.

        Returns:
            The trial's number, and its searched quantities by label.
        """
        self._study.sampler = sampler or self._study.sampler
        if fixed:
            self._study.enqueue_trial(dict(fixed))
        trial = self._study.ask()
        self._num_trials = max(self.num_trials, trial.number + 1)
        return trial.number, draw(functools.partial(_suggest, trial))

    def complete(self, number: int, sampler: optuna.samplers.BaseSampler, draw: Draw) -> dict[str, Any]:
        """Draw what a driver that was killed while it asked has left undrawn; what was drawn stays.

        Returns:
            The trial's searched quantities by label.
        """
        if self._storage.get_trial(self._id(number)).state == TrialState.WAITING:
            return self.ask(draw, {}, sampler)[1]  # Optuna hands out what waits before anything new
        self._study.sampler = sampler
        return draw(functools.partial(_suggest, optuna.trial.Trial(self._study, self._id(number))))

    def report(self, number: int, env_steps: int, objective: float, **attributes: Any) -> None:
        """Keep one report, and the attributes that come with it; NaN means that no episode has ended yet."""
        self._write(number, {env_steps: objective}, attributes)

    def note(self, number: int, **attributes: Any) -> None:
        """Set attributes of a trial."""
        self._write(number, {}, attributes)

    def _write(self, number: int, reports: Mapping[int, float], attributes: Mapping[str, Any]) -> None:
        self._write_to(self._storage, self._id(number), reports, attributes)
        if number in self._open:
            cast(dict[int, float], self._open[number].reports).update(reports)
            cast(dict[str, Any], self._open[number].attributes).update(attributes)

    def note_run(self, number: int, run_id: str) -> None:
        """Keep a trial's MLflow run, whose id a slow server may send only after the trial has ended."""
        try:
            self.note(number, mlflow_run_id=run_id)
        except optuna.exceptions.UpdateFinishedTrialError:  # Optuna closes a trial's own attributes then
            self.set_attribute(f"{LATE_RUN}{number}", run_id)

    def finish(self, number: int, state: str, value: float | None, reason: str, **attributes: Any) -> None:
        """End a trial.

        Args:
            number: Which.
            state: COMPLETE, PRUNED or FAIL.
            value: Its best objective; COMPLETE needs one.
            reason: Why it ended.
            attributes: Set before.
        """
        self.note(number, stop_reason=reason, **attributes)
        if state == "COMPLETE":
            self._study.tell(number, value, state=TrialState.COMPLETE)
        else:
            # PRUNED keeps its last report as value: Optuna ranks pruned trials by step, then by that value.
            self._study.tell(number, state=TrialState[state])
        self._open.pop(number, None)

    def _id(self, number: int) -> int:
        if number not in self._ids:
            self._ids[number] = self._storage.get_trial_id_from_study_id_trial_number(self._study_id, number)
        return self._ids[number]

    # -- reading --------------------------------------------------------------------------------------------------

    def trials(self) -> list[TrialRecord]:
        """Return all trials in order."""
        late = self._study.user_attrs
        return [make_trial_record(trial, late) for trial in self._study.get_trials(deepcopy=False)]

    def trial(self, number: int) -> TrialRecord:
        """Return one trial."""
        if number not in self._open:
            record = make_trial_record(self._storage.get_trial(self._id(number)), {})
            if record.state != "RUNNING":
                return record
            self._open[number] = record
        known = self._open[number]
        params = known.attributes.get("params", {})
        reports = dict(sorted(known.reports.items()))
        return replace(known, params=params, reports=reports, attributes=dict(known.attributes))

    def attribute(self, key: str, default: Any = None) -> Any:
        """Return a study attribute."""
        return self._study.user_attrs.get(key, default)

    def set_attribute(self, key: str, value: Any) -> None:
        """Set a study attribute: config, versions, status, winner, champion, mlflow_run_id."""
        self._study.set_user_attr(key, value)

    def close(self) -> None:
        """Give connections back, so that the file can be moved or read elsewhere."""
        self._storage.remove_session()
        self._storage.engine.dispose()


def _suggest(trial: optuna.Trial, name: str, distribution: BaseDistribution) -> Any:
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


def _open_storage(url: str, fresh: bool) -> RDBStorage:
    sqlite = url.startswith("sqlite:")
    # Another reader (a dashboard) may hold the file for a moment: wait rather than fail.
    options = {"connect_args": {"timeout": 60}} if sqlite else {"pool_pre_ping": True}
    for attempt in range(TABLE_ATTEMPTS):
        try:
            storage = RDBStorage(url, options, skip_compatibility_check=fresh, skip_table_creation=fresh)
            break
        except (IntegrityError, ProgrammingError):  # sweeps that start together make the tables of a new server twice
            if attempt == TABLE_ATTEMPTS - 1:
                raise
            time.sleep(0.2 * (attempt + 1))
    if sqlite:
        event.listen(storage.engine, "connect", _set_pragmas)
        storage.engine.dispose()  # connections from before the listener
    return storage


def _set_pragmas(connection: Any, _: Any) -> None:
    """Write-ahead log: readers do not block the sweep, a kill loses nothing, and a commit costs no full sync."""
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.close()


def _redact_message(error: Exception, storage: str) -> str:
    """Return an error's first line without the login.

    A driver may have taken a password with an @ in it apart and name the pieces.
    """
    login = storage.partition("://")[2].rpartition("@")[0]
    words = re.split(r"[@:/?#\s'\"\\]", f"{login} {unquote(login)}")
    pieces = sorted({word for word in words if len(word) > 3}, key=len, reverse=True)
    return redact(str(error).splitlines()[0], [login, *pieces] if login else [])


def _redact_url(storage: str) -> str:
    """Return an address fit for a message; what is no URL at all may still hold a password."""
    return redact_address(storage) if "://" in storage else "***"
