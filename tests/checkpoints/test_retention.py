"""What may be dropped of a sweep's checkpoints, and when that is decided."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rltune.checkpoints.retention import Retention
from rltune.checkpoints.store import Store, open_store
from rltune.errors import StudyUnavailableError
from rltune.records import CheckpointRecord, TrialRecord

pytestmark = pytest.mark.fast


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(tmp_path)


def save(store: Store, path: str) -> CheckpointRecord:
    with store.make_draft(path) as draft:
        (draft / "state.json").write_text(json.dumps({"env_steps": 100}))
        return CheckpointRecord(path, 100, 1.0, store.save(draft, path))


def make_trial(named: CheckpointRecord) -> TrialRecord:
    return TrialRecord(7, "RUNNING", {}, latest=named)


def list_checkpoints(store: Store) -> set[str]:
    return {name.rpartition("/")[0] for name in store.list("trials")}


def test_a_new_attempt_keeps_what_no_report_has_named(store: Store) -> None:
    named = save(store, "trials/7/first/latest-000000000100")
    save(store, "trials/7/first/best-000000000050")
    retention = Retention(store, lambda: None)
    retention.drop_unnamed([make_trial(named)])
    written = save(store, "trials/7/second/latest-000000000200")  # The worker has begun before anything is dropped.
    retention.drop_pending()
    assert list_checkpoints(store) == {named.path, written.path}


def test_a_driver_that_was_replaced_drops_nothing(store: Store) -> None:
    named = save(store, "trials/7/first/latest-000000000100")
    other = save(store, "trials/7/first/best-000000000050")

    def refuse() -> None:
        raise StudyUnavailableError(
            ": another driver has taken it over", "one driver", "nothing", key="sweep", value="one"
        )

    retention = Retention(store, refuse)
    retention.drop_unnamed([make_trial(named)])
    retention.drop([other], keep=[])
    retention.drop_pending()
    assert list_checkpoints(store) == {named.path, other.path}
