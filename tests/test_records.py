"""The values that rooms hand to each other, and what they say of themselves."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from rltune.records import CERTIFY, RunKey, TrialRecord


@pytest.mark.parametrize(
    ("key", "name", "parent"),
    [
        (RunKey(7), "trial-007", None),
        (RunKey(1234), "trial-1234", None),
        (RunKey(None), "baseline", None),
        (RunKey(0, 2), "trial-000-seed-3", RunKey(0)),
        (RunKey(None, 0), "baseline-seed-1", RunKey(None)),
    ],
)
def test_a_run_has_a_name_and_knows_the_run_above_it(key: RunKey, name: str, parent: RunKey | None) -> None:
    assert (key.name, key.parent) == (name, parent)


def test_runs_of_one_name_are_one_run() -> None:
    keys = [RunKey(trial, seed) for trial in (None, 0, 1) for seed in (None, 0, 1)]
    assert len({key.name for key in keys}) == len(set(keys)) == 9


def test_a_trial_and_a_certification_run_are_named_for_a_person() -> None:
    trial = TrialRecord(7, "RUNNING", {})
    run = TrialRecord(3, "RUNNING", {}, kind=CERTIFY, of_trial=7, seed_index=1)
    baseline = TrialRecord(4, "RUNNING", {}, kind=CERTIFY, seed_index=0)
    assert [(one.name, one.run_key) for one in (trial, run, baseline)] == [
        ("trial 7", RunKey(7)),
        ("trial-007-seed-2", RunKey(7, 1)),
        ("baseline-seed-1", RunKey(None, 0)),
    ]


@pytest.mark.parametrize(
    ("reports", "score"),
    [
        ([90.0, 1.0, 2.0, 6.0], 6.0),
        ([9.0, 1.0], 1.0),
        ([0.0], 0.0),
        ([math.nan, 4.0], 4.0),
        ([-3.0, -math.inf], -3.0),
        ([math.nan], None),
        ([], None),
    ],
)
def test_a_trials_score_is_that_of_its_last_finite_report(reports: list[float], score: float | None) -> None:
    for state in ("RUNNING", "COMPLETE", "PRUNED"):
        assert TrialRecord(0, state, {}, dict(enumerate(reports))).score == score


def test_a_score_is_known_at_each_mark_from_the_first_episode_on() -> None:
    record = TrialRecord(0, "COMPLETE", {}, {50: math.nan, 100: 1.0, 150: 3.0, 200: 5.0, 250: 10.0})
    assert record.scores == {100: 1.0, 150: 3.0, 200: 5.0, 250: 10.0}


def test_a_certification_runs_score_is_what_its_policy_played() -> None:
    run = TrialRecord(0, "RUNNING", {}, {100: 90.0}, kind=CERTIFY)
    assert run.score is None
    assert replace(run, returns=(1.0, 3.0)).score == 2.0
