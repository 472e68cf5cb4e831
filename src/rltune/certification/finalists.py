"""Rank a search's trials to find the finalists, and derive the seeds of the episodes that evaluate them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rltune.checkpoints.store import Store
from rltune.ledger.ranking import rank_records
from rltune.policies.acting import read_acting
from rltune.policies.rllib_policy import is_rllib_policy
from rltune.records import BASELINE, Direction, RunKey, TrialRecord

if TYPE_CHECKING:
    from rltune.policies.result import Evaluation


EVALUATION_SEED = 1_000_003  # The same in all sweeps, so that a champion and its challenger play the same episodes.
OWN_SEED = 10_000_003  # The first seed of the range that `derive_own_seed` chooses from.
RUN_SEED = 1_010_000_003  # The first seed of the range that `derive_run_seed` chooses from.
SCORE_SEED = 2_110_000_003  # The same at each report of all trials and sweeps, so that scores differ by policies alone.
RANGE = 1_000_000_000  # The length of both ranges. All seeds stay below 2**31, the limit of many libraries.
Show = Callable[[str, int, int], None]
"""Shows the user which policy plays, how many episodes are done, and of how many."""


def show_nothing(*_: Any) -> None:
    """Ignore the progress of an evaluation: the default for callers without a display."""


def derive_own_seed(sweep: str) -> int:
    """Return the first environment seed of the episodes that only this sweep plays, for an unbiased mean.

    On the episodes from `EVALUATION_SEED` the champion is the best of all sweeps so far, so that its mean there is too
    good. On episodes that only this sweep plays, the mean is unbiased.

    Args:
        sweep: The sweep's name.
    """
    return OWN_SEED + _hash_name(sweep)


def derive_run_seed(sweep: str, seed_index: int, episodes: int) -> int:
    """Return the environment seed of the first episode that a certification run plays.

    The runs of each training seed play other episodes. If all runs played the same ones, then they would share the
    luck of these episodes, and no interval of the runs' returns would contain it. All configurations play the same
    episodes for the same training seed.

    Args:
        sweep: The sweep's name.
        seed_index: The index of the training seed among those of the certification, from 0.
        episodes: The number of episodes of each run.
    """
    return RUN_SEED + _hash_name(sweep) + seed_index * episodes


def _hash_name(sweep: str) -> int:
    """Hash a sweep's name to a number below `RANGE`, so that different sweeps play different episodes."""
    return int.from_bytes(hashlib.sha256(sweep.encode()).digest()[:8]) % RANGE


@dataclass(frozen=True)
class Finalist:
    """A policy that may become the sweep's winner.

    Attributes:
        name: The name of its configuration: ``trial 7`` or ``baseline``.
        trial: The number of the search's trial; None for a baseline that the search did not try.
        params: The values of the searched parameters.
        objective: The score of the trial in the search; None without a trial.
        folder: The checkpoint.
        run: The key of its run in MLflow: the trial's, or that of a certification run.
        target_steps: The environment steps at which the trial held ``budget.target``; None if it did not.
        evaluation: Its evaluation on the episodes that are the same in every sweep; None if it was not evaluated.
        measured: Its evaluation on episodes that only this sweep plays. Users see these numbers. None if it was not
            measured.
    """

    name: str
    trial: int | None
    params: Mapping[str, Any]
    objective: float | None
    folder: Path
    run: RunKey
    evaluation: Evaluation | None = None
    measured: Evaluation | None = None
    target_steps: int | None = None

    @property
    def score(self) -> float:
        """The score by which finalists are compared: the evaluation's if there is one, else the search's, else NaN."""
        if self.evaluation is not None:
            return self.evaluation.mean
        return math.nan if self.objective is None else self.objective


def rank_finalists(store: Store, records: Sequence[TrialRecord], direction: Direction) -> Iterator[Finalist]:
    """Yield the trials that have a checkpoint as finalists, best first, as `rank_records` sorts them.

    Of several trials with the same values, as a small space has them, only the best is a finalist.
    """
    chosen: list[Mapping[str, Any]] = []
    for record in rank_records(records, direction):
        folder = store.open(record.checkpoint)
        if folder is not None and record.params not in chosen:
            chosen.append(record.params)
            names = record.name, record.number, record.params
            yield Finalist(*names, record.score, folder, record.run_key, target_steps=record.target_steps)


def is_playable(folder: Path) -> bool:
    """Return whether a checkpoint's policy can play episodes: it has a policy bundle, or RLlib's own policy files."""
    return (folder / "policy").is_dir() or is_rllib_policy(folder)


def describe_winner(finalist: Finalist | None, sweep: Path, records: Sequence[TrialRecord]) -> dict[str, Any] | None:
    """Describe the winner for ``summary.json``; None without a winner.

    Args:
        finalist: The winner.
        sweep: The sweep's folder.
        records: The trials of the search, which know where their values come from.
    """
    if finalist is None:
        return None
    summary: dict[str, Any] = {
        "name": finalist.name,
        "trial": finalist.trial,
        "params": dict(finalist.params),
        "origin": next((record.origin for record in records if record.number == finalist.trial), BASELINE),
        "objective": finalist.objective,
        "checkpoint": str(finalist.folder.relative_to(sweep)),
    }
    if finalist.target_steps is not None:
        summary["target_steps"] = finalist.target_steps
    if acting := read_acting(finalist.folder):
        summary["acting"] = acting
    if evaluation := finalist.measured:
        summary["evaluation"] = {
            "episodes": len(evaluation.returns),
            "mean": evaluation.mean,
            "iqm": evaluation.iqm,
            "low": evaluation.low,
            "high": evaluation.high,
        }
        if evaluation.metrics:
            summary["evaluation"]["metrics"] = evaluation.measure()
    return summary
