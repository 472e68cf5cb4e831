"""How a sweep ended."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from ledger import ENTRIES

from rltune.certification.finalists import Finalist, describe_winner
from rltune.config.criteria import Criteria, parse_constraints
from rltune.ledger.outcome import Outcome, compute_cost, count_states, describe_front, explain_no_winner, load_outcome
from rltune.records import Direction, RunKey, TrialRecord


def ended(folder=Path(), **changes):
    given = {
        "name": "s",
        "status": "complete",
        "trials": count_states(ENTRIES),
        "winner": {"trial": 0, "params": {"lr": 1e-3}, "objective": 9.0},
        "model": {"name": "cartpole-ppo", "version": "3", "uri": "models:/cartpole-ppo/3"},
        "cost": compute_cost(ENTRIES, 1000, 1, 2, 10.0),
        "folder": folder,
    }
    return Outcome(**{**given, **changes})


def test_trials_are_counted_by_how_they_ended():
    assert count_states(ENTRIES) == {
        "total": 6, "complete": 1, "pruned": 2, "failed": 1, "interrupted": 2
    }  # fmt: skip
    assert set(count_states([]).values()) == {0}


def test_cost_is_what_was_stepped_and_what_stopping_saved():
    cost = compute_cost(ENTRIES, 1000, 1, slots=2, wall_s=10.0)
    assert cost["env_steps"] == 1000 + 100 + 300 + 150 + 200
    assert cost["env_steps_saved"] == 900 + 700, "a failed or interrupted trial saves nothing"
    assert cost["train_s"] == 6.0
    assert cost["efficiency"] == 0.3, "six seconds of training in two slots for ten seconds"
    assert (cost["slots"], cost["wall_s"]) == (2, 10.0)


def test_replicates_cost_as_many_times_more():
    cost = compute_cost(ENTRIES, 1000, 3, slots=2, wall_s=10.0)
    assert cost["env_steps"] == 3 * 1750
    assert cost["env_steps_saved"] == 3 * 1600


def test_a_certifications_runs_are_counted_apart_but_fill_the_slots_too():
    runs = [TrialRecord(0, "COMPLETE", {}, {1000: 5.0}, env_steps=1000, train_s=4.0)]
    cost = compute_cost(ENTRIES, 1000, 1, 2, 10.0, runs)
    assert (cost["env_steps"], cost["certify_env_steps"]) == (1750, 1000)
    assert (cost["train_s"], cost["certify_train_s"], cost["efficiency"]) == (6.0, 4.0, 0.5)


def test_a_trial_that_overshot_its_budget_saves_nothing_rather_than_less():
    over = [TrialRecord(0, "PRUNED", {}, {1200: 1.0}, env_steps=1200)]
    assert compute_cost(over, 1000, 1, 1, 1.0)["env_steps_saved"] == 0


def test_the_summary_file_has_what_it_promises(tmp_path):
    ended(tmp_path).save()
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert set(summary) == {"name", "status", "trials", "winner", "model", "cost", "certified", "reason", "front"} | {
        "algorithm",
        "environment",
        "seed",
        "began",
        "unregistered",
        "version",
    }
    assert set(summary["cost"]) >= {"env_steps", "env_steps_saved", "train_s", "wall_s", "slots", "efficiency"}
    assert {"trial", "params", "objective"} <= set(summary["winner"])
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"], "written whole, with no draft left"


def test_an_outcome_is_loaded_as_it_was_saved(tmp_path):
    assert load_outcome(tmp_path) is None
    front = [{"trial": 0, "objective": 9.0, "train_s": 4.0, "params": {"lr": 1e-3}}]
    for outcome in (ended(tmp_path, front=front), ended(tmp_path, status="failed", winner=None, exit_code=1)):
        outcome.save()
        assert load_outcome(tmp_path) == outcome
    (tmp_path / "summary.json").write_text("{")
    assert load_outcome(tmp_path) is None


def test_a_number_that_is_not_finite_is_null_in_the_summary(tmp_path):
    ended(tmp_path, front=[{"trial": 0, "objective": math.nan}]).save()
    assert json.loads((tmp_path / "summary.json").read_text(), parse_constant=pytest.fail)["front"] == [
        {"trial": 0, "objective": None}
    ]


def test_a_sweep_without_a_winner_says_so_in_its_summary(tmp_path):
    ended(tmp_path, status="failed", winner=None, model=None).save()
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["winner"], summary["model"], summary["status"]) == (None, None, "failed")


def test_the_winner_is_described_by_what_leads_back_to_it(tmp_path):
    finalist = Finalist("trial 0", 0, {"lr": 1e-3}, 9.0, tmp_path / "trials/0/best-1000", RunKey(0))
    records = [TrialRecord(0, "COMPLETE", {}, origin="portfolio")]
    assert describe_winner(finalist, tmp_path, records) == {
        "name": "trial 0",
        "trial": 0,
        "params": {"lr": 1e-3},
        "origin": "portfolio",
        "objective": 9.0,
        "checkpoint": "trials/0/best-1000",
    }
    assert describe_winner(None, tmp_path, records) is None


def test_a_return_of_zero_is_a_score_like_any_other():
    assert Finalist("trial 0", 0, {}, 0.0, Path(), RunKey(0)).score == 0.0
    assert math.isnan(Finalist("baseline", None, {}, None, Path(), RunKey(None, 0)).score)


def test_the_front_stands_in_the_summary_under_its_own_name():
    judged = [Criteria(second="train_s", env_steps=1000).judge(record) for record in ENTRIES]
    assert describe_front(judged, Criteria(second="train_s")) == [
        {"trial": 0, "objective": 9.0, "train_s": 4.0, "params": {"lr": 1e-3}}
    ]
    assert describe_front([], Criteria(second="train_s")) == []
    assert describe_front(ENTRIES, Criteria()) is None


@pytest.mark.parametrize(("second_direction", "front"), [(Direction.MIN, [2.0, 3.0, 4.0]), (Direction.MAX, [2.0])])
def test_the_front_of_costs_has_the_lowest_cost_first(second_direction, front):
    criteria = Criteria(second="train_s", second_direction=second_direction, env_steps=1000, direction=Direction.MIN)
    records = [
        criteria.judge(TrialRecord(number, "COMPLETE", {}, {1000: cost}, env_steps=1000, train_s=train_s))
        for number, (cost, train_s) in enumerate(((3.0, 5.0), (2.0, 9.0), (4.0, 1.0)))
    ]
    assert [trial["objective"] for trial in describe_front(records, criteria)] == front


def test_where_all_break_a_constraint_it_is_said_which_is_nearest():
    criteria = Criteria(parse_constraints({"train_s": "< 3.5", "loss": "< 1"}), env_steps=1000)
    judged = [criteria.judge(replace(record, numbers={"loss": 0.5})) for record in ENTRIES]
    assert "trial 0: train_s=4," in explain_no_winner(judged[:1])
    assert "trial 0" not in explain_no_winner([])


def test_if_all_trials_failed_the_commonest_failure_is_told():
    failed = [TrialRecord(0, "FAIL", {}, {200: 7.0}, stop_reason=why) for why in ("once", "pole 1", "pole 2\nTrace")]
    assert explain_no_winner([*failed, TrialRecord(1, "PRUNED", {}, {})]) == explain_no_winner([])
    assert explain_no_winner(failed).endswith("2 of 3: pole 1")
