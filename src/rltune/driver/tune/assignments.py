"""Make the assignment that tells a worker which trial to train. Runs in the driver."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

from rltune.certification.finalists import SCORE_SEED, derive_run_seed
from rltune.checkpoints.store import Store
from rltune.cluster.resources import Share
from rltune.driver.plan import Plan
from rltune.records import CERTIFY, CheckpointRecord, TrialRecord
from rltune.trial.assignment import Assignment


class Assignments:
    """Makes the config with which Tune starts a trial; it contains the worker's assignment.

    Args:
        plan: The sweep's plan.
        share: A trial's share of the machine.
        store: Holds the checkpoints.
        note: Shows the user a line.
        token: The name of the driver's token in a shared storage; None without a joined cluster.
    """

    def __init__(
        self, plan: Plan, share: Share, store: Store, note: Callable[[str], None], token: str | None = None
    ) -> None:
        self._plan, self._share, self._store, self._note, self._token = plan, share, store, note, token
        # Parameter values that need a larger part of a GPU. Values and not trial numbers, as certification runs repeat
        # them.
        self._large: set[str] = set()
        self._failed: set[tuple[str, int]] = set()

    def enlarge_share(self, record: TrialRecord, gpus: float) -> Share | None:
        """Double a trial's fraction of a GPU after it ran out of memory, once; None if it has no larger share.

        The next attempt requests the larger part from Tune and waits for it like any trial; others may go first.

        Args:
            record: A trial that ran out of its GPU's memory.
            gpus: The part of a GPU that its attempt had.
        """
        larger = self._share.larger
        if larger is None or gpus > self._share.gpus:
            return None
        self._large.add(_spell_values(record))
        return larger

    def note_failure(self, record: TrialRecord) -> None:
        """Let the next attempts at a trial save their states early, because an attempt has failed."""
        self._failed.add((record.kind, record.number))

    def _choose_share(self, record: TrialRecord) -> Share:
        share = self._share
        return (share.larger or share) if _spell_values(record) in self._large else share

    def make_config(self, record: TrialRecord) -> dict[str, Any]:
        """Make the Tune config for the next attempt at a trial."""
        return self.build(record).to_config()

    def build(self, record: TrialRecord) -> Assignment:
        """Make a worker's assignment; a trial that ran before continues from its newest complete checkpoint.

        A run of the certification plays episodes at its end.
        """
        plan, share = self._plan, self._choose_share(record)
        whole = self._choose_whole(record)
        latest, best = choose_newest(whole), record.checkpoint
        older = next((checkpoint for checkpoint in whole if checkpoint != latest), None)
        episodes = plan.certify.episodes if record.kind == CERTIFY else 0
        kinds = 2 if plan.certify.env else 1
        return Assignment(
            number=record.number,
            params=record.params,
            seeds=record.seeds,
            sweep=str(plan.folder),
            env_steps=plan.budget.env_steps,
            reports=plan.budget.reports,
            target=plan.budget.target,
            plateau=plan.budget.plateau,
            checkpoint_every_s=plan.checkpoint.every_s,
            replay_gb=plan.checkpoint.replay_gb,
            stall_s=plan.failures.stall_s,
            threads=share.threads,
            engine=plan.engine,
            build={**plan.assignment_build(), "gpus": share.gpus},
            store=self._store.address,
            token=self._token,
            latest=latest.to_dict() if latest else None,
            older=older.to_dict() if older else None,
            best=best.to_dict() if best and best in whole else None,
            tags={
                "sweep": plan.name,
                "env_name": plan.env_name,
                "run": record.name,
                # A certification run belongs to the trial whose values it trains.
                "trial": record.run_key.trial,
            },
            kind=record.kind,
            score={**asdict(plan.score), "seed": SCORE_SEED} if plan.score.episodes else None,
            episodes=episodes,
            evaluation_seed=derive_run_seed(plan.name, record.seed_index or 0, episodes * kinds) if episodes else 0,
            evaluation_env=plan.reported_env,
            choice_env=plan.score.env if plan.certify.env else None,
            attempt=secrets.token_hex(4),
            folder=os.getcwd(),
            saves_early=(record.kind, record.number) in self._failed,
        )

    def _choose_whole(self, record: TrialRecord) -> list[CheckpointRecord]:
        """Return the trial's recorded checkpoints whose files are complete, and warn the user about damaged ones."""
        recorded = [checkpoint for checkpoint in (record.latest, record.checkpoint) if checkpoint]
        whole = [checkpoint for checkpoint in recorded if self._store.has_all_files(checkpoint)]
        if len(whole) < len(recorded):
            damaged = next(checkpoint for checkpoint in recorded if checkpoint not in whole)
            newest = choose_newest(whole)
            action = f"continues from {newest.path}" if newest else "starts anew: no other checkpoint is left"
            self._note(f"{record.name}: its checkpoint {damaged.path} is damaged or gone; it {action}")
        return whole


def _spell_values(record: TrialRecord) -> str:
    return repr(sorted(record.params.items()))


def choose_newest(records: Iterable[CheckpointRecord]) -> CheckpointRecord | None:
    """Choose the checkpoint from which a trial continues; None if it has none.

    A checkpoint with a replay memory goes before a newer one without: the steps between the two are trained again
    sooner than a memory is filled. Newer is what the ledger recorded later, not what has more steps: a checkpoint that
    is damaged sends its trial back to fewer steps.

    Args:
        records: The trial's checkpoints.
    """
    return max(records, key=lambda record: (record.replay, record.sequence), default=None)
