"""Sweeps as plain values."""

from __future__ import annotations

from pathlib import Path

from ended import make_certification, write_cost_sweep, write_sweep

from rltune.ledger.sweep_ref import SweepRef
from rltune.views.plain import describe_plainly, describe_with_trials
from rltune.views.tables import read_sweep


def test_a_sweep_is_described_by_numbers(tmp_path: Path) -> None:
    write_sweep(tmp_path / "first", certified=make_certification())
    view = read_sweep(SweepRef("first", tmp_path))
    sweep = describe_plainly(view)
    assert sweep["trials"] == {"planned": 24, "total": 12, "complete": 6, "stopped": 6, "failed": 0, "interrupted": 0}
    assert isinstance(sweep["best"]["score"], float)
    assert (sweep["certified"]["name"], sweep["certified"]["median"]) == ("trial 3", 99.0)
    whole = describe_with_trials(view)
    assert whole["verdict"]
    assert [trial["trial"] for trial in whole["trials_best_first"]] == [trial.number for trial in view.ordered]
    assert len(whole["certification"]["configurations"][0]["scores"]) == 5


def test_costs_keep_their_sign(tmp_path: Path) -> None:
    write_cost_sweep(tmp_path / "cost")
    view = read_sweep(SweepRef("cost", tmp_path))
    scores = [trial["score"] for trial in describe_with_trials(view)["trials_best_first"]]
    assert describe_plainly(view)["best"]["score"] == scores[0]
