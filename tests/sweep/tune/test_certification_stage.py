"""Trials first, then certification's runs, in the same slots; each event to the recorder of its stage."""

from __future__ import annotations

import pytest
from ray.tune.search import Searcher

from rltune.sweep.tune.certification_stage import RunRecorder, StagedSearcher
from rltune.sweep.tune.recorder import Recorder


class Search:
    """Proposes so many trials, then says that it is finished."""

    def __init__(self, num_trials):
        self.left, self.num_live = num_trials, 0

    def suggest(self, trial_id):
        if not self.left:
            return None if self.num_live else str(Searcher.FINISHED)
        self.left -= 1
        self.num_live += 1
        return {"trial": trial_id}

    def on_trial_complete(self, trial_id, result=None, error=False):
        self.num_live -= trial_id.startswith("t")

    def trials(self):
        return ["searched"]


class Retraining:
    """Has so many runs of the baseline, and as many more once the search is known."""

    def __init__(self, baseline, more):
        self.baseline, self.more, self.asked = baseline, more, []

    def propose(self, searched):
        self.asked.append(searched)
        if self.baseline:
            self.baseline -= 1
            return "baseline"
        if searched and self.more:
            self.more -= 1
            return "finalist"
        return None

    def assign(self, run):
        return type("Assignment", (), {"to_config": lambda self: {"run": run}})()


@pytest.fixture
def staged():
    return StagedSearcher(Search(1), Retraining(1, 1), slots=2, is_stopping=lambda: False)


def test_a_slot_that_the_search_leaves_free_trains_the_baseline(staged):
    assert staged.suggest("t0") == {"trial": "t0"}
    assert staged.suggest("r0") == {"run": "baseline"}
    assert staged.suggest("r1") is None, "both slots are taken"
    staged.on_trial_complete("r0")
    assert staged.suggest("r1") is None, "who the finalists are is not known before the search has ended"


def test_finalists_are_trained_when_the_search_has_ended(staged):
    for trial_id in ("t0", "r0"):
        staged.suggest(trial_id)
        staged.on_trial_complete(trial_id)
    assert staged.suggest("r1") == {"run": "finalist"}
    assert staged.suggest("r2") is None, "a run is on its way"
    staged.on_trial_complete("r1")
    assert staged.suggest("r2") == Searcher.FINISHED


def test_nothing_is_begun_after_an_end_was_requested():
    staged = StagedSearcher(Search(1), Retraining(1, 1), slots=2, is_stopping=lambda: True)
    assert staged.suggest("t0") == Searcher.FINISHED


@pytest.mark.parametrize(
    ("returns", "state", "score"),
    [([1.0, 3.0], "COMPLETE", 2.0), ([1.0, float("nan")], "FAIL", None), ([], "FAIL", None)],
)
def test_a_run_without_a_finite_return_has_failed(returns, state, score, monkeypatch):
    ends, notes = [], {}
    monkeypatch.setattr(Recorder, "end_trial", lambda self, number, state, *more: ends.append(state))
    recorder = RunRecorder.__new__(RunRecorder)
    recorder.study = type("Study", (), {"note": lambda self, number, **noted: notes.update(noted)})()
    recorder.end_trial(0, "COMPLETE", "whole budget", {"returns": returns})
    assert (ends, notes.get("score")) == ([state], score)
