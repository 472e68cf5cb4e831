"""Describe sweeps for programs as JSON values; what is unknown is None. Runs anywhere."""

from __future__ import annotations

import contextlib
from typing import Any

from rltune.errors import RltuneError
from rltune.formatting import STATE_WORDS
from rltune.views.page import describe_verdict
from rltune.views.sweep_view import SweepView, TrialSnapshot


def describe_plainly(view: SweepView) -> dict[str, Any]:
    """Describe a sweep in the fields of ``rltune list json=true``."""
    record, settings, best = view.record, view.settings, view.best
    counts = {STATE_WORDS.get(state.upper(), state): number for state, number in view.counts.items()}
    return {
        "name": view.name,
        "state": view.status,
        "algorithm": (settings.get("algo") or {}).get("name"),
        "environment": (settings.get("env") or {}).get("id"),
        "seed": settings.get("seed"),
        "objective": view.label,
        "trials": {"planned": view.num_trials if settings else None, **counts},
        "percent": view.percent if settings else None,
        "env_steps": view.sampled_env_steps,
        "began": record.began,
        "wall_s": record.wall_s,
        "best": {"trial": best.number, "score": best.score, "params": best.params} if best else None,
        "certified": view.certification.table()[0] if view.certification else None,
        "model": (record.model or {}).get("uri"),
        "command": record.command,
        "folder": view.folder,
    }


def describe_with_trials(view: SweepView) -> dict[str, Any]:
    """Describe a sweep, its end, its winner and its ranked trials in the fields of ``rltune show json=true``."""
    verdict, outcome = None, view.outcome
    # The settings may be missing or unreadable on this machine; then the verdict is None.
    with contextlib.suppress(RltuneError):
        verdict = describe_verdict(view)
    return describe_plainly(view) | {
        "reason": outcome.reason if outcome else None,
        "verdict": verdict,
        "winner": view.record.winner,
        "certification": view.certification.summary() if view.certification else None,
        "cost": outcome.cost if outcome else None,
        "front": outcome.front if outcome else None,
        "trials_best_first": [_describe_trial(trial) for trial in view.ordered],
    }


def _describe_trial(trial: TrialSnapshot) -> dict[str, Any]:
    return {
        "trial": trial.number,
        "state": trial.state_word,
        "score": trial.score,
        "second": trial.second,
        "env_steps": trial.env_steps,
        "train_s": trial.record.train_s,
        "origin": trial.record.origin,
        "params": trial.params,
        "reason": trial.reason,
        "breaks": trial.broken or None,
    }
