"""When a trial's state is saved, and that it comes back."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from toy import ToyRunner, make_task

from rltune.study.checkpoints import DamagedError, read_state
from rltune.trial.assignment import Assignment
from rltune.trial.checkpointing import TrialCheckpoints, TrialState
from rltune.trial.metrics import Progress


def checkpoints(sweep: Path, **other: Any) -> TrialCheckpoints:
    return TrialCheckpoints(Assignment(**make_task(sweep, **({"checkpoint_every_s": 600.0} | other))["assignment"]))


def make_state(env_steps: int = 100) -> TrialState:
    return TrialState([Progress(env_steps, 1, 1.0, 0.0, 2.0, 10.0, {}, 12.0)], train_s=2.0, reports=3)


def make_runners(env_steps: int = 100) -> list[ToyRunner]:
    runner = ToyRunner({}, 1, 0.0)
    runner.env_steps = env_steps
    return [runner]


def test_only_an_objective_that_improves_is_saved_as_the_best(tmp_path: Path) -> None:
    saver = checkpoints(tmp_path, best_objective=1.0, best_path="trials/0/best-old")
    for objective in (math.nan, 0.5, 1.0):
        assert saver.save_if_due(make_state(), make_runners(), objective, force=False) == {}
    assert saver.best_path == "trials/0/best-old"
    records = saver.save_if_due(make_state(), make_runners(), 1.5, force=False)
    assert records.keys() == {"best"}
    assert saver.best_path == records["best"]["path"]


def test_the_best_state_serves_as_the_latest_when_both_are_due(tmp_path: Path) -> None:
    records = checkpoints(tmp_path).save_if_due(make_state(), make_runners(), 1.0, force=True)
    assert records["latest"] == records["best"]
    assert len(list((tmp_path / "trials" / "0").iterdir())) == 1


def test_a_saved_state_comes_back_with_its_runner(tmp_path: Path) -> None:
    record = checkpoints(tmp_path).save_latest(make_state(300), make_runners(300))["latest"]
    assert record["objective"] is None
    runners = make_runners(0)
    assert checkpoints(tmp_path, latest=record).restore(runners) == make_state(300)
    assert runners[0].env_steps == 300


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    record = checkpoints(tmp_path).save_latest(make_state(), make_runners())["latest"]
    (tmp_path / record["path"] / "toy.json").write_text("{}")
    with pytest.raises(DamagedError, match="is damaged"):
        checkpoints(tmp_path, latest=record).restore(make_runners())


def test_a_checkpoint_says_where_its_policy_came_from(tmp_path: Path) -> None:
    infos: list[Any] = []
    (runner,) = make_runners()
    runner.save = lambda folder, info: infos.append(info)  # type: ignore[method-assign]
    record = checkpoints(tmp_path, tags={"env_name": "toy"}).save_latest(make_state(), [runner])["latest"]
    assert infos[0] == {
        "trial": 0, "seed": 1, "params": {"quality": 1.0}, "env_steps": 100, "objective": 1.0, "algo": "toy",
        "env": {}, "env_name": "toy",
    }  # fmt: skip
    assert read_state(tmp_path / record["path"])["reports"] == 3
