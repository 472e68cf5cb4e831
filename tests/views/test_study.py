"""optuna-dashboard is shown the ended trials of a sweep by a file that is made from the sweep's view."""

from __future__ import annotations

import math
import random
import sqlite3
from contextlib import closing
from dataclasses import replace

import optuna
import pytest
from search_driver import Driver, run_some

from rltune.config.criteria import Criteria, parse_constraints
from rltune.config.settings_file import dump_settings
from rltune.errors import StudyUnavailableError
from rltune.views.study import write_study
from rltune.views.sweep_view import SweepView

SPACE = {"lr": ["loguniform", 1e-5, 1e-1], "batch": ["pow2", 64, 1024], "gamma": ["uniform", 0.8, 1.0]}
BOUND = {"train_s": "< 60"}


def view_of(driver):
    view = SweepView.read(driver.ledger).in_folder(driver.folder)
    return replace(view, settings={"algo": {"name": "ppo"}, "env": {"id": "CartPole-v1"}, "space": SPACE})


def write(driver):
    """Write the study as the command does, and return what is in it."""
    view = view_of(driver)
    storage = optuna.storages.RDBStorage(f"sqlite:///{write_study(view)}")
    study = optuna.load_study(study_name=view.name, storage=storage)
    trials = study.get_trials()
    storage.remove_session()
    storage.engine.dispose()
    return study.direction, trials


def test_a_study_has_what_the_ledger_has_of_ended_trials(tmp_path):
    driver = Driver(tmp_path)
    driver.run(curve={10: 1.0, 20: 5.0, 30: 3.0})
    driver.propose()
    driver.run("PRUNED", curve={10: math.nan, 20: 2.0})
    driver.run("PRUNED", curve={10: 4.0}, diverged=True)
    driver.run("FAIL", curve={10: 6.0})
    driver.run(curve={10: math.nan})
    direction, trials = write(driver)
    assert [trial.user_attrs["trial"] for trial in trials] == [0, 2, 3, 4, 5]
    assert [trial.state.name for trial in trials] == ["COMPLETE", "PRUNED", "PRUNED", "FAIL", "PRUNED"]
    assert [trial.values for trial in trials] == [[3.0], [2.0], None, None, None], "their scores"
    assert trials[0].intermediate_values == {10: 1.0, 20: 5.0, 30: 3.0}
    records = driver.ledger.trials.records()
    assert (trials[0].params, trials[0].user_attrs["params"]) == (records[0].drawn, records[0].params)
    assert trials[3].user_attrs["stop_reason"] == "why"
    assert trials[0].datetime_start.timestamp() == pytest.approx(records[0].began_s)
    assert direction == optuna.study.StudyDirection.MAXIMIZE


def test_constraints_that_are_broken_or_were_never_measured_are_shown(tmp_path):
    driver = Driver(tmp_path, criteria=Criteria(parse_constraints(BOUND), env_steps=20))
    for train_s in (70.0, 50.0):
        record = driver.propose()
        driver.report(record.number, {10: 1.0, 20: 2.0})
        driver.end(record.number, train_s=train_s)
    driver.run("FAIL", curve={})
    driver.ledger.change_sweep(config=dump_settings({"constraints": BOUND, "budget": {"env_steps": 20}}))
    assert [dict(trial.constraints) for trial in write(driver)[1]] == [
        {"train_s": 10.0},
        {"train_s": -10.0},
        {"train_s": pytest.approx(1.0)},
    ]


def test_a_second_writing_shows_what_has_ended_since(tmp_path):
    driver = run_some(Driver(tmp_path), 2)
    assert len(write(driver)[1]) == 2
    driver.run()
    _, trials = write(driver)
    assert [trial.user_attrs["trial"] for trial in trials] == [0, 1, 2], "each once"
    assert [path.name for path in tmp_path.glob(".study.db*")] == []


def test_a_damaged_file_and_its_journal_are_replaced(tmp_path):
    driver = run_some(Driver(tmp_path), 2)
    for name in ("study.db", "study.db-wal"):
        (tmp_path / name).write_bytes(random.Random(1).randbytes(100_000))
    assert len(write(driver)[1]) == 2
    with closing(sqlite3.connect(tmp_path / "study.db")) as file:
        assert file.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_sweep_that_has_not_begun_has_no_study(tmp_path):
    driver = Driver(tmp_path)
    with pytest.raises(StudyUnavailableError):
        write_study(replace(view_of(driver), settings={}))
    assert not (tmp_path / "study.db").exists()
