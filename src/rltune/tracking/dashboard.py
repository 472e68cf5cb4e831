"""Show the ended trials of a sweep in optuna-dashboard, by an Optuna study in ``study.db`` or in the ledger's database.

The study is a view like any other tracker's: samplers propose from another one, `rltune.ledger.optuna_study`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rltune.ledger.database import TIMEOUT_S, choose_journal, file_of
from rltune.ledger.storage import STUDY, make_storage_url
from rltune.records import TRIALS, Report, TrialRecord
from rltune.secrets import reveal
from rltune.tracking.tracker import SweepDescription, Tracker

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.storages import RDBStorage

SWEEP_KEY = "rltune.sweep"  # The study attribute with the key of the sweep that the study shows.
logger = logging.getLogger(__name__)


class DashboardTracker(Tracker):
    """An Optuna study for optuna-dashboard; each trial of the search is added to it when the trial has ended.

    A trial that is tried again is added a second time; the next driver removes the first one.

    Args:
        sweep: The sweep.
        storage: The setting ``study.storage``; None is ``study.db`` in the sweep's folder.
        distributions: What is searched, by label.
        shared: Whether other hosts use the sweep's folder.
    """

    name = "optuna-dashboard"
    takes_reports = False

    def __init__(
        self,
        sweep: SweepDescription,
        storage: str | None,
        distributions: Mapping[str, BaseDistribution],
        shared: bool = False,
    ) -> None:
        super().__init__(sweep)
        self._distributions, self._shared = distributions, shared
        self._url = make_storage_url(storage, sweep.folder, STUDY)
        self._file = None if storage else sweep.folder / STUDY
        self._storage: RDBStorage | None = None
        self._added: set[tuple[int, float]] = set()
        self._has_opened = False

    def open(self) -> None:
        """Open the study, and request the delivery of trials that it lacks, for example because its file was deleted.

        A study of this name in a user's database that does not show this sweep is left alone.
        """
        self.close()
        ended = {_get_key(record) for record in self.sweep.ledger.trials.records() if record.state != "RUNNING"}
        try:
            self._open_study(ended)
        except Exception as error:  # For a file that is damaged or of another version, Optuna raises various errors.
            # If the file could be opened before, it is not damaged: the disk is full, or a reader has locked it. It is
            # kept then.
            if self._file is None or self._has_opened or not self._file.exists():
                raise
            logger.warning("%s cannot be used and is made again from the ledger: %s", self._file, error)
            for part in self._file.parent.glob(f"{self._file.name}*"):
                part.unlink()
            self._open_study(ended)
        self._has_opened = True
        for number, _ in ended - self._added:
            self.sweep.ledger.mark_trial(self.name, TRIALS, number, revision=0)

    def _open_study(self, ended: set[tuple[int, float]]) -> None:
        import optuna
        from optuna.storages import RDBStorage

        logging.getLogger("alembic").setLevel(logging.WARNING)
        if self._file:
            choose_journal(self._file, self._shared)
        # SQLite waits while a reader locks the file; connections to a server are tested, because it may have restarted.
        options = {"connect_args": {"timeout": TIMEOUT_S}} if file_of(self._url) else {"pool_pre_ping": True}
        sweep = self.sweep
        self._storage = RDBStorage(reveal(self._url), options)
        study = self._load_study()
        trials = study.get_trials(deepcopy=False)
        if trials and study.user_attrs.get(SWEEP_KEY) != sweep.key:
            self.notify(f"optuna-dashboard does not show {sweep.name}: study.storage has another study of this name")
            self._study, self._added = None, ended
            return
        ends = [tuple(trial.user_attrs.get("end", ())) for trial in trials]
        self._added = set(ends)
        # The study has a trial twice or one that the ledger lacks, because the trial was retried, the ledger is an
        # older copy, or two drivers added it. So the study is built anew.
        if len(ends) > len(self._added) or not self._added <= ended:
            optuna.delete_study(study_name=sweep.name, storage=self._storage)
            study, self._added = self._load_study(), set()
        study.set_user_attr(SWEEP_KEY, sweep.key)
        self._study = study

    def _load_study(self) -> Study:
        import optuna

        from rltune.ledger.optuna_study import get_optuna_direction

        direction = get_optuna_direction(self.sweep.ledger.criteria.direction)
        return optuna.create_study(
            study_name=self.sweep.name, storage=self._storage, direction=direction, load_if_exists=True
        )

    def write(self, trial: TrialRecord, reports: Sequence[Report]) -> None:
        """Add a trial of the search to the study if it has ended."""
        if self._study is None or trial.kind != TRIALS or trial.state == "RUNNING":
            return
        if _get_key(trial) not in self._added:
            self._study.add_trial(self._make_trial(trial))
            self._added.add(_get_key(trial))

    def _make_trial(self, record: TrialRecord) -> Any:
        """Make the Optuna trial that the dashboard shows; a trial that diverged or failed has no value."""
        from optuna.trial import TrialState, create_trial

        from rltune.ledger.optuna_study import thin_curve

        drawn = record.drawn or {}
        value = None if record.diverged or record.state == "FAIL" else record.score
        # Optuna requires a value for each COMPLETE trial, so one without a value is shown as PRUNED.
        state = "PRUNED" if record.state == "COMPLETE" and value is None else record.state
        attributes = {"trial": record.number, "params": dict(record.params), "seeds": list(record.seeds)}
        if record.state != "COMPLETE":
            attributes["stop_reason"] = record.stop_reason
        trial = create_trial(
            state=TrialState[state],
            value=value,
            params=dict(drawn),
            distributions={label: self._distributions[label] for label in drawn},
            user_attrs=attributes | {"end": _get_key(record)},
            intermediate_values=thin_curve(record.scores),
            # If a constraint's metric was never measured, then the trial counts as breaking it by 1.0.
            constraints={check.name: 1.0 if math.isnan(check.excess) else check.excess for check in record.checks},
        )
        if record.began_s and record.ended_s:
            trial.datetime_start = datetime.fromtimestamp(record.began_s)
            trial.datetime_complete = datetime.fromtimestamp(record.ended_s)
        return trial

    def close(self) -> None:
        """Close the connections to the study's database."""
        if self._storage:
            self._storage.remove_session()
            self._storage.engine.dispose()


def _get_key(record: TrialRecord) -> tuple[int, float]:
    """Return the number and end time of a trial, which differ between two attempts."""
    return record.number, record.ended_s or 0.0
