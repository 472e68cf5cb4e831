"""What the journal's file gives back after a kill."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from tracked_sweep import Sweep

from rltune.tracking.journal import JOURNAL, Journal, QueuedOperation, to_plain

pytestmark = pytest.mark.filterwarnings("ignore:.*noload")  # SQLAlchemy about MLflow


def test_damaged_lines_are_put_aside_and_the_rest_is_sent(folder):
    sweep = Sweep(folder, "http://127.0.0.1:9", "damaged").begin(trials=1).reports([1, 2, 3], trials=1)
    assert not sweep.tracker.close("KILLED", timeout_s=0.1)
    journal = sweep.spool_dir / "reports.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    assert len(lines) == 8
    lines[5] = lines[5].replace('"objective": 2', '"objective": 7')  # a flipped bit
    journal.write_text("".join(lines)[:-20])  # and a line cut short
    after = Sweep(folder, None, "damaged").settle()
    after.wait_for("2 damaged lines")
    assert after.tracker.close("FINISHED")
    assert after.steps("trial-000") == [1, 3]
    assert len((sweep.spool_dir / "reports.damaged").read_text().splitlines()) == 2


def test_what_was_appended_is_read_back_until_it_was_sent(tmp_path):
    journal = Journal(tmp_path)
    assert journal.open() == ([], 0)
    ops = [{"op": "report", "trial": 1, "step": step} for step in range(3)]
    kept = [QueuedOperation(op, journal.append(op)) for op in ops]
    journal.strike_out(kept[:1], empty=False)
    journal.close(empty=False)  # a kill, as far as the file is concerned
    unsent, num_damaged = (again := Journal(tmp_path)).open()
    assert ([one.op for one in unsent], num_damaged) == (ops[1:], 0)
    again.strike_out(unsent, empty=True)
    again.close(empty=True)
    assert list(tmp_path.iterdir()) == []


def test_a_line_after_one_cut_short_stands_by_itself(tmp_path):
    (tmp_path / JOURNAL).write_text('{"crc": 1, "op": {"op": "re')
    journal = Journal(tmp_path)
    assert journal.open() == ([], 1)
    journal.append({"op": "progress", "trial": None})
    journal.close(empty=False)
    unsent, num_damaged = Journal(tmp_path).open()
    assert ([one.op for one in unsent], num_damaged) == ([{"op": "progress", "trial": None}], 0)


def test_a_closed_journal_keeps_nothing(tmp_path):
    assert Journal(tmp_path).append({"op": "report"}) is None


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (True, True),
        (math.nan, "nan"),
        (math.inf, "inf"),
        (np.float32(0.5), 0.5),
        ({1: (Path("a"), None)}, {"1": ["a", None]}),
        ("http://me:hunter2@db/x", "http://***@db/x"),
    ],
)
def test_values_are_kept_as_json_gives_them_back(value, plain):
    assert to_plain(value) == plain
    assert json.loads(json.dumps(to_plain(value))) == plain


def test_reports_of_one_trial_may_join_and_nothing_else():
    first = QueuedOperation({"op": "report", "trial": 1})
    assert first.can_join(first)
    for op in ({"op": "report", "trial": 2}, {"op": "progress", "trial": 1}, {"op": "end", "trial": 1}):
        assert not QueuedOperation(op).can_join(first)
    end = QueuedOperation({"op": "end", "trial": 1})
    assert not end.can_join(end)
