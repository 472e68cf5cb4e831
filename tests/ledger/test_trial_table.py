"""Trials in the ledger: whole or not at all, exact, and closed when they have ended."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from ledger import SPACE, add_reports, ask, make_ledger
from sqlalchemy import event
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.exc import OperationalError

from rltune.config.criteria import Criteria, parse_constraints
from rltune.errors import StudyError
from rltune.ledger.ledger import Ledger
from rltune.records import CheckpointRecord, Report, TrialRecord

BEST = CheckpointRecord("trials/0/best-100", 100, 1.5, "ab", 1e9)
LATEST = CheckpointRecord("trials/0/latest-150", 150, None, "cd", 1e9)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    made = make_ledger(tmp_path)
    yield made
    made.close()


@pytest.fixture
def read(ledger: Ledger) -> Iterator[Callable[[], list[TrialRecord]]]:
    """Read all trials as another process does."""
    other = Ledger(ledger.url, "sweep")
    yield lambda: other.trials.records()
    other.close()


def test_a_trial_is_read_as_of_one_moment(ledger: Ledger) -> None:
    ledger.trials.start(ledger.trials.add({"lr": 0.1}, [3]).number)
    ledger.trials.add_report(Report(0, 100, 1.0, {"loss": 1.0}))
    other = Ledger(ledger.url, "sweep")
    num_readings = 0

    def add_between(*given: Any) -> None:
        nonlocal num_readings
        if "reports" in given[2]:  # The rows of the trials have been read already.
            num_readings += 1
            number = ledger.trials.add({"lr": 0.2}, [3]).number
            ledger.trials.start(number)
            ledger.trials.add_report(Report(number, 100, 2.0, {"loss": 2.0}))
            ledger.trials.add_report(Report(0, 100 + num_readings, 3.0, {"loss": 3.0}))

    listener = (other.fence.engine, "before_cursor_execute", add_between)
    event.listen(*listener)
    records = other.trials.records()
    event.remove(*listener)
    other.close()
    assert [(dict(record.reports), dict(record.numbers)) for record in records] == [({100: 1.0}, {"loss": 1.0})]
    assert num_readings == 2


def test_every_field_of_a_trial_reads_as_it_was_written(ledger: Ledger, read: Any) -> None:
    params = {"lr": 0.1, "layers": [64, 64], "use": True, "name": None}
    begun = ledger.trials.add(params, [3, 4], drawn={"lr": 0.1, "layers": "[64, 64]"})
    assert abs((begun.began_s or 0) - time.time()) < 60
    ledger.trials.start(0)
    report = Report(0, 100, 1.5, {"score": 1.5, "loss": 0.25}, time_s=1e9)
    ledger.trials.add_report(report, {"checkpoint": BEST, "latest": LATEST}, train_s=2.5, node="a-host")
    ledger.trials.set_mlflow_run(0, "run0")
    ended = ledger.trials.end(0, "FAIL", "it broke", traceback="Traceback ...", log="trials/0/failure.txt")
    (record,) = read()
    assert record == ended
    assert record == TrialRecord(
        0, "FAIL", params, {100: 1.5}, drawn={"lr": 0.1, "layers": "[64, 64]"}, seeds=(3, 4), env_steps=100,
        train_s=2.5, node="a-host", stop_reason="it broke", traceback="Traceback ...", log="trials/0/failure.txt",
        checkpoint=BEST, latest=LATEST, mlflow_run_id="run0", began_s=begun.began_s, ended_s=record.ended_s,
        numbers={"score": 1.5, "loss": 0.25},
    )  # fmt: skip
    assert (record.ended_s or 0) >= (record.began_s or 0)
    assert ledger.trials.read_reports(0) == [report]


def test_every_field_of_a_certification_run_does_too(ledger: Ledger) -> None:
    ledger.runs.add({}, [11], key="k", of_trial=7, seed_index=2)
    ledger.runs.end(0, "COMPLETE", "whole budget", returns=(1.0, 2.0))
    (run,) = Ledger(ledger.url, "sweep").runs.records()
    assert (run.key, run.of_trial, run.seed_index, run.returns, run.score) == ("k", 7, 2, (1.0, 2.0), 1.5)
    assert (run.seeds, run.drawn, run.run_key.name) == ((11,), None, "trial-007-seed-3")


@pytest.mark.parametrize("diverged", [False, True])
def test_a_stopped_trial_keeps_its_reports_and_says_why(ledger: Ledger, read: Any, diverged: bool) -> None:
    ask(ledger)
    add_reports(ledger, 0, {100: 9.0, 200: 4.0})
    ledger.trials.end(0, "PRUNED", "unpromising", diverged=diverged)
    (record,) = read()
    assert (record.state, record.score, record.env_steps, record.diverged) == ("PRUNED", 4.0, 200, diverged)
    assert record.stop_reason == "unpromising"


def test_a_sampled_value_is_exactly_the_value_that_is_read(ledger: Ledger, read: Any) -> None:
    sampled = [ask(ledger)[1] for _ in range(10)]
    assert [dict(record.params) for record in read()] == sampled
    assert [SPACE.decode(record.drawn) for record in read()] == sampled


@pytest.mark.parametrize("value", [math.inf, -math.inf, "a\0b", "caf\udce9"], ids=repr)
def test_values_that_are_rare_but_can_be_searched_are_kept(ledger: Ledger, read: Any, value: Any) -> None:
    ledger.trials.add({"grad_clip": value}, [0], drawn={"grad_clip": value})
    assert [record.params["grad_clip"] for record in read()] == [value]


def test_a_reason_with_signs_that_no_database_takes_is_kept(ledger: Ledger, read: Any) -> None:
    ask(ledger)
    ledger.trials.end(0, "FAIL", "caf\udce9", traceback="a byte \0")
    (record,) = read()
    assert (record.stop_reason, record.traceback) == (r"caf\udce9", r"a byte \0")


def test_one_trial_read_alone_is_the_same_as_among_all(ledger: Ledger) -> None:
    for _ in range(3):
        add_reports(ledger, ask(ledger)[0], {100: 1.0, 300: math.inf})
    ledger.trials.end(1, "COMPLETE", "whole budget")
    assert [ledger.trials.record(number) for number in range(3)] == ledger.trials.records()
    assert ledger.trials.records([2, 0]) == [ledger.trials.record(0), ledger.trials.record(2)]


def test_a_running_trial_reads_the_same_here_and_in_the_file(ledger: Ledger, read: Any) -> None:
    ask(ledger)
    ledger.trials.record(0)  # from here on this driver remembers it
    add_reports(ledger, 0, {100: math.nan, 200: 2.0})
    ledger.trials.change(0, checkpoint=BEST, params={"lr": 1e-3})
    ledger.trials.set_mlflow_run(0, "run0")
    ledger.trials.interrupt(0, train_s=3.0)
    (there,) = read()
    assert repr(there) == repr(ledger.trials.record(0))
    assert (there.state, there.stop_reason, there.mlflow_run_id) == ("RUNNING", "interrupted", "run0")
    assert ledger.trials.start(0).stop_reason is None
    assert repr(read()[0]) == repr(ledger.trials.record(0))


def test_what_a_caller_does_to_a_record_stays_the_callers(ledger: Ledger) -> None:
    ask(ledger)
    add_reports(ledger, 0, {100: 1.0})
    mine: Any = ledger.trials.record(0).reports
    mine[200] = 99.0
    assert dict(ledger.trials.record(0).reports) == {100: 1.0}


def test_numbers_go_on_where_an_earlier_driver_stopped(ledger: Ledger) -> None:
    for _ in range(3):
        ask(ledger)
    again = Ledger(ledger.url, "sweep")
    assert again.trials.num_trials == 3
    assert ask(again)[0] == 3
    assert again.trials.add_report(Report(1, 50, 2.0))
    assert again.trials.end(1, "COMPLETE", "whole budget").score == 2.0
    again.close()


# -- reports -------------------------------------------------------------------------------------------------------


def test_a_report_and_its_checkpoint_are_kept_together_or_not(ledger: Ledger, read: Any) -> None:
    ask(ledger)
    ledger.trials.add_report(Report(0, 100, 1.0), {"checkpoint": BEST})
    for torn in ({"checkpoint": object()}, {"checkpiont": BEST}):
        with pytest.raises(Exception, match=r"serializable|checkpiont"):
            ledger.trials.add_report(Report(0, 200, 2.0), torn)
    with pytest.raises(Exception, match="JSON serializable"):  # the report's own part is torn
        ledger.trials.add_report(Report(0, 200, 2.0, {"loss": Fraction(1, 3)}), {"checkpoint": LATEST})
    for record in (ledger.trials.record(0), read()[0]):
        assert (dict(record.reports), record.checkpoint, record.env_steps) == ({100: 1.0}, BEST, 100)
    assert ledger.trials.add_report(Report(0, 200, 2.0), {"latest": LATEST})
    assert repr(read()[0]) == repr(ledger.trials.record(0))


@pytest.mark.parametrize("env_steps", [50, 100])
def test_steps_that_are_trained_again_keep_the_first_report(ledger: Ledger, read: Any, env_steps: int) -> None:
    ask(ledger)
    assert ledger.trials.add_report(Report(0, 100, 1.0))
    assert not ledger.trials.add_report(Report(0, env_steps, 2.0), {"latest": LATEST}, train_s=9.0)
    (record,) = read()
    assert (dict(record.reports), record.env_steps) == ({100: 1.0}, 100)
    assert (record.latest, record.train_s) == (LATEST, 9.0), "the checkpoint and the costs are new"


@pytest.mark.parametrize("objective", [math.nan, math.inf, -math.inf])
def test_a_report_that_is_not_finite_does_not_count(ledger: Ledger, read: Any, objective: float) -> None:
    ask(ledger)
    ledger.trials.add_report(Report(0, 100, objective, {"score": objective, "loss": 1.0}))
    for record in (ledger.trials.record(0), *read()):
        assert repr(dict(record.reports)) == repr({100: objective})
        assert record.score is None
    (report,) = ledger.trials.read_reports(0)
    assert (repr(report.score), report.numbers) == (repr(objective), {"loss": 1.0})
    add_reports(ledger, 0, {200: -3.0})
    assert read()[0].score == -3.0


def test_curves_are_read_in_the_order_in_which_reports_came(ledger: Ledger) -> None:
    for _ in range(2):
        ask(ledger)
    ledger.runs.add({}, [1])
    ledger.runs.add_report(Report(0, 50, 0.0))
    for number, env_steps in ((1, 100), (0, 100), (1, 200)):
        ledger.trials.add_report(Report(number, env_steps, float(number), {"loss": 1.0}, time_s=float(env_steps)))
    assert ledger.trials.read_curves() == [
        Report(1, 100, 1.0, {}, 100.0),
        Report(0, 100, 0.0, {}, 100.0),
        Report(1, 200, 1.0, {}, 200.0),
    ]


def test_a_report_without_a_time_gets_that_of_its_arrival(ledger: Ledger) -> None:
    ask(ledger)
    ledger.trials.add_report(Report(0, 100, 1.0))
    assert abs(ledger.trials.read_reports(0)[0].time_s - time.time()) < 60


def test_a_commit_whose_answer_was_lost_is_seen(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that remembers an older checkpoint than the ledger names would drop the one that it names."""
    ask(ledger)
    add_reports(ledger, 0, {100: 1.0})
    commit = DefaultDialect.do_commit

    def lose_answer(dialect: Any, connection: Any) -> None:
        commit(dialect, connection)
        raise OperationalError(None, None, Exception("the connection is lost"))

    monkeypatch.setattr(DefaultDialect, "do_commit", lose_answer)
    with pytest.raises(OperationalError):
        ledger.trials.add_report(Report(0, 200, 2.0), {"latest": LATEST})
    monkeypatch.undo()
    record = ledger.trials.record(0)
    assert (dict(record.reports), record.latest) == ({100: 1.0, 200: 2.0}, LATEST)


@pytest.mark.parametrize("is_committed", [False, True])
def test_a_report_outlives_its_connection(ledger: Ledger, monkeypatch: pytest.MonkeyPatch, is_committed: bool) -> None:
    """As when PostgreSQL is restarted before a commit, or before its answer."""
    ask(ledger)
    commit, commits = DefaultDialect.do_commit, iter([is_committed])

    def lose_first_connection(dialect: Any, connection: Any) -> None:
        is_lost = (reaches := next(commits, None)) is not None
        if reaches or not is_lost:
            commit(dialect, connection)
        if is_lost:
            raise OperationalError(None, None, Exception("the connection is lost"), connection_invalidated=True)

    monkeypatch.setattr(DefaultDialect, "do_commit", lose_first_connection)
    ledger.trials.add_report(Report(0, 200, 2.0), {"latest": LATEST})
    monkeypatch.undo()
    record = ledger.trials.record(0)
    assert (dict(record.reports), record.latest) == ({200: 2.0}, LATEST)


# -- the end -------------------------------------------------------------------------------------------------------


def change(table: Any) -> None:
    table.change(0, node="there")


def report(table: Any) -> None:
    table.add_report(Report(0, 100, 1.0))


def start(table: Any) -> None:
    table.start(0)


def interrupt(table: Any) -> None:
    table.interrupt(0)


def end(table: Any) -> None:
    table.end(0, "COMPLETE", "whole budget")


@pytest.mark.parametrize("late", [change, report, start, interrupt, end])
def test_an_ended_trial_takes_nothing_more(ledger: Ledger, read: Any, late: Callable[[Any], None]) -> None:
    ask(ledger)
    other = Ledger(ledger.url, "sweep")
    other.trials.record(0)  # remembers it as running
    ended = ledger.trials.end(0, "FAIL", "it broke", node="here")
    for table in (ledger.trials, other.trials):
        with pytest.raises(StudyError, match="trial 0"):
            late(table)
    assert read() == [ended] == [ledger.trials.record(0)]
    other.close()


def test_an_ended_trial_still_takes_its_mlflow_run(ledger: Ledger, read: Any) -> None:
    ask(ledger)
    ledger.trials.end(0, "COMPLETE", "whole budget")
    ledger.trials.set_mlflow_run(0, "run0")
    assert [one.mlflow_run_id for one in (ledger.trials.record(0), *read())] == ["run0"] * 2


def test_a_field_that_no_trial_has_is_refused(ledger: Ledger) -> None:
    ask(ledger)
    for field, write in (
        ("place", lambda: ledger.trials.change(0, place=1)),
        ("value", lambda: ledger.trials.end(0, "COMPLETE", "whole budget", value=1.0)),
        ("name", lambda: ledger.trials.add({}, [1], name="mine")),
    ):
        with pytest.raises(TypeError, match=rf"\b{field}$"):
            write()
    assert [record.state for record in ledger.trials.records()] == ["RUNNING"]


def test_runs_are_forgotten_while_the_driver_adds_trials(ledger, monkeypatch):
    ask(ledger)
    ask(ledger)
    ledger.trials.set_mlflow_run(0, "gone")

    def replace_meanwhile(record: TrialRecord, **facts: Any) -> TrialRecord:
        monkeypatch.setattr("rltune.ledger.trial_table.replace", dataclasses.replace)
        ask(ledger)
        return dataclasses.replace(record, **facts)

    monkeypatch.setattr("rltune.ledger.trial_table.replace", replace_meanwhile)
    ledger.forget_mlflow("a")
    assert ledger.trials.record(0).mlflow_run_id is None
    assert ledger.trials.end(2, "FAIL", "done").number == 2


def test_trials_are_judged_whenever_they_are_read(ledger: Ledger) -> None:
    """By a driver that trains, by one that goes on with the sweep, and by who looks at it."""
    criteria = Criteria(parse_constraints({"train_s": "< 60", "loss": "< 1"}), "loss", "min", env_steps=100)
    ledger.judge_by(criteria)
    for number in range(2):
        ledger.trials.add({}, [number])
        ledger.trials.add_report(Report(number, 50, 1.0, {"loss": 9.0}), train_s=20.0)
    assert [check.value for check in ledger.trials.record(0).checks] == [40.0, 9.0], "of the whole budget"
    ledger.trials.add_report(Report(0, 100, 1.0, {"loss": 0.5}), train_s=70.0)
    ended = ledger.trials.end(0, "COMPLETE", "whole budget")
    assert (list(map(str, ended.broken)), ended.second) == (["train_s=70, not < 60"], 0.5)
    with closing(Ledger(ledger.url, "sweep").judge_by(criteria)) as again:
        assert again.trials.records() == [ended, ledger.trials.record(1)]
        again.trials.add_report(Report(1, 100, 1.0, {"loss": 0.1}), train_s=30.0)
        assert not again.trials.record(1).broken, "the newest numbers count"
        assert again.trials.record(1) == again.trials.records([1])[0]
    assert [one.checks for one in Ledger(ledger.url, "sweep").trials.records()] == [(), ()], "nothing of it is stored"


def test_a_replaced_checkpoint_is_delivered_again(ledger: Ledger, read: Callable[[], list[TrialRecord]]) -> None:
    """Also of a trial that has ended, and to a tracker that has the one before."""
    ledger.trials.add({}, [0])
    ledger.trials.add_report(Report(0, 100, 1.5), {"checkpoint": BEST})
    ledger.trials.end(0, "COMPLETE", "done")
    (pending,) = ledger.read_pending_trials("mlflow", with_checkpoints=True)
    ledger.mark_trial("mlflow", "trials", 0, revision=pending.revision, checkpoint=BEST.path)
    assert ledger.read_pending_trials("mlflow", with_checkpoints=True) == []
    other = dataclasses.replace(BEST, path="trials/0/best-100-2", digest="ef")
    ledger.trials.replace_checkpoint(0, other)
    assert read()[0].checkpoint == other
    (pending,) = ledger.read_pending_trials("mlflow", with_checkpoints=True)
    assert pending.checkpoint is None
