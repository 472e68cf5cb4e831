"""Rank the trials of a search as finalists, and choose the episodes on which policies are played."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rltune.checkpoints.store import find_store
from rltune.ledger.ranking import rank_records
from rltune.policies.rllib_policy import is_rllib_policy
from rltune.records import Direction, RunKey, TrialRecord

if TYPE_CHECKING:
    from rltune.policies.evaluation import Evaluation


EVALUATION_SEED = 1_000_003  # All sweeps play the same episodes from here on, so that champions can be compared.
OWN_SEED = 10_000_003  # The first seed of the range for measuring winners, see `derive_own_seed`.
RUN_SEED = 1_010_000_003  # The first seed of the range for certification runs, see `derive_run_seed`.
SEEDS_APART = 1_000_000_000  # The length of both ranges. All seeds stay below 2**31, the limit of some libraries.
Show = Callable[[str, int, int], None]
"""Shows progress: what is played, how many episodes are done, and of how many."""


def show_nothing(*_: Any) -> None:
    """Show no progress."""


def derive_own_seed(sweep: str) -> int:
    """Return the first environment seed of the episodes that measure a sweep's winner and choose nothing.

    The champion is the best policy of all sweeps on the episodes from `EVALUATION_SEED`, so its mean there is the
    luckiest of many. Its mean on episodes of one sweep alone is unbiased.

    Args:
        sweep: The sweep's name.
    """
    return OWN_SEED + _hash_name(sweep)


def derive_run_seed(sweep: str, seed_index: int, episodes: int) -> int:
    """Return the environment seed of the first episode that a certification run plays.

    Each training seed has start states of its own. If all runs played the same ones, then the luck of these start
    states would be common to all runs, and an interval of the runs' returns could not see it. Configurations are
    compared seed by seed on the same start states.

    Args:
        sweep: The sweep's name.
        seed_index: Which of the certification's training seeds, from 0.
        episodes: How many episodes each run plays.
    """
    return RUN_SEED + _hash_name(sweep) + seed_index * episodes


def _hash_name(sweep: str) -> int:
    """Return a number below `SEEDS_APART` that differs between sweeps."""
    return int.from_bytes(hashlib.sha256(sweep.encode()).digest()[:8]) % SEEDS_APART


@dataclass(frozen=True)
class Finalist:
    """A policy that may win.

    Attributes:
        name: The name of its configuration: ``trial 7`` or ``baseline``.
        trial: The number of the search's trial; None for a baseline that the search did not try.
        params: The configuration's values by name.
        objective: The score in the search; None without a trial.
        folder: The folder of the checkpoint.
        run: The run in MLflow: that of the trial, or that of a seed of the certification.
        evaluation: The evaluation on the episodes that are the same in every sweep; None if it was not evaluated.
        measured: The evaluation on the sweep's own episodes, with the interval of
            `rltune.statistics.predictive_interval`. This is what users see. None if it was not measured.
    """

    name: str
    trial: int | None
    params: Mapping[str, Any]
    objective: float | None
    folder: Path
    run: RunKey
    evaluation: Evaluation | None = None
    measured: Evaluation | None = None

    @property
    def score(self) -> float:
        """The score that policies are compared by: the evaluation's mean, else the search's score; NaN without both."""
        if self.evaluation is not None:
            return self.evaluation.mean
        return math.nan if self.objective is None else self.objective


def rank_finalists(sweep: Path, records: Sequence[TrialRecord], direction: Direction) -> Iterator[Finalist]:
    """Yield the trials with a whole checkpoint, best first, as `rank_records` sorts them."""
    store = find_store(sweep)
    for record in rank_records(records, direction):
        folder = store.open(record.checkpoint)
        if folder is not None:
            yield Finalist(record.name, record.number, record.params, record.score, folder, record.run_key)


def is_playable(folder: Path) -> bool:
    """Return whether a checkpoint can be evaluated, from its bundle or with RLlib's modules."""
    return (folder / "policy").is_dir() or is_rllib_policy(folder)


def describe_winner(finalist: Finalist | None, sweep: Path) -> dict[str, Any] | None:
    """Describe the winner as ``summary.json`` has it; None without a winner."""
    if finalist is None:
        return None
    winner: dict[str, Any] = {
        "name": finalist.name,
        "trial": finalist.trial,
        "params": dict(finalist.params),
        "objective": finalist.objective,
        "checkpoint": str(finalist.folder.relative_to(sweep)),
    }
    if evaluation := finalist.measured:
        winner["evaluation"] = {
            "episodes": len(evaluation.returns),
            "mean": evaluation.mean,
            "iqm": evaluation.iqm,
            "low": evaluation.low,
            "high": evaluation.high,
        }
    return winner
