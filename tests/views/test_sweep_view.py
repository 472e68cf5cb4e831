"""A sweep at one moment, as every display reads it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from composing import compose
from ended import make_certification, write_bounded, write_cost_sweep, write_sweep
from ledger import make_ledger

from rltune.config.settings_file import format_settings, redact_config
from rltune.config.validation import parse_config
from rltune.ledger.lease import take_lease
from rltune.ledger.ledger import Ledger
from rltune.ledger.storage import open_ledger
from rltune.records import CERTIFY, TRIALS, Report, SweepRequest
from rltune.views.description import describe
from rltune.views.progress import describe_progress
from rltune.views.sweep_view import DriverState, SweepView

MakeLedger = Callable[..., Ledger]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[MakeLedger]:
    """A running sweep of eight trials of 1,000 steps, and its ledger."""
    opened = []

    def build(*overrides: str, name: str = "mine") -> Ledger:
        folder = tmp_path / name
        folder.mkdir()
        words = ("budget.trials=8", "budget.env_steps=1000", "certify=off", *overrides)
        ledger = make_ledger(folder, name)
        opened.append(ledger)
        ledger.change_sweep(
            status="running", config=format_settings(redact_config(parse_config(compose("run", *words))))
        )
        return ledger

    yield build
    for ledger in opened:
        ledger.close()


def begin(ledger: Ledger, kind: str = TRIALS, **facts: Any) -> int:
    table = ledger.table(kind)
    return table.start(table.add({"lr": 1e-3}, [1], **facts).number).number


def report(ledger: Ledger, number: int, *marks: int, objective: float = 7.0, kind: str = TRIALS, **facts: Any) -> None:
    for mark in marks:
        ledger.table(kind).add_report(Report(number, mark, objective, {"score": objective}, time_s=1.0), **facts)


def test_a_view_has_what_the_ledger_has(tmp_path: Path) -> None:
    with closing(open_ledger(write_sweep(tmp_path / "s", 12, make_certification()))) as ledger:
        view = SweepView.read(ledger)
        assert [trial.record for trial in view.trials] == ledger.trials.records()
        # As text, in which NaN equals NaN.
        assert repr(list(view.reports)) == repr(ledger.trials.read_curves())
        assert view.record == ledger.sweep()
    assert (view.name, view.status, view.percent, view.env_steps) == ("s", "complete", 100, 1000)
    assert view.counts["complete"] == view.counts["pruned"] == 6
    assert view.best is not None
    assert view.best.number == 11
    assert view.certification is not None
    assert [each.name for each in view.certification.configurations] == ["trial 3", "baseline"]


def test_a_sweep_that_goes_on_has_no_winner_until_it_ends(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "s", 2, None, "interrupted")
    with closing(open_ledger(sweep)) as ledger:
        checkpoint = "trials/0/first/best-000000000400"
        ledger.change_sweep(winner={"trial": 0, "params": {}, "objective": 1.829, "checkpoint": checkpoint})
        ended = describe(SweepView.read(ledger))
        assert (ended["winner"]["trial"], "1.829" in ended["verdict"]) == (0, True)
        with take_lease(ledger):
            view = SweepView.read(ledger)
            now = describe(view)
            assert (now["winner"], now["best"]["trial"], view.winner_trial) == (None, 1, None)
            assert view.best_params == now["best"]["params"]
            assert ("Trial 1 " in now["verdict"], "1.829" in now["verdict"]) == (True, False)
        ledger.change_sweep(status="complete")
        assert describe(SweepView.read(ledger))["winner"]["trial"] == 0


def test_values_have_their_natural_sign(tmp_path: Path) -> None:
    with closing(open_ledger(write_cost_sweep(tmp_path / "s"))) as ledger:
        view = SweepView.read(ledger)
    assert [trial.number for trial in view.ranked] == [3, 2, 1, 0], "less energy is better"
    assert [trial.score for trial in view.ranked] == [24.0, 36.0, 48.0, 72.0]
    assert view.trials[0].curve[200] == view.trials[0].score == 72.0
    assert view.certification is not None
    assert view.certification.best().median == 99.0


def test_trials_are_judged_by_the_sweeps_criteria(tmp_path: Path) -> None:
    with closing(open_ledger(write_bounded(tmp_path / "s"))) as ledger:
        view = SweepView.read(ledger)
    assert [trial.number for trial in view.ranked] == [1, 2]
    assert [bool(trial.broken) for trial in view.trials] == [True, False, False, True]
    assert view.trials[1].second == 50.0


def test_later_reads_follow_every_change(make: MakeLedger) -> None:
    """Whatever has happened, a view made from an earlier one equals one that was read anew."""
    ledger, view = make(), None

    def check() -> SweepView:
        read, fresh = SweepView.read(ledger, view), SweepView.read(ledger)
        # As text, in which NaN equals NaN.
        assert repr((read.trials, read.runs, read.reports)) == repr((fresh.trials, fresh.runs, fresh.reports))
        assert (read.record, read.snapshot.last_report) == (fresh.record, fresh.snapshot.last_report)
        return read

    view = check()
    for number in range(3):
        begin(ledger)
        report(ledger, number, 100)
    view = check()
    report(ledger, 1, 200, objective=math.nan)
    report(ledger, 0, 200)
    ledger.trials.end(0, "COMPLETE", "whole budget")
    view = check()
    ledger.trials.end(1, "FAIL", "it broke")
    begin(ledger, CERTIFY, key="k", seed_index=0)
    view = check()
    report(ledger, 0, 100, kind=CERTIFY)
    ledger.trials.interrupt(2, env_steps=150)
    view = check()
    assert view.trials[2].state == "INTERRUPTED"
    assert view.trials[2].env_steps == 150
    again = SweepRequest(1, "retry", {TRIALS: [1], CERTIFY: []}, 0.0, "maria@host")
    ledger.reopen_failed(again)
    ledger.trials.start(1)
    report(ledger, 1, 300)
    ledger.trials.end(1, "PRUNED", "stopped")  # Between two reads it has failed, was tried again and has ended.
    view = check()
    assert list(view.trials[1].curve) == [100, 200, 300]
    ledger.change_sweep(status="interrupted")
    view = check()
    assert {trial.state for trial in view.trials} == {"COMPLETE", "PRUNED", "INTERRUPTED"}


def test_an_earlier_view_keeps_its_values(make: MakeLedger) -> None:
    ledger = make()
    begin(ledger)
    report(ledger, 0, 100)
    first = SweepView.read(ledger)
    report(ledger, 0, 200)
    assert list(SweepView.read(ledger, first).trials[0].curve) == [100, 200]
    assert list(first.trials[0].curve) == [100]


def test_new_settings_count_from_the_next_read(make: MakeLedger) -> None:
    ledger = make()
    begin(ledger)
    report(ledger, 0, 100)
    view = SweepView.read(ledger)
    words = ("budget.trials=16", "budget.env_steps=1000", '+constraints.objective="> 9"')
    ledger.change_sweep(config=format_settings(redact_config(parse_config(compose("run", *words)))))
    view = SweepView.read(ledger, view)
    assert view.num_trials == 16
    assert view.trials[0].broken


def test_running_trials_count_by_their_steps(make: MakeLedger) -> None:
    ledger = make("budget.trials=4", "replicates=2")
    begin(ledger)
    begin(ledger)
    report(ledger, 0, 1000)
    ledger.trials.end(0, "COMPLETE", "whole budget")
    report(ledger, 1, 500)
    view = SweepView.read(ledger)
    assert (view.percent, view.num_ended, view.num_trials, view.sampled_env_steps) == (37, 1, 4, 3000)
    view = SweepView.read(ledger, driver=DriverState(env_steps={"trials/1": 800}))
    assert (view.percent, view.trials[1].env_steps) == (45, 800)


def test_the_pace_forgets_what_was_before_half_a_minute(make: MakeLedger) -> None:
    ledger = make("budget.env_steps=100000")
    begin(ledger)
    view = SweepView.read(ledger, now_s=0.0)
    for second in range(1, 101):
        steps = second * 1000 if second <= 50 else 50_000 + (second - 50) * 10
        view = SweepView.read(ledger, view, DriverState(env_steps={"trials/0": steps}), now_s=float(second))
    assert view.env_steps_per_s == pytest.approx(10, rel=0.05)
    assert SweepView.read(ledger, view, now_s=200.0).env_steps_per_s < 5


def test_the_start_is_no_part_of_the_pace(make: MakeLedger) -> None:
    ledger = make("budget.env_steps=100000")
    begin(ledger)
    view = SweepView.read(ledger, now_s=0.0)
    for second in range(9):
        driver = DriverState(env_steps={"trials/0": 1000 * (second + 2)})
        view = SweepView.read(ledger, view, driver, now_s=31.0 + second)
    assert view.env_steps_per_s == pytest.approx(1000)


def test_repeated_steps_count_in_the_pace(make: MakeLedger) -> None:
    """An interruption amid an iteration loses steps, which are taken again."""
    ledger = make()
    begin(ledger)
    ledger.trials.interrupt(0, env_steps=384)
    view = SweepView.read(ledger, now_s=0.0)
    ledger.trials.start(0)
    for second in range(17):
        view = SweepView.read(ledger, view, DriverState(env_steps={"trials/0": 5 * second}), now_s=float(second))
    assert view.env_steps_per_s == pytest.approx(5, abs=0.7)
    assert view.trials[0].env_steps == 384


def test_all_seeds_of_a_trial_count_in_the_pace(make: MakeLedger) -> None:
    ledger = make("replicates=2", "budget.env_steps=100000")
    begin(ledger)
    view = SweepView.read(ledger, now_s=0.0)
    for second in range(1, 11):
        view = SweepView.read(ledger, view, DriverState(env_steps={"trials/0": 100 * second}), now_s=float(second))
    assert view.env_steps_per_s == pytest.approx(200, rel=0.3)


def test_the_time_left_is_that_of_the_work_left_at_the_mean_pace(make: MakeLedger) -> None:
    """A trial that was stopped counts as done."""
    ledger = make("budget.trials=10")
    estimates, view = [], SweepView.read(ledger, now_s=0.0)
    for number in range(5):
        begin(ledger)
        report(ledger, number, 100)
        ledger.trials.end(number, "PRUNED", "stopped")
        view = SweepView.read(ledger, view, now_s=9.0 * (number + 1))
        estimates.append(view.search_left_s)
    assert estimates == [None, *map(pytest.approx, (72.0, 63.0, 54.0, 45.0))]


def test_the_time_left_of_a_resumed_sweep_counts_this_sessions_work_alone(make: MakeLedger) -> None:
    ledger = make("budget.trials=4")
    for number in range(2):
        begin(ledger)
        ledger.trials.end(number, "COMPLETE", "whole budget")
    view = SweepView.read(ledger, now_s=0.0)
    begin(ledger)
    ledger.trials.end(2, "COMPLETE", "whole budget")
    assert SweepView.read(ledger, view, now_s=20.0).search_left_s == pytest.approx(20.0)


def test_the_total_of_environment_steps_bounds_the_time_left(make: MakeLedger) -> None:
    ledger = make("budget.trials=10", "budget.total_env_steps=2000")
    view = SweepView.read(ledger, now_s=0.0)
    begin(ledger)
    report(ledger, 0, 1000)
    assert SweepView.read(ledger, view, now_s=20.0).search_left_s == pytest.approx(20.0)


def test_the_time_left_includes_certification(make: MakeLedger) -> None:
    ledger = make("budget.trials=1", "certify=on", "certify.seeds=1", "certify.top=1")
    begin(ledger)
    view = SweepView.read(ledger, now_s=0.0)
    view = SweepView.read(ledger, view, DriverState(env_steps={"trials/0": 600}), now_s=12.0)
    left = view.search_left_s, view.certification_left_s
    assert left == (pytest.approx(8.0), pytest.approx(40.0)), "400 steps of the trial, and two runs of 1,000"
    (_, pace, _) = describe_progress(view)
    assert ("of search" in pace, "of certification" in pace) == (False, True), "seconds are no estimate"
    report(ledger, 0, 1000)
    ledger.trials.end(0, "COMPLETE", "whole budget")
    begin(ledger, CERTIFY, key="k", of_trial=None, seed_index=0)
    report(ledger, 0, 1000, kind=CERTIFY)
    view = SweepView.read(ledger, view, now_s=21.0)
    assert (view.num_runs, view.num_runs_left) == (1, 1), "the trial has the baseline's values"
    ledger.runs.end(0, "COMPLETE", "whole budget", returns=(4.0, 6.0))
    view = SweepView.read(ledger, view, now_s=31.0)
    assert (view.num_runs_left, view.runs[0].score) == (0, 5.0)
    assert (view.search_left_s, view.certification_left_s) == (None, None)


def test_the_most_runs_are_expected_until_the_finalists_are_known(make: MakeLedger) -> None:
    ledger = make("budget.trials=2", "certify=on", "certify.seeds=3", "certify.top=2")
    assert SweepView.read(ledger).num_runs == 9
    for number, lr in enumerate((1e-3, 2e-3)):
        ledger.trials.add({"lr": lr}, [1])
        report(ledger, number, 1000)
        ledger.trials.end(number, "COMPLETE", "whole budget")
    for seed_index in range(3):
        begin(ledger, CERTIFY, key=f"k{seed_index}", seed_index=seed_index)
    view = SweepView.read(ledger)
    assert (view.is_searched, view.num_runs, view.num_runs_ended) == (True, 6, 0)
