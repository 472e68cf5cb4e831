"""What the figures read of a sweep."""

from __future__ import annotations

import logging
from pathlib import Path

import optuna
import pytest
from ended import write_sweep

from rltune.records import Direction
from rltune.views.analysis import build_optuna_study, build_space
from rltune.views.sweep_view import load_view


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
