"""What is read from a sweep's folder, in whatever state it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ended import write_sweep

from rltune.errors import StudyError
from rltune.reporting.sweep_data import load_sweep_data
from rltune.study.study import Study


def test_a_sweep_that_still_runs_has_neither_winner_nor_cost(tmp_path: Path) -> None:
    data = load_sweep_data(write_sweep(tmp_path / "s", 2, status="running"))
    assert (data.name, data.status, data.env_steps) == ("s", "running", 1000)
    assert (data.winner, data.winner_trial, data.model, dict(data.cost)) == (None, None, None, {})


def test_rungs_are_those_of_the_sweeps_own_scheduler(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "s", 0)
    assert load_sweep_data(folder).rungs == [100, 300, 900]
    settings = folder / "config.yaml"
    settings.write_text(settings.read_text().replace("kind: asha", "kind: none"))
    assert load_sweep_data(folder).rungs == []
    settings.write_text(settings.read_text().replace("kind: none", "kind: no_longer_known"))
    assert load_sweep_data(folder).rungs == [], "a report can still be made"


def test_a_failed_trial_cannot_win(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "s", 2)
    study = Study(f"sqlite:///{folder / 'study.db'}", "s")
    number, _ = study.ask(lambda suggest: {}, {})
    study.note(number, params={"lr": 1e-3})
    study.report(number, 1000, 999.0)
    study.finish(number, "FAIL", None, "non-finite loss")
    study.close()
    data = load_sweep_data(folder)
    assert [trial.number for trial in data.trials] == [0, 1, 2]
    assert [trial.number for trial in data.ranked] == [1, 0]


def test_cost_and_winner_come_from_the_summary(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "s", 1)
    summary = {"cost": {"env_steps": 7}, "winner": {"trial": 0}, "model": {"uri": "models:/x/1"}}
    (folder / "summary.json").write_text(json.dumps(summary))
    data = load_sweep_data(folder)
    assert (data.cost, data.winner_trial, data.model) == ({"env_steps": 7}, 0, {"uri": "models:/x/1"})


def test_a_folder_that_is_no_sweeps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="no sweep's folder"):
        load_sweep_data(tmp_path)
