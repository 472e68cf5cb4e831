"""What one event says of a trial, written into an Optuna storage's tables in one transaction.

Optuna's own calls take a transaction and three queries for each value (5.0): most of what a report would cost the
driver, and a kill between two of them would part what belongs together. Runs in the driver.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import RDBStorage
from optuna.storages._rdb.models import TrialIntermediateValueModel, TrialModel, TrialUserAttributeModel
from sqlalchemy import Connection, Table, bindparam, insert, select, update

# The parameters' names must not be the columns' own.
_TRIALS, _REPORTS, _ATTRIBUTES = (
    model.__table__ for model in (TrialModel, TrialIntermediateValueModel, TrialUserAttributeModel)
)
_STATE = select(_TRIALS.c.state).where(_TRIALS.c.trial_id == bindparam("of"))


def _statements(table: Table, key: str) -> tuple[Any, Any]:
    """What changes a trial's row of this key, and what adds it."""
    known = update(table).where(table.c.trial_id == bindparam("of"), table.c[key] == bindparam("at"))
    return known, insert(table)


_REPORT, _ATTRIBUTE = _statements(_REPORTS, "step"), _statements(_ATTRIBUTES, "key")


def write_rows(storage: RDBStorage, trial_id: int, reports: Mapping[int, float], attributes: Mapping[str, Any]) -> None:
    """Add to an unfinished trial, all of it or nothing.

    Args:
        storage: The study's.
        trial_id: The storage's number of the trial, not the study's.
        reports: Intermediate values by step; NaN is one, too.
        attributes: User attributes, JSON-able.

    Raises:
        UpdateFinishedTrialError: The trial has ended.
    """
    with storage.engine.begin() as connection:
        if connection.execute(_STATE, {"of": trial_id}).scalar_one().is_finished():
            raise UpdateFinishedTrialError(f"trial {trial_id} has ended")
        for step, value in reports.items():
            stored, kind = TrialIntermediateValueModel.intermediate_value_to_stored_repr(value)
            content = {"intermediate_value": stored, "intermediate_value_type": kind}
            _put(connection, _REPORT, trial_id, {"step": step}, content)
        for key, attribute in attributes.items():
            _put(connection, _ATTRIBUTE, trial_id, {"key": key}, {"value_json": json.dumps(attribute)})


def _put(
    connection: Connection,
    statements: tuple[Any, Any],
    trial_id: int,
    key: Mapping[str, Any],
    content: Mapping[str, Any],
) -> None:
    known, new = statements
    (at,) = key.values()
    if not connection.execute(known, {"of": trial_id, "at": at, **content}).rowcount:
        connection.execute(new, {"trial_id": trial_id, **key, **content})
