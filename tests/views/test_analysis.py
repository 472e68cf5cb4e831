"""What the figures read of a sweep."""

from __future__ import annotations

import logging
from pathlib import Path

import optuna
import pytest
from ended import write_sweep

from rltune.records import Direction, TrialRecord
from rltune.search.space import parse_space
from rltune.views.analysis import build_optuna_study, build_space, list_varied_axes
from rltune.views.importance import measure_importance
from rltune.views.sweep_view import TrialSnapshot, load_view


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


def test_a_figure_shows_the_values_of_a_range_with_a_named_end() -> None:
    """And the drawn quantity of a range with a value beside it, whose label says what lies there."""
    space = parse_space(
        {
            "batch": ["pow2", 64, 512],
            "mini": ["pow2", 32, "batch"],
            "share": ["uniform", 0, "batch"],
            "clip": ["or", ["uniform", 0.3, 5], None],
        }
    )
    values = [
        {"batch": 64, "mini": 32, "share": 5.5, "clip": 0.5},
        {"batch": 512, "mini": 256, "share": 400.0, "clip": None},
    ]
    records = [TrialRecord(number, "COMPLETE", each, {10: 1.0}) for number, each in enumerate(values)]
    trials = [TrialSnapshot(record, "COMPLETE", 10, 10) for record in records]
    study = build_optuna_study(space, trials, Direction.MAX)
    assert [each["mini"] for each in (trial.params for trial in study.trials)] == [32, 256]
    assert [each["share"] for each in (trial.params for trial in study.trials)] == [5.5, 400.0]
    assert study.trials[1].params["clip or null"] > 5
    assert list_varied_axes(space, study) == ["batch", "mini", "share", "clip or null"]
    assert measure_importance(space, records * 10, Direction.MAX).increases == {}
