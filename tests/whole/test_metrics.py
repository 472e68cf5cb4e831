"""Numbers of one's own through a sweep: searched under a constraint, certified, and shown wherever numbers are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mlflow import MlflowClient
from real import Project

pytestmark = pytest.mark.nightly

INFORMING = "tests.support.informing:Informing-v0"
WORDS = (
    "experiment=smoke", "budget.trials=2", "budget.env_steps=1000", "name=informed", f"env.id={INFORMING}",
    "metrics={energy: sum, rare: last}",
)  # fmt: skip
CERTIFIED = ("certify=on", "certify.top=1", "certify.seeds=5", "certify.episodes=6")


def test_metrics_are_searched_certified_and_shown(tmp_path: Path) -> None:
    project = Project(tmp_path).prepare_store()
    judged = ("+constraints.episode.energy=> 9", "objective.second.key=episode/rare")
    ran = project.type("-m", "sweeps.run", *WORDS, *CERTIFIED, *judged)
    assert ran.code == 0, ran.out
    for row in project.summary["certified"]["configurations"]:
        assert (row["episode/energy"], row["episode/energy_low"], row["episode/energy_high"]) == (10.0, 10.0, 10.0)
    measured = project.summary["winner"]["evaluation"]["metrics"]
    assert measured["episode/energy"]["mean"] == 10.0
    assert measured["episode/rare"]["episodes"] < measured["episode/energy"]["episodes"]
    shown = json.loads(project.type("-m", "sweeps.show", "sweep=informed", "json=true").out)
    assert {trial["metrics"]["episode/energy"] for trial in shown["trials_best_first"]} == {10.0}
    client = MlflowClient(project.store)
    places = [experiment.experiment_id for experiment in client.search_experiments()]
    keys = {key for run in client.search_runs(places) for key in run.data.metrics}
    assert {"episode/energy", "episodes_with/rare", "recent_episodes", "certified_episode/energy_low"} <= keys


def test_a_constraint_on_a_metric_keeps_a_trial_from_winning(tmp_path: Path) -> None:
    project = Project(tmp_path)
    words = ("tracking=off", "+constraints.episode.energy=> 11")
    ran = project.type("-m", "sweeps.run", *WORDS, *words)
    assert ran.code == 1, ran.out
    assert "episode/energy=10, not > 11" in ran.out
