"""A ledger fed to a book: killed, put back, with a book that fails."""

from __future__ import annotations

import threading
import time

from rltune.envs.objective import Shown
from rltune.records import CERTIFY, TRIALS, Report, RunKey
from rltune.study.ledger import Ledger
from rltune.tracking.ledger_feed import FedTracker


class Notebook:
    """A book that remembers; what it remembers outlives a driver."""

    name = "notebook"

    def __init__(self):
        self.points, self.ends, self.told, self.num_cleared, self.away = [], [], [], 0, False
        self.fails = threading.Event()  # it has been waited for long enough

    def open(self, sweep, key, params):
        self.params = params

    def clear(self):
        self.num_cleared += 1

    def write(self, record, reports):
        if self.away:
            self.fails.wait(30)
            raise ConnectionError("http://me:s3cret@host is away")
        self.points += [(record.run_key.name, report.nominal_steps) for report in reports]

    def end(self, record):
        self.ends.append(record.run_key.name)

    def describe(self, key, metrics):
        self.told.append((key, metrics))

    def close(self):
        pass


def open_sweep(folder, book):
    path = folder / "ledger.db"
    ledger = Ledger(f"sqlite:///{path}", "first", create=not path.exists())
    tracker = FedTracker(book, ledger, folder / "marks.json")
    tracker.start(params={"algo": "ppo"}, tags={}, texts={})
    return ledger, tracker


def report(ledger, number, step, kind=TRIALS):
    ledger.table(kind).add_report(Report(number, step, 1.0, {"objective": 1.0}))


def test_a_resumed_sweep_sends_what_is_new(tmp_path, monkeypatch):
    monkeypatch.setattr("rltune.tracking.ledger_feed.MAX_REPORTS", 2)
    book = Notebook()
    ledger, tracker = open_sweep(tmp_path, book)
    for _ in range(2):
        ledger.trials.add({"lr": 0.25}, [7])
    for step in (1, 2, 3):
        report(ledger, 0, step)
    ledger.trials.interrupt(0)
    assert tracker.close("KILLED")
    ledger, tracker = open_sweep(tmp_path, book)
    ledger.trials.start(0)
    report(ledger, 0, 4)
    ledger.trials.end(0, "PRUNED", "weak")
    ledger.runs.add({"lr": 0.25}, [9], key="k", of_trial=0, seed_index=0)
    report(ledger, 0, 4, CERTIFY)
    tracker.describe(RunKey(0), {"certified_score": 5.0}, {})
    assert tracker.close("FINISHED")
    assert book.points == [("trial-000", step) for step in (1, 2, 3, 4)] + [("trial-000-seed-1", 4)]
    assert (book.ends, book.told) == (["trial-000"], [(RunKey(0), {"certified_score": 5.0})])
    assert (book.params, tracker.warnings()) == ({"algo": "ppo"}, [])


def test_a_ledger_put_back_to_an_older_state_begins_anew(tmp_path):
    book = Notebook()
    ledger, tracker = open_sweep(tmp_path, book)
    ledger.trials.add({"lr": 0.25}, [7])
    for step in (1, 2):
        report(ledger, 0, step)
    assert tracker.close("KILLED")
    ledger.close()
    (tmp_path / "ledger.db").unlink()
    ledger, tracker = open_sweep(tmp_path, book)
    ledger.trials.add({"lr": 0.25}, [7])
    report(ledger, 0, 1)
    assert tracker.close("KILLED")
    assert book.num_cleared == 1
    assert book.points[2:] == [("trial-000", 1)]


def test_a_book_that_is_away_says_so_once_and_loses_nothing(tmp_path):
    book = Notebook()
    book.away = True
    ledger, tracker = open_sweep(tmp_path, book)
    ledger.trials.add({"lr": 0.25}, [7])
    report(ledger, 0, 1)
    began = time.perf_counter()
    tracker.wake()
    assert time.perf_counter() - began < 10, "nobody waits for a book"
    book.fails.set()
    assert tracker.close("KILLED")
    (warning,) = tracker.warnings()
    assert "notebook" in warning
    assert "ConnectionError" in warning
    assert "s3cret" not in warning
    book.away = False
    ledger, tracker = open_sweep(tmp_path, book)
    assert tracker.close("FINISHED")
    assert book.points == [("trial-000", 1)]


def test_a_book_has_costs_as_the_person_knows_them(tmp_path):
    seen = []

    class Scores(Notebook):
        def write(self, record, reports):
            seen.extend(report.numbers for report in reports)

        def end(self, record):
            seen.append(record.score)

    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}", "first", create=True)
    tracker = FedTracker(Scores(), ledger, tmp_path / "marks.json", Shown("energy", is_cost=True))
    tracker.start(params={}, tags={}, texts={})
    ledger.trials.add({"lr": 0.25}, [7])
    ledger.trials.add_report(Report(0, 1, -1.5, {"objective": -1.5, "return": 3.0}))
    ledger.trials.end(0, "COMPLETE", "")
    assert tracker.close("FINISHED")
    assert seen == [{"objective": 1.5, "return": 3.0}, 1.5]
