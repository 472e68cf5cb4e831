"""A sweep's rows at one moment, and what a second reading takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ledger import add_reports, make_ledger
from sqlalchemy import event

from rltune.ledger.ledger import Ledger
from rltune.ledger.snapshot import LedgerSnapshot, read_snapshots
from rltune.records import Report


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """Three sweeps in one file: the ledger of the first, which has three ended trials and a running one."""
    first = make_ledger(tmp_path)
    for number in range(4):
        first.trials.start(first.trials.add({"lr": 1e-3}, [1]).number)
        add_reports(first, number, {100: 1.0, 200: 2.0})
        if number < 3:
            first.trials.end(number, "COMPLETE", "whole budget")
    for name in ("other", "third"):
        other = Ledger(first.url, name, create=True)
        other.trials.add({"lr": 1e-3}, [1])
        add_reports(other, 0, {100: 5.0})
        other.close()
    yield first
    first.close()


def count_statements(ledger: Ledger, read: Callable[[], Any]) -> int:
    statements: list[str] = []
    listener = (ledger.fence.engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    event.listen(*listener)
    read()
    event.remove(*listener)
    return len(statements)


def test_each_sweep_has_its_own_rows(ledger: Ledger) -> None:
    snapshots = read_snapshots(ledger.fence.engine, [1, 2, 3, 99])
    assert [snapshot.record.name for snapshot in snapshots.values()] == ["sweep", "other", "third"]
    assert [len(snapshot.trials) for snapshot in snapshots.values()] == [4, 1, 1]
    assert [snapshot.last_report for snapshot in snapshots.values()] == [8, 9, 10]
    assert list(snapshots[1].trials.values()) == ledger.trials.records()
    assert snapshots[2].reports[0].score == 5.0


def test_several_sweeps_take_as_many_queries_as_one(ledger: Ledger) -> None:
    first = read_snapshots(ledger.fence.engine, [1, 2, 3])
    for earlier in ({}, first):
        single = count_statements(ledger, partial(read_snapshots, ledger.fence.engine, [1], earlier))
        assert count_statements(ledger, partial(read_snapshots, ledger.fence.engine, [1, 2, 3], earlier)) == single


def test_ended_trials_are_not_read_again(ledger: Ledger) -> None:
    first = read_snapshots(ledger.fence.engine, [1])
    add_reports(ledger, 3, {300: 3.0})
    second = read_snapshots(ledger.fence.engine, [1], first)[1]
    rows = list(second.trials)
    assert [second.trials[row] is first[1].trials[row] for row in rows] == [True, True, True, False]
    assert dict(second.trials[rows[-1]].reports) == {100: 1.0, 200: 2.0, 300: 3.0}
    assert second.last_report == 11
    assert list(first[1].trials[rows[-1]].reports) == [100, 200], "an earlier snapshot keeps its values"


def test_of_each_report_the_own_metrics_are_read(ledger: Ledger) -> None:
    """Also those of an earlier report of a trial whose newest has none, and those that came since."""
    numbers: dict[str, float] = {"score": 3.0, "train_s": 1.0, "episode/a": 0.25, "episodes_with/a": 2}
    ledger.trials.add_report(Report(3, 300, 3.0, numbers))
    add_reports(ledger, 3, {400: 4.0})
    first = read_snapshots(ledger.fence.engine, [1])
    assert [dict(report.numbers) for report in first[1].reports[-3:]] == [{}, {"episode/a": 0.25}, {}]
    ledger.trials.add_report(Report(3, 500, 3.0, numbers | {"episode/a": 1.0}))
    second = read_snapshots(ledger.fence.engine, [1], first)[1]
    assert [dict(report.numbers) for report in second.reports[-2:]] == [{}, {"episode/a": 1.0}]


@pytest.mark.parametrize("is_first", [True, False])
def test_what_is_written_during_a_reading_is_in_the_next(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    """A trial begins and reports after the list of trials was read, and a trial that was in the list reports, too."""
    engine = ledger.fence.engine
    first: dict[int, LedgerSnapshot] = {} if is_first else read_snapshots(engine, [1])
    read_trials = "rltune.ledger.snapshot._read_trials"
    from rltune.ledger import snapshot

    original = snapshot._read_trials

    def read_late(*args: Any) -> Any:
        monkeypatch.setattr(read_trials, original)
        ledger.trials.add({"lr": 1e-3}, [1])
        add_reports(ledger, 4, {100: 7.0})
        add_reports(ledger, 3, {300: 3.0})
        return original(*args)

    monkeypatch.setattr(read_trials, read_late)
    second = read_snapshots(engine, [1], first)
    assert (len(second[1].trials), second[1].last_report) == (4, 8)
    third = read_snapshots(engine, [1], second)[1]
    assert [dict(trial.reports) for trial in third.trials.values()][3:] == [{100: 1.0, 200: 2.0, 300: 3.0}, {100: 7.0}]
    assert sorted((report.number, report.nominal_steps) for report in third.reports[-2:]) == [(3, 300), (4, 100)]
    assert third == read_snapshots(engine, [1], {1: third})[1]
