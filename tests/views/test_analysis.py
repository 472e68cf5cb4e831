"""What a sweep's trials say together."""

from __future__ import annotations

import logging
from pathlib import Path

import optuna
import pytest
from ended import write_bounded, write_sweep

from rltune.records import Direction
from rltune.views.analysis import build_optuna_study, build_space, follow_best_so_far
from rltune.views.sweep_view import load_view


def test_best_so_far_counts_all_trials_steps_and_rises_with_them(tmp_path: Path) -> None:
    data = load_view(write_sweep(tmp_path / "s"))
    moments = follow_best_so_far(data)
    bests = [moment.best for moment in moments]
    assert moments[-1].env_steps == sum(entry.env_steps for entry in data.trials) == 6 * 400 + 6 * 1000
    assert bests == sorted(bests)
    assert bests[-1] == 88, "the mean of the last three reports: 66, 88 and 110"


def test_a_trial_that_breaks_a_constraint_is_never_the_best_so_far(tmp_path: Path) -> None:
    moments = follow_best_so_far(load_view(write_bounded(tmp_path / "s")))
    assert [moment.best for moment in moments] == [90.0, 90.0]
    assert [moment.env_steps for moment in moments] == [2000, 3000], "but its steps were taken"


def test_a_study_for_a_figure_is_not_announced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data, log = load_view(write_sweep(tmp_path / "s", 2)), logging.getLogger("optuna")
    before = optuna.logging.get_verbosity()
    log.addHandler(caplog.handler)
    optuna.logging.set_verbosity(optuna.logging.INFO)
    try:
        build_optuna_study(build_space(data), data.trials, Direction.MAX)
        assert optuna.logging.get_verbosity() == optuna.logging.INFO
    finally:
        optuna.logging.set_verbosity(before)
        log.removeHandler(caplog.handler)
    assert caplog.messages == []
