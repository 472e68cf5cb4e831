"""Which runs a certification wants, in which order, and what it takes for done."""

from __future__ import annotations

import json

import pytest
from ledger import make_ledger
from saved import write_checkpoint

from rltune.certification.retraining import Retraining
from rltune.checkpoints.store import open_store
from rltune.config.criteria import Criteria, parse_constraints
from rltune.records import CERTIFY, RETRY, CheckpointRecord, Report

SEEDS = (11, 12, 13)
BASELINE_VALUES = {"lr": 1e-3}


@pytest.fixture
def ledger(tmp_path):
    made = make_ledger(tmp_path)
    yield made
    made.close()


@pytest.fixture
def make_retraining(tmp_path, request_of, ledger):
    def make(*overrides, seeds=SEEDS):
        config = request_of("certify.top=2", *overrides)
        env_steps, replicates = config.budget.env_steps, config.replicates
        return Retraining(open_store(tmp_path), config.certify, env_steps, replicates, seeds, BASELINE_VALUES, ledger)

    return make


def test_nothing_is_in_the_ledger_before_the_first_run(make_retraining):
    assert make_retraining().runs() == []


def test_before_the_search_has_ended_the_baseline_begins(make_retraining):
    retraining = make_retraining()
    runs = [retraining.propose(False) for _ in range(4)]
    assert [run.seeds for run in runs if run] == [(11,), (12,), (13,)], "each seed once"
    assert [run.name for run in runs if run] == [f"baseline-seed-{index}" for index in (1, 2, 3)]
    assert runs[3] is None


def test_a_run_that_went_wrong_comes_first_again(make_retraining):
    retraining = make_retraining()
    first, second = retraining.propose(False), retraining.propose(False)
    retraining.retry(first)
    assert retraining.propose(False) is first
    assert second.seeds == (12,)


def test_a_failed_run_of_an_earlier_driver_comes_again_once(make_retraining, ledger):
    done = make_retraining().propose(False)
    ledger.runs.end(done.number, "FAIL", "out of luck")
    after = make_retraining()
    request = ledger.add_request(RETRY, {CERTIFY: [done.number]}, "maria@host")
    [again] = ledger.reopen_failed(next(one for one in ledger.read_requests() if one.id == request))
    after.retry(again)
    assert [after.propose(False).seeds for _ in range(3)] == [(11,), (12,), (13,)]


def test_a_resumed_certification_repeats_no_ended_run(make_retraining, ledger):
    before = make_retraining()
    done = before.propose(False)
    ledger.runs.add_report(Report(done.number, 1000, 5.0))
    ledger.runs.end(done.number, "COMPLETE", "whole budget")
    begun = before.propose(False)
    after = make_retraining()
    run = after.propose(False)
    assert (run.number, run.seeds) == (begun.number, (12,)), "the unfinished one goes on under its number"
    assert after.propose(False).seeds == (13,)


def test_a_search_without_a_finalist_has_nothing_to_certify(make_retraining):
    retraining = make_retraining()
    assert retraining.propose(True) is None
    assert retraining.judge([])[1] is None


def test_a_run_that_diverged_counts_as_ended(make_retraining, ledger):
    before = make_retraining()
    done = before.propose(False)
    ledger.runs.end(done.number, "PRUNED", "non-finite numbers", diverged=True)
    assert make_retraining().propose(False).seeds == (12,), "another training would diverge alike"


def test_a_baseline_that_the_search_tried_is_judged_by_that_trial(make_retraining, ledger, tmp_path):
    """Otherwise the values that cannot win as a trial would win as the baseline."""
    ledger.judge_by(Criteria(parse_constraints({"train_s": "< 60"}), env_steps=1000))
    saved = write_checkpoint(tmp_path, "trials/0", "best", {"env_steps": 1000, "objective": 1.0}, lambda folder: None)
    retraining = make_retraining()
    for number, params, cost in ((0, BASELINE_VALUES, 90.0), (1, {"lr": 5e-4}, 9.0)):
        ledger.trials.add(params, [number], drawn={})
        ledger.trials.add_report(Report(number, 1000, 9.0 - number), {"checkpoint": saved}, train_s=cost)
        ledger.trials.end(number, "COMPLETE", "whole budget")
    while run := retraining.propose(True):
        ledger.runs.add_report(Report(run.number, 1000, 9.0), {"checkpoint": saved}, train_s=30.0)
        ledger.runs.end(run.number, "COMPLETE", "whole budget", returns=(9.0,))
    _, certification = retraining.judge(ledger.trials.records())
    assert certification.winner == "trial 1"
    assert [one.broken for one in certification.configurations if one.name == "baseline"] == ["train_s=90, not < 60"]


@pytest.mark.parametrize(
    ("seconds", "replicates", "broken"),
    [
        ((61, 62, 9), 1, "train_s=61, not < 60"),
        ((61, 59, 58), 1, None),
        ((25, 25, 25), 3, "train_s=75, not < 60"),
    ],
)
def test_the_baseline_is_judged_by_most_of_its_runs(make_retraining, ledger, tmp_path, seconds, replicates, broken):
    ledger.judge_by(Criteria(parse_constraints({"train_s": "< 60"}), env_steps=1000))
    saved = write_checkpoint(tmp_path, "trials/0", "best", {"env_steps": 1000, "objective": 1.0}, lambda folder: None)
    ledger.trials.add({"lr": 5e-4}, [1], drawn={})
    ledger.trials.add_report(Report(0, 1000, 1.0), {"checkpoint": saved}, train_s=1.0)
    ledger.trials.end(0, "COMPLETE", "whole budget")
    retraining = make_retraining(f"replicates={replicates}")
    while run := retraining.propose(True):
        is_baseline = run.of_trial is None
        cost, worth = (seconds[run.seed_index], 9.0) if is_baseline else (99.0, 1.0)
        ledger.runs.add_report(Report(run.number, 1000, worth), {"checkpoint": saved}, train_s=float(cost))
        ledger.runs.end(run.number, "COMPLETE", "whole budget", returns=(worth,))
    _, certification = retraining.judge(ledger.trials.records())
    assert certification.winner == ("trial 0" if broken else "baseline"), "the search has judged the trial already"
    (baseline,) = (one for one in certification.configurations if one.name == "baseline")
    assert baseline.broken == broken


def test_a_trial_tried_again_after_all_may_still_be_certified(make_retraining, ledger, tmp_path):
    """Which are certified is chosen anew when the search is over once more."""
    retraining = make_retraining("certify.top=1", seeds=(11,))
    add_whole(ledger, tmp_path, 0.5, 1.0)
    assert retraining.propose(False).of_trial is None
    assert retraining.propose(True).of_trial == 0
    add_whole(ledger, tmp_path, 0.25, 2.0)
    assert retraining.propose(True) is None, "the search has not gone on for all it knows"
    assert retraining.propose(False) is None
    assert retraining.propose(True).of_trial == 1


def add_whole(ledger, folder, lr, objective):
    """A whole trial with a checkpoint of a policy."""
    number = ledger.trials.add({"lr": lr}, [1], drawn={}).number
    state = {"env_steps": 1000, "objective": objective}
    saved = write_checkpoint(folder, f"trials/{number}", "best", state, lambda _: None)
    ledger.trials.add_report(Report(number, 1000, objective), {"checkpoint": saved})
    ledger.trials.end(number, "COMPLETE", "whole budget")


def run_all(retraining, ledger, scores):
    """Run what a certification proposes; scores by learning rate and seed index. Returns what was trained, in order."""
    ran = []
    while run := retraining.propose(True):
        ran.append((run.of_trial, run.seed_index))
        score = scores[run.params["lr"]][run.seed_index]
        saved = CheckpointRecord(f"certify/{run.number}/best-1", 1000, score, "")
        ledger.runs.add_report(Report(run.number, 1000, score), {"checkpoint": saved}, train_s=1.0)
        ledger.runs.end(run.number, "COMPLETE", "whole budget", returns=(score,))
    return ran


def judge(retraining, ledger):
    """Judge, and store the result as the end of a sweep does."""
    is_over, certification = retraining.judge(ledger.trials.records())
    assert is_over
    ledger.change_sweep(certification=json.loads(json.dumps(certification.to_dict())))
    return certification


def test_the_baseline_as_the_searchs_best_trial_leaves_room(make_retraining, ledger, tmp_path):
    """Its score in the search is luck, too, so it is not the only one that is certified."""
    for lr, score in ((1e-3, 9.0), (1e-2, 5.0), (1e-4, 4.0), (1e-5, 3.0)):
        add_whole(ledger, tmp_path, lr, score)
    chosen = make_retraining().choose_configurations(ledger.trials.records())
    assert [(one.name, one.trial, num_seeds) for one, num_seeds in chosen] == [
        ("baseline", 0, 3),
        ("trial 1", 1, 3),
        ("trial 2", 2, 3),
    ]


def test_an_extended_sweep_keeps_what_it_has_certified(make_retraining, ledger, tmp_path):
    add_whole(ledger, tmp_path, 1e-2, 5.0)
    scores = {1e-3: [1.0] * 5, 1e-2: [2.0] * 5, 1e-4: [0.0] * 5}
    run_all(make_retraining("certify.top=1"), ledger, scores)
    assert judge(make_retraining("certify.top=1"), ledger).winner == "trial 0"
    add_whole(ledger, tmp_path, 1e-4, 9.0)
    extended = make_retraining("certify.top=1")
    assert run_all(extended, ledger, scores) == [(1, 0), (1, 1), (1, 2)], "the luckier trial alone is trained"
    certification = judge(extended, ledger)
    assert [(one.name, one.place) for one in certification.configurations] == [
        ("trial 0", 1),
        ("baseline", 0),
        ("trial 1", 2),
    ]


def test_of_several_only_the_best_gets_new_seeds(make_retraining, ledger, tmp_path):
    for lr, score in ((1e-2, 5.0), (1e-4, 4.0)):
        add_whole(ledger, tmp_path, lr, score)
    scores = {1e-3: [1.0] * 5, 1e-2: [2.0] * 5, 1e-4: [3.0] * 3 + [0.0] * 2}
    run_all(make_retraining(), ledger, scores)
    judge(make_retraining(), ledger)
    more = make_retraining(seeds=(*SEEDS, 14, 15))
    first = more.propose(True)
    ledger.runs.end(first.number, "FAIL", "out of luck")
    assert (first.of_trial, first.seed_index) == (None, 3)
    resumed = make_retraining(seeds=(*SEEDS, 14, 15))
    assert run_all(resumed, ledger, scores) == [(1, 3), (None, 4), (1, 4)], "also after a kill in between"
    certification = judge(resumed, ledger)
    assert {one.name: one.num_seeds for one in certification.configurations} == {
        "baseline": 5,
        "trial 0": 3,
        "trial 1": 5,
    }
    again = make_retraining(seeds=(*SEEDS, 14, 15))
    assert certification.winner == "trial 0"
    assert again.propose(True) is None, "nothing is new, though another one is the best now"


def test_another_budget_is_another_certification(make_retraining, ledger, tmp_path):
    add_whole(ledger, tmp_path, 1e-2, 5.0)
    scores = {1e-3: [1.0] * 3, 1e-2: [2.0] * 3}
    run_all(make_retraining(), ledger, scores)
    judge(make_retraining(), ledger)
    assert len(run_all(make_retraining("budget.env_steps=777"), ledger, scores)) == 6


def test_a_certification_that_was_interrupted_keeps_its_finalists(make_retraining, ledger, tmp_path):
    add_whole(ledger, tmp_path, 1e-2, 5.0)
    before = make_retraining("certify.top=1")
    begun = [before.propose(True) for _ in range(2)]
    assert [run.of_trial for run in begun] == [None, 0]
    add_whole(ledger, tmp_path, 1e-4, 9.0)
    scores = {1e-3: [1.0] * 3, 1e-2: [2.0] * 3, 1e-4: [3.0] * 3}
    after = make_retraining("certify.top=1")
    ran = run_all(after, ledger, scores)
    assert [run for run in ran if run[0] == 0] == [(0, 0)], "what was begun is ended"
    certification = judge(after, ledger)
    assert [(one.name, one.place, one.num_pairs) for one in certification.configurations] == [
        ("trial 1", 2, 3),
        ("trial 0", 1, 1),
        ("baseline", 0, 0),
    ]
