"""When a trial's state is saved, and that it comes back."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from toy import ToyRunner, make_task

from rltune.checkpoints.store import REPLAY, open_store, read_state
from rltune.records import CheckpointRecord
from rltune.trial.assignment import Assignment
from rltune.trial.checkpointing import TrialCheckpoints, TrialState
from rltune.trial.metrics import Progress


def checkpoints(sweep: Path, **other: Any) -> TrialCheckpoints:
    task = make_task(sweep, **({"checkpoint_every_s": 600.0} | other))
    return TrialCheckpoints(Assignment(**task["assignment"]), open_store(sweep))


def make_state(env_steps: int = 100) -> TrialState:
    return TrialState([Progress(env_steps, 1, 1.0, 0.0, 2.0, 10.0, {}, 12.0)], train_s=2.0, reports=3)


def make_runners(env_steps: int = 100, **params: Any) -> list[ToyRunner]:
    runner = ToyRunner(params, 1, 0.0)
    runner.env_steps = env_steps
    return [runner]


def test_only_an_objective_that_improves_is_saved_as_the_best(tmp_path: Path) -> None:
    before = CheckpointRecord("trials/0/best-old", 50, 1.0, "digest")
    saver = checkpoints(tmp_path, best=before.to_dict())
    for objective in (math.nan, 0.5, 1.0):
        assert saver.save_if_due(make_state(), make_runners(), objective) == {}
    assert saver.best == before
    records = saver.save_if_due(make_state(), make_runners(), 1.5)
    assert records.keys() == {"best"}
    assert saver.best == CheckpointRecord(**records["best"])


def test_only_a_cost_that_falls_is_saved_as_the_best(tmp_path: Path) -> None:
    task = make_task(tmp_path)["assignment"]
    env = {**task["build"]["env"], "objective": {"kind": "return", "key": None, "direction": "min"}}
    saver = checkpoints(tmp_path, build={**task["build"], "env": env})
    saved = [bool(saver.save_if_due(make_state(), make_runners(), cost)) for cost in (math.nan, 3.0, 4.0, 3.0, -2.0)]
    assert saved == [False, True, False, False, True]


def test_the_best_state_serves_as_the_latest_when_both_are_due(tmp_path: Path) -> None:
    records = checkpoints(tmp_path, checkpoint_every_s=0.0).save_if_due(make_state(), make_runners(), 1.0)
    assert records["latest"] == records["best"]
    assert len(list((tmp_path / "trials" / "0").glob("*/*"))) == 1


def test_a_saved_state_comes_back_with_its_runner(tmp_path: Path) -> None:
    record = checkpoints(tmp_path).save_latest(make_state(300), make_runners(300))["latest"]
    assert record["objective"] is None
    runners = make_runners(0)
    assert checkpoints(tmp_path, latest=record).restore(runners) == make_state(300)
    assert runners[0].env_steps == 300


def test_a_trial_whose_only_checkpoint_is_damaged_starts_anew(tmp_path: Path) -> None:
    record = checkpoints(tmp_path).save_latest(make_state(), make_runners())["latest"]
    (tmp_path / record["path"] / "toy.json").write_text("{}")
    again = checkpoints(tmp_path, latest=record, best=record)
    assert repr(again.restore(make_runners(0))) == repr(TrialState([Progress()]))  # NaN equals NaN here.
    (note,) = again.notes
    assert record["path"] in note
    assert again.best is None, "nothing is left to compare with"


def test_a_checkpoint_says_where_its_policy_came_from(tmp_path: Path) -> None:
    infos: list[Any] = []
    (runner,) = make_runners()
    runner.save = lambda folder, info: infos.append(info)  # type: ignore[method-assign]
    record = checkpoints(tmp_path, tags={"env_name": "toy", "trial": 0}).save_latest(make_state(), [runner])["latest"]
    assert infos[0] == {
        "trial": 0, "seed": 1, "params": {"quality": 1.0}, "env_steps": 100, "objective": 1.0, "algo": "toy",
        "env": {"id": "Toy-v0"}, "env_name": "toy",
    }  # fmt: skip
    assert read_state(tmp_path / record["path"])["reports"] == 3


def test_the_latest_state_has_the_replay_memory_and_the_best_has_not(tmp_path: Path) -> None:
    """The best one stays for long, and its policy is handed on."""
    saver = checkpoints(tmp_path, replay_gb=0.001, checkpoint_every_s=0.0)
    records = saver.save_if_due(make_state(), make_runners(replay=True), 1.0)
    assert records["latest"]["path"] != records["best"]["path"]
    assert [(tmp_path / records[kind]["path"] / REPLAY).is_dir() for kind in ("latest", "best")] == [True, False]
    again = checkpoints(tmp_path, replay_gb=0.001, latest=records["latest"])
    again.restore(make_runners(0, replay=True))
    assert again.notes == []


@pytest.mark.parametrize(("seeds", "replay_gb", "why"), [
    (1, 0.0, "checkpoint.replay_gb=0)"), (11, 0.001, "checkpoint.replay_gb=0.001)"),
])  # fmt: skip
def test_memories_too_large_together_are_left_out_and_the_log_says_so(
    seeds: int, replay_gb: float, why: str, tmp_path: Path
) -> None:
    runners = [make_runners(replay=True)[0] for _ in range(seeds)]
    state = TrialState(make_state().progress * seeds)
    task = {"seeds": tuple(range(seeds)), "replay_gb": replay_gb}
    record = checkpoints(tmp_path, **task).save_latest(state, runners)["latest"]
    assert not (tmp_path / record["path"] / REPLAY).exists()
    again = checkpoints(tmp_path, **task, latest=record)
    again.restore([make_runners(0, replay=True)[0] for _ in range(seeds)])
    (note,) = again.notes
    assert why in note
    assert " 50 " in note
    quiet = checkpoints(tmp_path, **task, latest=record)
    quiet.restore(make_runners(0) * seeds)
    assert quiet.notes == [], "a trial that has no such memory misses none"


def test_the_older_checkpoint_serves_where_the_newest_is_damaged(tmp_path: Path) -> None:
    saver = checkpoints(tmp_path)
    older, newest = (saver.save_latest(make_state(steps), make_runners(steps))["latest"] for steps in (100, 200))
    (tmp_path / newest["path"] / "toy.json").write_text("{}")
    again = checkpoints(tmp_path, latest=newest, older=older)
    assert again.restore(make_runners()) == make_state(100)
    (note,) = again.notes
    assert older["path"] in note
    assert newest["path"] in note


def test_a_worker_drops_no_checkpoint(tmp_path: Path) -> None:
    saver = checkpoints(tmp_path, checkpoint_every_s=0.0, attempt="a1b2")
    paths = []
    for steps in (100, 200, 200, 300):
        paths.append(saver.save_if_due(make_state(steps), make_runners(steps), float(len(paths)))["best"]["path"])
    paths.append(saver.save_latest(make_state(300), make_runners(300))["latest"]["path"])
    assert len(set(paths)) == 5, "the ledger may name each of them"
    assert all((tmp_path / path / "toy.json").is_file() for path in paths)
    assert {path.rpartition("/")[0] for path in paths} == {"trials/0/a1b2"}


def test_two_attempts_at_a_trial_write_apart(tmp_path: Path) -> None:
    """A worker that was cut off from the driver may come back when another one has gone on with its trial."""
    cut_off, other = checkpoints(tmp_path, attempt="a1"), checkpoints(tmp_path, attempt="b2")
    first, second = (saver.save_latest(make_state(), make_runners())["latest"] for saver in (cut_off, other))
    assert first["path"] != second["path"]
    assert all(open_store(tmp_path).has_all_files(CheckpointRecord(**record)) for record in (first, second))
