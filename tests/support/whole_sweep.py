"""Is everything of a finished sweep there? Its trials, their checkpoints, MLflow's runs and points, the winner."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from saved import open_checkpoint

import rltune
from benchmarks.soak_books import compare_with_mlflow
from rltune.ledger.storage import open_ledger
from rltune.records import RunKey

ENDS = ("COMPLETE", "PRUNED")


def read_runs(sweep: str, store: str) -> list[Any]:
    """A sweep's runs in MLflow, its own among them."""
    client = MlflowClient(store)
    places = [experiment.experiment_id for experiment in client.search_experiments()]
    return list(client.search_runs(places, f"tags.`rltune.sweep` = '{sweep}'", max_results=5000))


def list_missing(sweep: Path, store: str, trials: int, storage: str | None = None) -> list[str]:
    """Say what a sweep that has ended well lacks, or has twice; empty where it is whole.

    Args:
        sweep: Its folder.
        store: MLflow's address.
        trials: Its budget.
        storage: The address of its ledger with its login; None is in its folder.
    """
    ledger = open_ledger(sweep, storage)
    try:
        searched, certified = ledger.trials.records(), ledger.runs.records()
    finally:
        ledger.close()
    wrong = [f"{len(searched)} trials of {trials}"] if len(searched) != trials else []
    for record in (*searched, *certified):
        name = f"{record.kind}/{record.number}"
        if record.state not in ENDS:
            wrong.append(f"{name} is {record.state}: {record.stop_reason}")
        if list(record.reports) != sorted(set(record.reports)) or not record.reports:
            wrong.append(f"{name}'s curve: {list(record.reports)}")
        if open_checkpoint(sweep, record.checkpoint) is None:
            wrong.append(f"{name}'s checkpoint")
    books = compare_with_mlflow(sweep, storage, store)
    expected = {"parents": 1, "running": 0, "missing_points": 0, "doubled_points": 0, "best_shown": True}
    wrong += [f"MLflow's {key}: {books[key]}" for key, right in expected.items() if books[key] != right]
    names = Counter(run.info.run_name for run in read_runs(sweep.name, store))
    wrong += [f"MLflow's {name}: {count} runs" for name, count in names.items() if count > 1]
    wrong += [f"MLflow's {name}" for name in {RunKey(one.number).name for one in searched} - set(names)]
    wrong += [f"a draft: {path.relative_to(sweep)}" for path in sweep.glob("*/*/*/.*-*")]
    if not (sweep / "summary.json").exists():
        return [*wrong, "summary.json"]
    summary = json.loads((sweep / "summary.json").read_text())
    if summary["status"] != "complete" or not summary["winner"]:
        return [*wrong, f"the sweep is {summary['status']}, its winner {summary['winner']}"]
    policy = rltune.load_policy(sweep / summary["winner"]["checkpoint"])
    if not policy.action_space.contains(policy.act(policy.observation_space.sample())):
        wrong.append("the winner's sense")
    return wrong
