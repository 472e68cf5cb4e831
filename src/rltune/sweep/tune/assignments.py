"""Turn a trial's record into the assignment for its worker. Runs in the driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rltune.cluster.resources import Share
from rltune.study.checkpoints import is_whole
from rltune.study.record import TrialRecord
from rltune.sweep.context import SweepContext
from rltune.trial.assignment import Assignment


def build_assignment(
    context: SweepContext, share: Share, notify: Callable[[str], None], record: TrialRecord
) -> Assignment:
    """Build what a worker is to do for a trial; one that ran before goes on from its newest whole checkpoint.

    Args:
        context: What the driver works on.
        share: A trial's share of the machine.
        notify: Shows a person a line: that a recorded checkpoint is damaged, and what is done instead.
        record: The trial.
    """
    config, best = context.plan.config, record.checkpoint
    recorded = [checkpoint for checkpoint in (record.latest, best) if checkpoint]
    whole = [checkpoint for checkpoint in recorded if is_whole(context.folder, checkpoint)]
    latest = max(whole, key=_env_steps, default=None)
    newest = max(recorded, key=_env_steps, default=None)
    if newest is not None and newest is not latest:
        instead = f"goes on from {latest['path']}" if latest else "starts anew: no other one is left"
        notify(f"{record.name}: its checkpoint {newest['path']} is damaged or gone; it {instead}")
    return Assignment(
        number=record.number,
        params=record.params,
        seeds=record.seeds,
        sweep=str(context.folder),
        env_steps=config.budget.env_steps,
        reports=config.budget.reports,
        checkpoint_every_s=config.checkpoint.every_s,
        stall_s=config.failures.stall_s,
        threads=share.threads,
        engine=config.engine,
        build=context.plan.assignment_build(),
        latest=latest,
        best_objective=best["objective"] if best and best in whole else None,
        best_path=best["path"] if best and best in whole else None,
        tags={"sweep": context.name, "env_name": config.env.name},
    )


def _env_steps(checkpoint: dict[str, Any]) -> int:
    return int(checkpoint["env_steps"])
