"""Write the ended trials of a sweep as an Optuna study, ``study.db``, for optuna-dashboard. Runs anywhere.

Nothing reads that file but a dashboard: samplers propose from another study, `rltune.ledger.optuna_study`.
"""

from __future__ import annotations

import logging
import math
import tempfile
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from rltune.records import TrialRecord
from rltune.views.analysis import build_space
from rltune.views.sweep_view import SweepView

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

STUDY = "study.db"


def write_study(view: SweepView) -> Path:
    """Write the ended trials of a sweep into its folder as an Optuna study, replacing an earlier one.

    Returns:
        The SQLite file.

    Raises:
        StudyUnavailableError: No driver has begun the sweep yet.
    """
    view.require_settings()
    import optuna

    from rltune.ledger.optuna_study import get_optuna_direction

    logging.getLogger("alembic").setLevel(logging.WARNING)
    distributions = build_space(view).distributions()
    with tempfile.TemporaryDirectory(prefix=f".{STUDY}-", dir=view.folder) as folder:
        draft = Path(folder) / STUDY
        storage = optuna.storages.RDBStorage(f"sqlite:///{draft}")
        direction = get_optuna_direction(view.criteria.direction)
        study = optuna.create_study(study_name=view.name, storage=storage, direction=direction)
        study.add_trials(_make_trial(trial.record, distributions) for trial in view.trials if trial.has_ended)
        storage.remove_session()
        storage.engine.dispose()
        for journal in view.folder.glob(f"{STUDY}-*"):  # SQLite would replay that of an older file in the new one.
            journal.unlink()
        return draft.replace(view.folder / STUDY)  # A reader never gets a part of the file.


def _make_trial(record: TrialRecord, distributions: Mapping[str, BaseDistribution]) -> FrozenTrial:
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
        distributions={label: distributions[label] for label in drawn},
        user_attrs=attributes,
        intermediate_values=thin_curve(record.scores),
        # If a constraint's metric was never measured, then the trial counts as breaking it by 1.0.
        constraints={check.name: 1.0 if math.isnan(check.excess) else check.excess for check in record.checks},
    )
    if record.began_s and record.ended_s:
        trial.datetime_start = datetime.fromtimestamp(record.began_s)
        trial.datetime_complete = datetime.fromtimestamp(record.ended_s)
    return trial
