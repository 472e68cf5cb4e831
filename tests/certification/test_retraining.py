"""Which runs a certification wants, in which order, and what it takes for done."""

from __future__ import annotations

import pytest
from ledger import make_ledger
from saved import write_checkpoint

from rltune.certification.retraining import Retraining
from rltune.config.criteria import Criteria, parse_constraints
from rltune.records import CERTIFY, RETRY, Report

SEEDS = (11, 12, 13)


@pytest.fixture
def ledger(tmp_path):
    made = make_ledger(tmp_path)
    yield made
    made.close()


@pytest.fixture
def make_retraining(tmp_path, request_of, ledger):
    def make(*overrides, warm_starts=({"lr": 1e-3},), seeds=SEEDS):
        config = request_of("certify.top=2", *overrides)
        return Retraining(tmp_path, config, seeds, warm_starts, ledger)

    return make


def test_nothing_is_in_the_ledger_before_the_first_run(make_retraining):
    assert make_retraining().runs() == []


def test_before_the_search_has_ended_the_baseline_begins(make_retraining):
    retraining = make_retraining()
    runs = [retraining.propose(False) for _ in range(4)]
    assert [run.seeds for run in runs if run] == [(11,), (12,), (13,)], "each seed once"
    assert [run.name for run in runs if run] == [f"baseline-seed-{index}" for index in (1, 2, 3)]
    assert runs[3] is None


def test_the_baseline_is_the_tuned_settings_over_the_files_own(make_retraining):
    starts = ({"lr": 1e-3}, {"lr": 5e-5, "gamma": 0.9})
    tuned = make_retraining("warm_start=[{lr: 1e-3}]", warm_starts=starts)
    assert dict(tuned.baseline().params) == {"lr": 1e-3, "gamma": 0.9}
    assert dict(make_retraining("warm_start=[]", warm_starts=starts[1:]).baseline().params) == starts[1]


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
    for number, params, cost in ((0, retraining.baseline().params, 90.0), (1, {"lr": 5e-4}, 9.0)):
        ledger.trials.add(params, [number], drawn={})
        ledger.trials.add_report(Report(number, 1000, 9.0 - number), {"checkpoint": saved}, train_s=cost)
        ledger.trials.end(number, "COMPLETE", "whole budget")
    while run := retraining.propose(True):
        ledger.runs.add_report(Report(run.number, 1000, 9.0), {"checkpoint": saved}, train_s=30.0)
        ledger.runs.end(run.number, "COMPLETE", "whole budget", returns=(9.0,))
    _, found = retraining.judge(ledger.trials.records())
    assert found.winner == "trial 1"
    assert [one.broken for one in found.configurations if one.name == "baseline"] == ["train_s=90, not < 60"]


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
    _, found = retraining.judge(ledger.trials.records())
    assert found.winner == ("trial 0" if broken else "baseline"), "the search has judged the trial already"
    (baseline,) = (one for one in found.configurations if one.name == "baseline")
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
