"""Turn a trial's record into the assignment for its worker. Runs in the driver."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable

from rltune.certification.finalists import derive_run_seed
from rltune.checkpoints.store import Store
from rltune.cluster.resources import Share
from rltune.driver.context import SweepContext
from rltune.records import CERTIFY, CheckpointRecord, TrialRecord
from rltune.trial.assignment import Assignment
from rltune.trial.shared_files import read_token_name


def build_assignment(
    context: SweepContext, store: Store, share: Share, notify: Callable[[str], None], record: TrialRecord
) -> Assignment:
    """Build what a worker is to do for a trial; one that ran before goes on from its newest whole checkpoint.

    A run of the certification plays episodes at its end.

    Args:
        context: What the driver works on.
        store: The sweep's.
        share: This trial's share of the machine.
        notify: Shows a person a line: that a recorded checkpoint is damaged, and what is done instead.
        record: The trial.
    """
    config, best = context.plan.config, record.checkpoint
    recorded = [checkpoint for checkpoint in (record.latest, best) if checkpoint]
    whole = [checkpoint for checkpoint in recorded if store.is_whole(checkpoint)]
    latest = choose_newest(whole)
    if recorded and latest is None:
        notify(
            f"{record.name}: its checkpoint {recorded[0].path} is damaged or gone; it starts anew: no other one is left"
        )
    elif latest and len(whole) < len(recorded):
        (lost,) = [checkpoint for checkpoint in recorded if checkpoint not in whole]
        notify(f"{record.name}: its checkpoint {lost.path} is damaged or gone; it goes on from {latest.path}")
    episodes = config.certify.episodes if record.kind == CERTIFY else 0
    first_seed = derive_run_seed(context.name, record.seed_index or 0, episodes) if episodes else 0
    older = next((checkpoint for checkpoint in whole if checkpoint != latest), None)
    return Assignment(
        number=record.number,
        params=record.params,
        seeds=record.seeds,
        sweep=str(context.folder),
        env_steps=config.budget.env_steps,
        reports=config.budget.reports,
        checkpoint_every_s=config.checkpoint.every_s,
        replay_gb=config.checkpoint.replay_gb,
        stall_s=config.failures.stall_s,
        threads=share.threads,
        engine=config.engine,
        build={**context.plan.assignment_build(), "gpus": share.gpus},
        store=store.address,
        token=read_token_name(context.folder),
        latest=latest.to_dict() if latest else None,
        older=older.to_dict() if older else None,
        best=best.to_dict() if best and best in whole else None,
        tags={"sweep": context.name, "env_name": config.env.name},
        kind=record.kind,
        episodes=episodes,
        evaluation_seed=first_seed,
        attempt=secrets.token_hex(4),
    )


def choose_newest(records: Iterable[CheckpointRecord]) -> CheckpointRecord | None:
    """Choose the checkpoint from which a trial goes on; None where there is none.

    A checkpoint with a replay memory goes before a newer one without: the steps between the two are trained again
    sooner than a memory is filled. Newer is what the ledger recorded later, not what has more steps: a checkpoint that
    is damaged sends its trial back to fewer steps.

    Args:
        records: The trial's.
    """
    return max(records, key=lambda record: (record.replay, record.sequence), default=None)
