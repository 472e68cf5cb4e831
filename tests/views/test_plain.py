"""Sweeps as plain values."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from ended import make_certification, write_cost_sweep, write_sweep

from rltune.ledger.storage import open_ledger
from rltune.ledger.sweep_ref import SweepRef
from rltune.views.plain import describe_plainly, describe_with_trials
from rltune.views.tables import read_sweep


def test_a_sweep_is_described_by_numbers(tmp_path: Path) -> None:
    write_sweep(tmp_path / "first", certified=make_certification())
    view = read_sweep(SweepRef("first", tmp_path))
    sweep = describe_plainly(view)
    unfinished = {"failed": 0, "interrupted": 0, "running": 0}
    assert sweep["trials"] == {"planned": 24, "total": 12, "complete": 6, "stopped": 6, **unfinished}
    assert isinstance(sweep["best"]["score"], float)
    assert (sweep["certified"]["name"], sweep["certified"]["median"]) == ("trial 3", 99.0)
    whole = describe_with_trials(view)
    assert whole["verdict"]
    assert [trial["trial"] for trial in whole["trials_best_first"]] == [trial.number for trial in view.ordered]
    assert len(whole["certification"]["configurations"][0]["scores"]) == 5


def test_running_trials_are_counted_by_themselves(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "first", 2, None, "running")
    with closing(open_ledger(folder)) as ledger:
        numbers = [ledger.trials.add({"lr": 1e-3}, [1]).number for _ in range(3)]
        for number in numbers[:2]:
            ledger.trials.start(number)
        ledger.trials.interrupt(numbers[0])
    counts = describe_plainly(read_sweep(SweepRef("first", tmp_path)))["trials"]
    assert (counts["total"], counts["interrupted"], counts["running"]) == (5, 1, 2), "one of them waits"


def test_costs_keep_their_sign(tmp_path: Path) -> None:
    write_cost_sweep(tmp_path / "cost")
    view = read_sweep(SweepRef("cost", tmp_path))
    scores = [trial["score"] for trial in describe_with_trials(view)["trials_best_first"]]
    assert describe_plainly(view)["best"]["score"] == scores[0]
