"""What is read from a sweep's folder, in whatever state it is."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest
from ended import make_certification, write_sweep
from ledger import add_reports

from rltune.errors import StudyError
from rltune.reporting.sweep_data import load_sweep_data
from rltune.study.storage import open_ledger


def test_a_sweep_that_still_runs_has_neither_winner_nor_cost(tmp_path: Path) -> None:
    data = load_sweep_data(write_sweep(tmp_path / "s", 2, status="running"))
    assert (data.name, data.status, data.env_steps) == ("s", "running", 1000)
    assert (data.record.winner, data.winner_trial, data.record.model, dict(data.cost)) == (None, None, None, {})


def test_rungs_are_those_of_the_sweeps_own_scheduler(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "s", 0)
    assert load_sweep_data(folder).rungs == [200, 400, 800]
    settings = folder / "config.yaml"
    settings.write_text(settings.read_text().replace("kind: asha", "kind: none"))
    assert load_sweep_data(folder).rungs == []
    settings.write_text(settings.read_text().replace("kind: none", "kind: no_longer_known"))
    assert load_sweep_data(folder).rungs == [], "a report can still be made"


def test_a_trial_that_failed_or_diverged_cannot_win(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "s", 2)
    with closing(open_ledger(folder)) as ledger:
        for number, state, diverged in ((2, "FAIL", False), (3, "PRUNED", True)):
            ledger.trials.add({"lr": 1e-3}, [number])
            add_reports(ledger, number, {1000: 999.0})
            ledger.trials.end(number, state, "it broke", diverged=diverged)
    data = load_sweep_data(folder)
    assert [trial.number for trial in data.trials] == [0, 1, 2, 3]
    assert [trial.number for trial in data.ranked] == [1, 0]


def test_the_cost_is_the_summarys_and_all_else_the_ledgers(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "s", 1, make_certification())
    summary = {"name": "s", "status": "complete", "trials": {}, "model": None}
    (folder / "summary.json").write_text(json.dumps(summary | {"cost": {"env_steps": 7}, "winner": {"trial": 9}}))
    with closing(open_ledger(folder)) as ledger:
        ledger.change_sweep(winner={"trial": 0}, model={"uri": "models:/x/1"}, git_commit="ab12")
    data = load_sweep_data(folder)
    assert (data.cost, data.winner_trial, data.record.model) == ({"env_steps": 7}, 0, {"uri": "models:/x/1"})
    assert (data.status, data.record.git_commit) == ("complete", "ab12")
    assert data.record.certification == make_certification()


def test_a_folder_that_is_no_sweeps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StudyError) as refused:
        load_sweep_data(tmp_path)
    assert str(tmp_path) in refused.value.what
