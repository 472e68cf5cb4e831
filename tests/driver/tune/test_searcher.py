"""Trials first, then certification's runs, in the same slots."""

from __future__ import annotations

import pickle

import pytest
from opened import make_assignments
from ray.tune.search import Searcher

from rltune.cluster.resources import Machine
from rltune.driver.tune.assignments import Assignments
from rltune.driver.tune.searcher import StageSearcher
from rltune.records import CERTIFY, TRIALS, TrialRecord


class Proposals:
    """Proposes so many of a kind, the last of them only once the search is over."""

    def __init__(self, table, early, late=0):
        self.table, self.early, self.late, self.number = table, early, late, 0

    def propose(self, is_search_over):
        if self.early:
            self.early -= 1
        elif is_search_over and self.late:
            self.late -= 1
        else:
            return None
        self.number += 1
        return TrialRecord(self.number - 1, "RUNNING", {}, kind=self.table.kind)


class Numbers(Assignments):
    """Makes configs that say only which trial is to run."""

    def make_config(self, record):
        return {record.kind: record.number}


@pytest.fixture
def make_searcher(make_sweep):
    def make(trials, early=0, late=0, slots=2):
        sweep = make_sweep(num_slots=slots)
        stages = [Proposals(sweep.ledger.trials, trials), Proposals(sweep.ledger.runs, early, late)]
        assignments, note = make_assignments(sweep, Numbers), sweep.console.note
        return StageSearcher(stages, assignments, sweep.slots, sweep.search.inbox, sweep.stopper, note)

    return make


def test_a_proposal_waits_for_a_free_slot_so_that_it_knows_all(make_searcher):
    searcher = make_searcher(3)
    assert [searcher.suggest(f"t{n}") for n in range(3)] == [{TRIALS: 0}, {TRIALS: 1}, None]
    searcher.on_trial_complete("t0")
    assert searcher.suggest("t2") == {TRIALS: 2}


def test_a_slot_that_a_cluster_gains_is_used_and_a_lost_one_waited_for(make_searcher):
    searcher = make_searcher(9, slots=1)
    assert [searcher.suggest("t0"), searcher.suggest("t1")] == [{TRIALS: 0}, None]
    searcher._slots.update([Machine(1, 0), Machine(2, 0)], {})
    assert [searcher.suggest(f"t{n}") for n in (1, 2, 3)] == [{TRIALS: 1}, {TRIALS: 2}, None]
    searcher._slots.update([Machine(1, 0)], {})
    for ended, free in (("t0", False), ("t1", False), ("t2", True)):
        searcher.on_trial_complete(ended)
        assert (searcher.suggest("t4") is not None) is free


def test_the_search_ends_only_when_the_last_trial_has(make_searcher):
    searcher = make_searcher(1, slots=4)
    searcher.suggest("t0")
    assert searcher.suggest("t1") is None, "it may have to be tried again"
    searcher.on_trial_complete("t0")
    assert searcher.suggest("t1") == Searcher.FINISHED


def test_a_slot_that_the_search_leaves_free_trains_the_baseline(make_searcher):
    searcher = make_searcher(1, early=1, late=1)
    assert [searcher.suggest("t0"), searcher.suggest("r0")] == [{TRIALS: 0}, {CERTIFY: 0}]
    assert searcher.suggest("r1") is None, "both slots are taken"
    searcher.on_trial_complete("r0")
    assert searcher.suggest("r1") is None, "who the finalists are is not known before the search has ended"


def test_finalists_are_trained_when_the_search_has_ended(make_searcher):
    searcher = make_searcher(1, early=1, late=1)
    for trial_id in ("t0", "r0"):
        searcher.suggest(trial_id)
        searcher.on_trial_complete(trial_id)
    assert searcher.suggest("r1") == {CERTIFY: 1}
    assert searcher.suggest("r2") is None, "a run is on its way"
    searcher.on_trial_complete("r1")
    assert searcher.suggest("r2") == Searcher.FINISHED


def test_a_trial_that_lost_its_process_frees_its_slot(make_searcher):
    searcher = make_searcher(2, slots=1)
    searcher.suggest("t0")
    searcher.on_trial_complete("t0", None, error=True)
    assert searcher.suggest("t1") == {TRIALS: 1}


def test_tune_sees_to_its_trials_before_all_slots_are_filled(make_searcher):
    searcher = make_searcher(30, slots=20)
    proposals = [searcher.suggest(f"t{n}") for n in range(23)]
    rounds = "".join("." if one is None else "x" for one in proposals).split(".")
    assert [len(one) for one in rounds] == [8, 8, 4, 0]


def test_nothing_is_begun_after_an_end_was_requested(make_searcher):
    searcher = make_searcher(1)
    searcher._stopper.request("interrupted")
    assert searcher.suggest("t0") == Searcher.FINISHED


def test_tune_can_pickle_the_searcher_though_it_holds_a_database(make_searcher):
    assert pickle.dumps(make_searcher(1))


def test_what_is_tried_again_is_looked_for_though_all_slots_are_taken(make_searcher, monkeypatch):
    """Who asks waits for it, and a trial may take hours."""
    looks = []
    searcher = make_searcher(2, slots=1)
    monkeypatch.setattr(searcher._inbox, "reopen_failed", lambda note: looks.append(note) or [])
    assert [searcher.suggest("t0"), searcher.suggest("t1")] == [{TRIALS: 0}, None]
    assert len(looks) == 2
