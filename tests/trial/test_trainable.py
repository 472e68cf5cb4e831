"""What a worker makes of its orders, without Ray."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from toy import ToyTrial

from rltune.study.checkpoints import is_whole, read_state
from rltune.trial.assignment import Assignment


def orders(sweep: Path, **other: Any) -> dict[str, Any]:
    """Those of a trial with two reports, whose checkpoints are due after every iteration of 100 steps."""
    known: dict[str, Any] = {
        "number": 0, "params": {"quality": 1.0}, "seeds": (1,), "sweep": str(sweep), "env_steps": 1000, "reports": 2,
        "checkpoint_every_s": 0.0, "stall_s": 600.0, "threads": 1, "engine": "rllib",
        "build": {"algo": {"name": "toy"}, "env": {}},
    }  # fmt: skip
    return Assignment(**known | other).to_config()


def told(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Everything that the trial hands back until it is done."""
    trial = ToyTrial(dict(config))
    results = [trial.step()]
    while not results[-1].get("done"):
        results.append(trial.step())
    trial.stop()
    return results


def reports(results: list[dict[str, Any]]) -> list[tuple[int, float]]:
    return [(result["env_steps"], result["objective"]) for result in results if not result.get("between")]


def test_checkpoints_come_as_often_as_they_are_due_however_far_apart_the_reports_are(tmp_path: Path) -> None:
    results = told(orders(tmp_path))
    assert [result["env_steps"] for result in results] == list(range(100, 1001, 100))
    assert reports(results) == [(500, 0.5), (1000, 1.0)]
    assert all(result["records"]["latest"]["env_steps"] == result["env_steps"] for result in results)
    assert {result["records"].keys() >= {"best"} for result in results if result.get("between")} == {False}


def test_nothing_comes_between_reports_while_no_checkpoint_is_due(tmp_path: Path) -> None:
    assert [result["env_steps"] for result in told(orders(tmp_path, checkpoint_every_s=600.0))] == [500, 1000]


@pytest.mark.parametrize(("seeds", "trained"), [((1,), [700]), ((1, 2), [500, 300])])
def test_a_trial_goes_on_from_a_checkpoint_between_reports_with_the_same_reports(
    seeds: tuple[int, ...], trained: list[int], tmp_path: Path
) -> None:
    trial = ToyTrial(orders(tmp_path, seeds=seeds))
    for _ in range(7):
        record = trial.step()["records"]["latest"]
    trial.stop()
    assert is_whole(tmp_path, record)
    assert record["objective"] is None, "it belongs to no report"
    kept = read_state(tmp_path / record["path"])["progress"]
    assert [progress["env_steps"] for progress in kept] == trained
    rest = told(orders(tmp_path, seeds=seeds, latest=record, checkpoint_every_s=600.0))
    assert reports(rest) == [(500, 0.5), (1000, 1.0)][-len(rest) :]
    assert len(rest) == len(seeds)
