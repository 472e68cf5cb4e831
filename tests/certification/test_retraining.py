"""Which runs a certification wants, in which order, and what it takes for done."""

from __future__ import annotations

import pytest

from rltune.certification.retraining import Retraining

SEEDS = (11, 12, 13)


@pytest.fixture
def make_retraining(tmp_path, request_of):
    opened = []

    def make(*overrides, warm_starts=({"lr": 1e-3},), seeds=SEEDS):
        config = request_of("certify.top=2", *overrides)
        opened.append(Retraining(tmp_path, config, seeds, warm_starts, lambda record: None))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


def test_nothing_is_on_disk_before_the_first_run(make_retraining, tmp_path):
    retraining = make_retraining()
    assert retraining.runs() == []
    assert list(tmp_path.iterdir()) == []


def test_before_the_search_has_ended_the_baseline_begins(make_retraining):
    retraining = make_retraining()
    runs = [retraining.propose(None) for _ in range(4)]
    assert [run.seeds for run in runs if run] == [(11,), (12,), (13,)], "each seed once"
    assert runs[3] is None


def test_the_baseline_is_the_tuned_settings_over_the_files_own(make_retraining):
    starts = ({"lr": 1e-3}, {"lr": 5e-5, "gamma": 0.9})
    tuned = make_retraining("warm_start=[{lr: 1e-3}]", warm_starts=starts)
    assert dict(tuned.baseline().params) == {"lr": 1e-3, "gamma": 0.9}
    assert dict(make_retraining("warm_start=[]", warm_starts=starts[1:]).baseline().params) == starts[1]


def test_a_run_that_went_wrong_comes_first_again(make_retraining):
    retraining = make_retraining()
    first, second = retraining.propose(None), retraining.propose(None)
    retraining.retry(first)
    assert retraining.propose(None) is first
    assert second.seeds == (12,)


def test_a_resumed_certification_repeats_no_ended_run(make_retraining):
    before = make_retraining()
    done = before.propose(None)
    before.study.report(done.number, 1000, 5.0)
    before.study.finish(done.number, "COMPLETE", 5.0, "whole budget")
    begun = before.propose(None)
    before.close()
    after = make_retraining()
    run = after.propose(None)
    assert (run.number, run.seeds) == (begun.number, (12,)), "the unfinished one goes on under its number"
    assert after.propose(None).seeds == (13,)


def test_a_search_without_a_finalist_has_nothing_to_certify(make_retraining):
    retraining = make_retraining()
    assert retraining.propose([]) is None
    assert retraining.judge([]) is None
