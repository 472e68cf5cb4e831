"""Turn a trial's record into the assignment for its worker. Runs in the driver."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rltune.certification.finalists import derive_run_seed
from rltune.cluster.slots import find_nodes_to_avoid
from rltune.driver.tune.attempts import Attempts
from rltune.driver.tune.shares import Shares
from rltune.records import CERTIFY, CheckpointRecord, TrialRecord
from rltune.trial.assignment import Assignment
from rltune.trial.shared_files import read_token_name

if TYPE_CHECKING:
    from rltune.driver.open_sweep import OpenSweep

# The keys beside a trial's assignment in Tune's config.
BUNDLES = "bundles"  # The resources of a trial that has more than the sweep's common share.
AVOIDED = "avoided_nodes"  # The ids of the nodes that the trial must not run on.


class Assignments:
    """Makes Tune's configs, which hold the workers' assignments.

    Args:
        sweep: The sweep.
        attempts: Knows the nodes on which a trial's attempts made no progress.
        shares: Knows the trials with a larger share of a GPU.
    """

    def __init__(self, sweep: OpenSweep, attempts: Attempts, shares: Shares) -> None:
        self._sweep, self._attempts, self._shares = sweep, attempts, shares

    def make_config(self, record: TrialRecord) -> dict[str, Any]:
        """Make the config of the next attempt at a trial: its assignment, its resources, and the nodes to avoid."""
        share = self._shares.of(record)
        if record.node:  # An earlier attempt may have left checkpoints that no report has named.
            self._sweep.retention.drop_unnamed([record])
        config = self.build(record).to_config()
        if share != self._sweep.share:
            config[BUNDLES] = share.bundles
        if hosts := self._attempts.find_hosts((record.kind, record.number)):
            config[AVOIDED] = find_nodes_to_avoid(hosts, share.bundles)
        return config

    def build(self, record: TrialRecord) -> Assignment:
        """Build a worker's assignment; a trial that ran before goes on from its newest whole checkpoint.

        A run of the certification plays episodes at its end.
        """
        sweep, config, share = self._sweep, self._sweep.config, self._shares.of(record)
        whole = self._choose_whole(record)
        latest, best = choose_newest(whole), record.checkpoint
        older = next((checkpoint for checkpoint in whole if checkpoint != latest), None)
        episodes = config.certify.episodes if record.kind == CERTIFY else 0
        return Assignment(
            number=record.number,
            params=record.params,
            seeds=record.seeds,
            sweep=str(sweep.folder),
            env_steps=config.budget.env_steps,
            reports=config.budget.reports,
            checkpoint_every_s=config.checkpoint.every_s,
            replay_gb=config.checkpoint.replay_gb,
            stall_s=config.failures.stall_s,
            threads=share.threads,
            engine=config.engine,
            build={**sweep.plan.assignment_build(), "gpus": share.gpus},
            store=sweep.store.address,
            token=read_token_name(sweep.folder),
            latest=latest.to_dict() if latest else None,
            older=older.to_dict() if older else None,
            best=best.to_dict() if best and best in whole else None,
            tags={"sweep": sweep.name, "env_name": config.env.name},
            kind=record.kind,
            episodes=episodes,
            evaluation_seed=derive_run_seed(sweep.name, record.seed_index or 0, episodes) if episodes else 0,
            attempt=secrets.token_hex(4),
        )

    def _choose_whole(self, record: TrialRecord) -> list[CheckpointRecord]:
        """Choose the recorded checkpoints that are whole, and tell the user about the others."""
        recorded = [checkpoint for checkpoint in (record.latest, record.checkpoint) if checkpoint]
        whole = [checkpoint for checkpoint in recorded if self._sweep.store.is_whole(checkpoint)]
        if len(whole) < len(recorded):
            damaged = next(checkpoint for checkpoint in recorded if checkpoint not in whole)
            newest = choose_newest(whole)
            action = f"goes on from {newest.path}" if newest else "starts anew: no other one is left"
            self._sweep.console.note(f"{record.name}: its checkpoint {damaged.path} is damaged or gone; it {action}")
        return whole


def choose_newest(records: Iterable[CheckpointRecord]) -> CheckpointRecord | None:
    """Choose the checkpoint from which a trial goes on; None if there is none.

    A checkpoint with a replay memory goes before a newer one without: the steps between the two are trained again
    sooner than a memory is filled. Newer is what the ledger recorded later, not what has more steps: a checkpoint that
    is damaged sends its trial back to fewer steps.

    Args:
        records: The trial's checkpoints.
    """
    return max(records, key=lambda record: (record.replay, record.sequence), default=None)
