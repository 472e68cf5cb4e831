"""What every tracker has, and what trackers show of a trial that has ended."""

from __future__ import annotations

from dataclasses import replace

from rltune.records import CERTIFY, TrialRecord
from rltune.tracking.mlflow_tracker import MLflowTracker
from rltune.tracking.tracker import Tracker, get_certified_score


def test_a_tracker_is_named_as_its_class_unless_it_says_otherwise():
    assert type("Mine", (Tracker,), {}).name == "Mine"
    assert type("Mine", (Tracker,), {"name": "other"}).name == "other"
    assert type("Mine", (MLflowTracker,), {}).name == "Mine", "the name of its own, for it has marks of its own"


def test_only_a_certified_run_has_a_score_beside_its_reports():
    record = TrialRecord(0, "COMPLETE", {}, {200: 9.0}, kind=CERTIFY, of_trial=0, seed_index=0, returns=(4.0, 6.0))
    assert get_certified_score(record) == {"certified_score": 5.0}
    assert get_certified_score(replace(record, returns=())) == {}
    assert get_certified_score(TrialRecord(0, "COMPLETE", {}, {200: 9.0})) == {}
