"""A sweep over arguments of its environment, from the search to the registered model, a film and a resume."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import knobs
import pytest
from real import Project, make_environment
from whole_sweep import list_missing, read_runs

import rltune
from rltune.ledger.storage import open_ledger

pytestmark = pytest.mark.nightly

SEARCHED = {"env.kwargs.repeat": 2, "train_env.kwargs.weight": 100.0}
WORDS = (
    "experiment=smoke", "env.id=knobs:Knobs-v0", "+env.kwargs={repeat: 1, weight: 1.0}", "space.normalise=[]",
    "+space.env.kwargs.repeat=[choice,1,2]", "+space.train_env.kwargs.weight=[choice,1.0,100.0]", "budget.trials=2",
    "warm_start=[{env: {kwargs: {repeat: 2}}, train_env.kwargs.weight: 100.0}]", "score.episodes=10",
    "certify=on", "certify.top=1", "certify.seeds=3", "certify.episodes=5", "name=searched",
)  # fmt: skip


def type_command(folder: Path, *words: str) -> str:
    command = [sys.executable, "-m", "rltune", *words]
    done = subprocess.run(command, cwd=folder, env=make_environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def read_searched(params: Any) -> dict[str, Any]:
    return {name: value for name, value in params.items() if "env." in name}


def test_all_that_plays_a_policy_has_its_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reward of 100 for learning wins nothing by itself, since all trials are scored without it."""
    project = Project(tmp_path).prepare_store()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", project.store)
    (tmp_path / "knobs.py").write_text(Path(knobs.__file__).read_text())
    type_command(tmp_path, "run", *WORDS)
    sweep = tmp_path / "outputs" / "searched"
    with closing(open_ledger(sweep)) as ledger:
        trials, runs = ledger.trials.records(), ledger.runs.records()
    assert [read_searched(trial.params) for trial in trials] == [
        SEARCHED,
        {"env.kwargs.repeat": 1, "train_env.kwargs.weight": 1.0},
    ]
    assert all(0 < trial.score <= 8 for trial in trials), "the environment of the settings pays at most 8"
    assert trials[0].numbers["return_mean"] > 100, "and that of the training far more"
    assert all(0 < value <= 8 for run in runs for value in run.returns)
    assert not list_missing(sweep, project.store, 2)
    shown = [run.data.params for run in read_runs("searched", project.store)]
    assert {params["env.kwargs.repeat"] for params in shown if "env.kwargs.repeat" in params} == {"1", "2"}

    policy = rltune.load_policy("sweep:searched/0", output_dir=sweep.parent, trust=True)
    assert policy.info["env"]["kwargs"] == {"repeat": 2, "weight": 1.0}
    assert set(rltune.evaluate(policy, 3).lengths) == {4}
    played = type_command(tmp_path, "evaluate", "policy=sweep:searched/0", "episodes=3", "json=true")
    assert json.loads(played)["mean"] <= 8
    model = project.summary["model"]
    winner = rltune.load_policy(f"models:/{model['name']}@champion", trust=True)
    repeat = project.summary["winner"]["params"]["env.kwargs.repeat"]
    assert winner.info["env"]["kwargs"]["repeat"] == repeat

    type_command(tmp_path, "enqueue", "sweep=searched", "space.env.kwargs.repeat=2")
    type_command(tmp_path, "resume", "sweep=searched", "budget.trials=3")
    with closing(open_ledger(sweep)) as ledger:
        assert ledger.trials.record(2).params["env.kwargs.repeat"] == 2
