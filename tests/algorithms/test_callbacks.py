"""What callbacks of the user's log, beside RLlib's own numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from informing import METRICS

from rltune.algorithms.callbacks import read_logged
from rltune.engine.algorithm import FastAlgorithm
from rltune.envs.spec import name_metric
from tests.trial.informed import run_informing


def test_numbers_are_told_from_what_is_none() -> None:
    sampled = {"goals": 2, "nested": {"deep": True}, "list": [1, 2], "episode_return_mean": 3.0, "gone": math.nan}
    result = {"env_runners": sampled, "written": 1.5, "pid": 7, "100%": 1.0}
    numbers, refused = read_logged(result)
    assert numbers == {"episode/written": 1.5, "episode/goals": 2.0, "episode/nested/deep": 1.0}
    assert refused == ["100%", "list"]


@pytest.mark.parametrize(
    ("config", "names", "refused"),
    [
        ("PPOConfig", set(), ()),
        ("logging_algo:TrainingConfig", {"episode/iterations", "episode/written"}, ()),
        pytest.param(
            "logging_algo:EpisodesConfig",
            {"episode/iterations", "episode/written", "episode/goals", "episode/nested/deep"},
            ("words",),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_callbacks_log_appears_or_is_refused(
    request_of: Callable[..., Any], config: str, names: set[str], refused: tuple[str, ...]
) -> None:
    words = () if config == "PPOConfig" else (f"algo.class={config}",)
    runner = run_informing(request_of, *words)
    try:
        is_stock = refused != ()
        assert isinstance(runner.algorithm, FastAlgorithm) != is_stock
        for _ in range(3):
            progress = runner.train()
    finally:
        runner.stop()
    declared = {name_metric(key) for key in METRICS}
    assert progress.metrics.keys() - declared == names
    assert tuple(progress.refused) == refused
    assert progress.metrics["episode/energy"] == 10.0
    if is_stock:
        assert (progress.metrics["episode/goals"], progress.metrics["episode/nested/deep"]) == (2.0, 4.0)


@pytest.mark.slow
def test_nothing_of_stock_rllibs_own_counts_as_logged(request_of: Callable[..., Any]) -> None:
    runner = run_informing(request_of, engine="rllib")
    try:
        runner.algorithm.train()
        assert read_logged(runner.algorithm.train()) == ({}, [])
    finally:
        runner.stop()
