"""What a worker makes of its task, without Ray."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from toy import ToyTrial, make_task

from rltune.records import CheckpointRecord
from rltune.study.checkpoints import is_whole, read_state


def run_trial(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Everything that the trial hands back until it is done."""
    trial = ToyTrial(dict(config))
    results = [trial.step()]
    while not results[-1].get("done"):
        results.append(trial.step())
    trial.stop()
    return results


def reports(results: list[dict[str, Any]]) -> list[tuple[int, float]]:
    return [(result["env_steps"], result["objective"]) for result in results if not result.get("between")]


def test_checkpoints_come_when_due_between_reports_too(tmp_path: Path) -> None:
    """However far apart the reports are."""
    results = run_trial(make_task(tmp_path))
    assert [result["env_steps"] for result in results] == list(range(100, 1001, 100))
    assert reports(results) == [(500, 0.5), (1000, 1.0)]
    assert all(result["records"]["latest"]["env_steps"] == result["env_steps"] for result in results)
    assert {result["records"].keys() >= {"best"} for result in results if result.get("between")} == {False}


def test_nothing_comes_between_reports_while_no_checkpoint_is_due(tmp_path: Path) -> None:
    assert [result["env_steps"] for result in run_trial(make_task(tmp_path, checkpoint_every_s=600.0))] == [500, 1000]


@pytest.mark.parametrize(("seeds", "trained"), [((1,), [700]), ((1, 2), [500, 300])])
def test_a_trial_restored_between_reports_sends_the_same_ones(
    seeds: tuple[int, ...], trained: list[int], tmp_path: Path
) -> None:
    trial = ToyTrial(make_task(tmp_path, seeds=seeds))
    for _ in range(7):
        record = trial.step()["records"]["latest"]
    trial.stop()
    assert is_whole(tmp_path, CheckpointRecord(**record))
    assert record["objective"] is None, "it belongs to no report"
    kept = read_state(tmp_path / record["path"])["progress"]
    assert [progress["env_steps"] for progress in kept] == trained
    rest = run_trial(make_task(tmp_path, seeds=seeds, latest=record, checkpoint_every_s=600.0))
    assert reports(rest) == [(500, 0.5), (1000, 1.0)][-len(rest) :]
    assert len(rest) == len(seeds)
