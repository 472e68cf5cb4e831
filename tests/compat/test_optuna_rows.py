"""A report in Optuna's tables, by rows and by Optuna's own calls."""

from __future__ import annotations

import math

import optuna
import pytest

from rltune.compat.optuna_rows import SCHEMA, choose_write, write_rows, write_values

pytestmark = pytest.mark.replacement


@pytest.mark.parametrize("write", [write_rows, write_values])
def test_a_report_is_written_alike_by_rows_and_by_calls(write, tmp_path):
    storage = optuna.storages.RDBStorage(f"sqlite:///{tmp_path / 'study.db'}")
    study = optuna.create_study(storage=storage, direction="maximize")
    study.ask()
    (trial,) = storage.get_all_trials(storage.get_study_id_from_name(study.study_name))
    for reports, attributes in [({100: 1.0, 200: math.nan}, {"seeds": [1, 2]}), ({100: 2.0}, {"seeds": [3]})]:
        write(storage, trial._trial_id, reports, attributes)
    (trial,) = study.trials
    assert trial.intermediate_values[100] == 2.0
    assert math.isnan(trial.intermediate_values[200])
    assert trial.user_attrs == {"seeds": [3]}
    study.tell(0, 2.0)
    for late in [({300: 1.0}, {}), ({}, {"late": 1})]:
        with pytest.raises(optuna.exceptions.UpdateFinishedTrialError):
            write(storage, trial._trial_id, *late)


def test_tables_of_another_form_are_written_by_optunas_calls(monkeypatch, tmp_path):
    storage = optuna.storages.RDBStorage(f"sqlite:///{tmp_path / 'study.db'}")
    assert choose_write(storage) is write_rows
    monkeypatch.setattr(storage, "get_current_version", lambda: "v6.0.0")
    assert choose_write(storage) is write_values


def test_optunas_tables_have_the_form_that_we_write(tmp_path):
    storage = optuna.storages.RDBStorage(f"sqlite:///{tmp_path / 'study.db'}")
    assert storage.get_current_version() == storage.get_head_version() == SCHEMA


@pytest.mark.parametrize("write", [write_rows, write_values])
def test_nothing_to_write_changes_nothing(write, tmp_path):
    storage = optuna.storages.RDBStorage(f"sqlite:///{tmp_path / 'study.db'}")
    study = optuna.create_study(storage=storage)
    trial = study.ask()
    write(storage, trial._trial_id, {}, {})
    (found,) = study.trials
    assert (found.intermediate_values, found.user_attrs) == ({}, {})
