"""Describe a sweep for programs: the one description, which show, list, run, watch, REST and Python answer with.

``summary.json`` has those of its keys that are known when a sweep ends, with equal values. docs/automation.md lists the
keys. Runs anywhere.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rltune.errors import RltuneError
from rltune.formatting import to_plain
from rltune.ledger.outcome import DESCRIPTION_VERSION
from rltune.views.page import describe_verdict
from rltune.views.sweep_view import SweepView, TrialSnapshot


def summarize(view: SweepView) -> dict[str, Any]:
    """Return those keys of the description that lists have, for which the view alone is read."""
    record, settings, best = view.record, view.settings, view.best
    planned = view.num_trials if settings else None
    summary = {
        "version": DESCRIPTION_VERSION,
        "name": view.name,
        "status": view.status,
        "algorithm": (settings.get("algo") or {}).get("name"),
        "environment": (settings.get("env") or {}).get("id"),
        "seed": settings.get("seed"),
        "objective": view.label,
        "trials": {"planned": planned, "ended": view.num_ended, **view.counts},
        "percent": view.percent if settings else None,
        "env_steps": view.sampled_env_steps,
        "began": record.began,
        "wall_s": record.wall_s,
        "best": {"trial": best.number, "score": best.score, "params": best.params} if best else None,
        "winner": view.winner,
        "model": record.model,
        "mlflow": {**record.mlflow, "charts": view.charts} if record.mlflow else None,
        "certified": view.certification.summary() if view.certification else None,
        "command": record.command,
        "folder": view.folder,
    }
    plain: dict[str, Any] = to_plain(summary)
    return plain


def summarize_all(views: Mapping[Path, SweepView | RltuneError]) -> list[dict[str, Any]]:
    """Return the summaries of sweeps; one that cannot be read has its name, its folder and the parts of the error."""
    return [
        {"name": folder.name, "status": None, "folder": str(folder), **view.to_dict()}
        if isinstance(view, RltuneError)
        else summarize(view)
        for folder, view in views.items()
    ]


def describe(view: SweepView) -> dict[str, Any]:
    """Return the whole description: also how the sweep ended, from its ``summary.json``, and its ranked trials."""
    verdict, outcome = None, view.outcome
    # The settings may be missing or unreadable on this machine; then the verdict is None.
    with contextlib.suppress(RltuneError):
        verdict = describe_verdict(view)
    ended = {key: getattr(outcome, key, None) for key in ("reason", "unregistered", "cost", "front")}
    trials = [_describe_trial(trial, view.metrics) for trial in view.ordered]
    whole: dict[str, Any] = to_plain({**summarize(view), **ended, "verdict": verdict, "trials_best_first": trials})
    return whole


def _describe_trial(trial: TrialSnapshot, metrics: Sequence[str]) -> dict[str, Any]:
    return {
        "trial": trial.number,
        "state": "pruned" if trial.state == "PRUNED" else trial.state_word,
        "score": trial.score,
        "second": trial.second,
        "metrics": {name: trial.record.numbers.get(name) for name in metrics},
        "env_steps": trial.env_steps,
        "target_steps": trial.record.target_steps,
        "train_s": trial.record.train_s,
        "origin": trial.record.origin,
        "params": trial.params,
        "reason": trial.reason,
        "breaks": trial.broken or None,
    }
