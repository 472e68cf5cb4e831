"""Whole sweeps of the toy, certified: who wins, what is kept of it, and that a kill loses nothing."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlflow import MlflowClient
from toy import ToyTrial, ledger

from rltune.certification.result import Certification
from rltune.driver.run import resume_sweep
from rltune.ledger.outcome import Outcome
from rltune.ledger.storage import open_ledger
from rltune.ledger.sweep_ref import SweepRef
from rltune.records import CERTIFY, TrialRecord
from rltune.views.tables import read_sweep, show_sweep

pytestmark = pytest.mark.usefixtures("ray_cluster")

# Four trials with known worth: the search believes in 3 (its curve is the highest), retraining shows that 1 is better.
KNOWN = (
    "certify=on",
    "certify.episodes=4",
    "certify.seeds=3",
    "certify.top=3",
    "seed=1",
    "scheduler=none",
    "budget.trials=4",
    "budget.env_steps=500",
    "budget.reports=5",
    "+algo.training.learner_config_dict.worth=150.0",
    "+algo.training.learner_config_dict.luck=1.0",
    "+space.luck=[choice,1.0]",
    "+space.worth=[uniform,0,1000]",
    "algo.training.learner_config_dict.quality=0.1",
    "warm_start=[{quality:0.2,worth:150},{quality:0.5,worth:300},{quality:0.6,worth:301},{quality:0.9,worth:200}]",
)


def books(outcome: Outcome) -> list[TrialRecord]:
    with closing(open_ledger(outcome.folder)) as opened:
        return opened.runs.records()


def record(outcome: Outcome) -> Certification:
    with closing(open_ledger(outcome.folder)) as opened:
        stored = opened.sweep().certification
    assert stored is not None
    return Certification.from_dict(stored)


def resume(outcome: Outcome, tmp_path: Path, **changes: Any) -> Outcome:
    folder = str(tmp_path / "outputs")
    return resume_sweep(SweepRef(outcome.name, folder), changes=changes, stream=io.StringIO(), trainable=ToyTrial)


@pytest.fixture
def known(toy_run: Callable[..., Outcome]) -> Outcome:
    """A certified toy sweep with MLflow."""
    return toy_run(*KNOWN)


def test_certification_finds_the_winner_that_the_search_did_not(
    known: Outcome, stream: io.StringIO, tmp_path: Path
) -> None:
    certification = record(known)
    assert [one.name for one in certification.configurations] == ["trial 2", "trial 1", "trial 3", "baseline"]
    assert [certification.verdict(one) for one in certification.configurations] == ["winner", "", "", ""], (
        "three seeds show nothing"
    )
    assert [one.difference for one in certification.configurations] == [151, 150, 50, None]
    assert [(one.num_wins, one.num_pairs) for one in certification.configurations] == [(3, 3)] * 3 + [(0, 0)]
    assert [one.place for one in certification.configurations] == [2, 3, 1, 0], "chosen by the search's scores"
    assert known.winner is not None
    assert (known.winner["trial"], known.winner["name"]) == (2, "trial 2")
    assert known.winner["checkpoint"].startswith("certify/")
    for one in certification.configurations:
        luck = [seed % 5 - 2 for seed in certification.seeds]
        worth = {"trial 2": 301, "trial 1": 300, "trial 3": 200, "baseline": 150}[one.name]
        assert one.scores == [worth + lucky for lucky in luck]
        assert all(len(result.returns) == 4 for result in one.per_seed)
    believed = {one.name: one.search_score for one in certification.configurations}
    assert believed == pytest.approx({"trial 1": 0.25, "trial 2": 0.3, "trial 3": 0.45, "baseline": None})
    searched = {seed for entry in ledger(known) for seed in entry.seeds}
    assert len(set(certification.seeds)) == 3
    assert not set(certification.seeds) & searched
    assert all(entry.env_steps == 500 and entry.state == "COMPLETE" for entry in books(known))
    assert "certify.seeds=5" in stream.getvalue(), "three are too few for an interval"
    summary = json.loads((known.folder / "summary.json").read_text())
    assert summary["certified"]["winner"] == "trial 2"
    assert summary["cost"]["certify_env_steps"] == 4 * 3 * 500
    assert summary["cost"]["env_steps"] == 4 * 500, "the search's steps are its own"
    _check_mlflow(known, certification, MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}"))
    _check_extension(known, certification, tmp_path)


def _check_mlflow(outcome: Outcome, certification: Certification, client: MlflowClient) -> None:
    """A run for each seed, below its configuration; a table with the sweep; nothing left running."""
    experiment = client.get_experiment_by_name("cartpole")
    runs = client.search_runs([experiment.experiment_id], max_results=1000)
    by_id = {run.info.run_id: run for run in runs}
    names = {run.info.run_name: run for run in runs}
    assert {run.info.status for run in runs} == {"FINISHED"}
    kept = {entry.run_key: entry.mlflow_run_id for entry in books(outcome)}
    for one in certification.configurations:
        owner = "baseline" if one.trial is None else f"trial-{one.trial:03d}"
        above = by_id[names[owner].data.tags["mlflow.parentRunId"]]
        assert above.info.run_name == outcome.name
        assert names[owner].data.metrics["certified_score"] == pytest.approx(one.median)
        for place in range(3):
            run = names[f"{'baseline' if one.trial is None else owner}-seed-{place + 1}"]
            assert run.data.tags["mlflow.parentRunId"] == names[owner].info.run_id
            result = one.per_seed[place]
            assert run.info.run_name == result.run.name
            assert run.info.run_id == kept[result.run]
            assert result.mlflow_run_id in (run.info.run_id, None), "None where MLflow had not answered by then"
    parent = names[outcome.name]
    assert parent.data.tags["rltune.winner"] == "trial 2"
    assert names["trial-002"].data.tags["rltune.certified"] == "winner"
    assert {"certification.json", "certification.csv"} <= {
        file.path for file in client.list_artifacts(parent.info.run_id)
    }
    assert "trial-000-seed-1" not in names


def _check_extension(first: Outcome, before: Certification, tmp_path: Path) -> None:
    """More trials: what is certified already is not trained again, also when spare checkpoints were deleted."""
    weakest = min((entry for entry in ledger(first) if entry.checkpoint), key=lambda entry: entry.score or 0.0)
    assert weakest.checkpoint is not None
    shutil.rmtree(first.folder / weakest.checkpoint.path)
    trained = {entry.number: entry.key for entry in books(first)}
    last = resume(first, tmp_path, budget={"trials": 7})
    assert last.trials["complete"] == 7
    after = {entry.number: entry.key for entry in books(last)}
    assert trained.items() <= after.items()
    certification = record(last)
    assert certification.seeds == before.seeds
    assert len(after) == len(set(after.values())), "no configuration is trained twice on a seed"
    best = sorted(ledger(last), key=lambda entry: -(entry.score or 0))[:3]
    trials = {one.name: one.trial for one in certification.configurations}
    assert trials.pop("baseline") == 4, "the extended search tries its values after the warm starts"
    assert set(trials.values()) == {1, 2, 3, *(entry.number for entry in best)} - {4}


def first_seed_fails() -> tuple[int, tuple[str, ...]]:
    """The first seed of a certification under ``seed=1``, and settings that make every run on it diverge."""
    seed = int(np.random.SeedSequence([1, 0, 2]).generate_state(1)[0]) & 0x7FFFFFFF
    return seed, (
        f"algo.training.learner_config_dict.fault=seed-{seed}",
        f"+space.fault=[choice,seed-{seed}]",
        "warm_start=[]",
    )


def test_a_certification_whose_runs_all_fail_has_no_winner(
    toy_run: Callable[..., Outcome], stream: io.StringIO
) -> None:
    outcome = toy_run(*KNOWN, *first_seed_fails()[1], "tracking=off", "certify.top=1", "certify.seeds=1")
    assert {(entry.state, entry.diverged) for entry in books(outcome)} == {("PRUNED", True)}
    assert outcome.certified is None
    assert outcome.winner is not None
    assert outcome.winner["name"] != "baseline"
    assert stream.getvalue().count("not certified") == 1


def test_a_control_that_is_better_wins_and_a_failing_seed_is_told(
    toy_run: Callable[..., Outcome], stream: io.StringIO
) -> None:
    seed, fault = first_seed_fails()
    outcome = toy_run(*KNOWN, *fault, "algo.training.learner_config_dict.worth=900", "tracking=off", "certify.top=1")
    certification = record(outcome)
    assert certification.winner == "baseline"
    assert [one.failed_seeds for one in certification.configurations] == [(seed,), (seed,)]
    runs = [run for configuration in certification.configurations for run in configuration.per_seed]
    assert certification.best().scores[-1] == min(score for run in runs for score in (*run.returns, run.mean))
    out = stream.getvalue()
    assert len([line for line in out.splitlines() if "1 of baseline" in line and "non-finite" in line]) == 1
    assert "1 of 3, up to 86%" in out
    assert outcome.certified is not None
    assert [row["failed_seeds"] for row in outcome.certified["configurations"]] == [1, 1]
    assert outcome.winner is not None
    assert (outcome.winner["name"], outcome.winner["trial"]) == ("baseline", 0), "the search has tried its values"
    assert outcome.exit_code == 0


def test_a_trial_with_the_controls_values_is_counted_once(
    toy_run: Callable[..., Outcome], stream: io.StringIO, tmp_path: Path
) -> None:
    values = ("algo.training.learner_config_dict.worth=999.0", "algo.training.learner_config_dict.quality=0.5")
    own = ("warm_start=[]", *values, "budget.trials=2", "certify.top=2")
    outcome = toy_run(*KNOWN, *own, "report=true")
    said = stream.getvalue()
    assert "(6 of 6 runs)" in said
    assert "of 9 runs" not in said.replace("up to 9", "")
    rows = [(one.name, one.trial, one.difference is None) for one in record(outcome).configurations]
    assert rows == [("baseline", 0, True), ("trial 1", 1, False)]
    summary = json.loads((outcome.folder / "summary.json").read_text())
    assert (summary["winner"]["name"], summary["winner"]["trial"]) == ("baseline", 0)
    assert summary["certified"]["winner"] == "baseline"
    table = (outcome.folder / "certification.csv").read_text().splitlines()
    assert [line.split(",")[:2] for line in table[1:]] == [["baseline", "0"], ["trial 1", "1"]]
    shown = io.StringIO()
    show_sweep(read_sweep(SweepRef(outcome.name, tmp_path / "outputs")), shown)
    for text in (said, shown.getvalue(), (outcome.folder / "report" / "index.html").read_text()):
        assert "trial 0 = baseline" in text
    client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    mlflow_runs = client.search_runs([client.get_experiment_by_name("cartpole").experiment_id])
    runs = {run.info.run_name: run.data for run in mlflow_runs}
    assert runs[outcome.name].tags["rltune.winner"] == "baseline"
    assert runs["trial-000"].tags["rltune.configuration"] == "baseline"
    assert runs[outcome.name].metrics["certified_score"] == runs["trial-000"].metrics["certified_score"]
    assert "baseline" not in runs, "its seeds stand below the trial of its values"
    above = {run.info.run_name: run.data.tags.get("mlflow.parentRunId") for run in mlflow_runs}
    ids = {run.info.run_name: run.info.run_id for run in mlflow_runs}
    assert {name: one for name, one in above.items() if "-seed-" in name} == {
        f"{name}-seed-{place}": ids[owner]
        for name, owner in (("baseline", "trial-000"), ("trial-001", "trial-001"))
        for place in (1, 2, 3)
    }
    note = runs[outcome.name].tags["mlflow.note.content"]
    assert f"/runs/{ids[outcome.name]}/artifacts/report/index.html" in note
    assert runs[outcome.name].params["space.quality"] == "[uniform, 0, 1]"


def test_an_interrupt_in_the_middle_of_certification_is_resumed_without_loss(
    toy_run: Callable[..., Outcome], tmp_path: Path, stream: io.StringIO, monkeypatch: Any
) -> None:
    from rltune.driver.tune.recorder import Recorder

    keep, come = Recorder.on_trial_complete, iter(range(1, 1000))

    def spy(self: Recorder, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        kind = trial.config["assignment"]["kind"]
        keep(self, iteration, trials, trial, **info)
        if kind == CERTIFY and next(come) == 4:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Recorder, "on_trial_complete", spy)
    first = toy_run(*KNOWN, "+space.seconds=0.01", "tracking=off", "checkpoint.every_s=0")
    assert first.exit_code == 130
    assert first.certified is None
    assert f"resume sweep={first.name}" in stream.getvalue()
    begun = {entry.number: entry for entry in books(first)}
    done = [entry for entry in begun.values() if entry.state == "COMPLETE"]
    assert 4 <= len(done) < 12
    trials = ledger(first)
    last = resume(first, tmp_path)
    assert (last.exit_code, last.status) == (0, "complete")
    assert ledger(last) == trials, "the search is left as it was"
    after = {entry.number: entry for entry in books(last)}
    assert len(after) == 12
    for entry in done:
        assert after[entry.number] == entry
    for number, entry in begun.items():
        assert after[number].key == entry.key
        assert dict(entry.reports).items() <= dict(after[number].reports).items()
    assert record(last).winner == "trial 2"


def test_without_certification_there_are_no_books(toy_run: Callable[..., Outcome]) -> None:
    outcome = toy_run("tracking=off", "budget.trials=1")
    assert outcome.certified is None
    assert books(outcome) == []
