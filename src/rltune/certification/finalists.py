"""Rank what a search found, best first."""

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


EVALUATION_SEED = 1_000_003  # the same episodes for all sweeps, so that a champion and its challenger are comparable
OWN_SEED = 10_000_003  # from here on the episodes that measure one sweep's winner, see `derive_own_seed`
RUN_SEED = 1_010_000_003  # from here on the episodes of one sweep's certification runs, see `derive_run_seed`
SEEDS_APART = 1_000_000_000  # Both ranges are this long, so that all seeds stay below 2**31, which all libraries take.
Show = Callable[[str, int, int], None]
"""Shows a person who plays, how many episodes are done, and of how many."""


def show_nothing(*_: Any) -> None:
    """Show nobody how far it is."""


def derive_own_seed(sweep: str) -> int:
    """Return the first environment seed of the episodes that a sweep's winner is measured on, and nothing is chosen by.

    Every sweep's champion is the best of all so far on the episodes from `EVALUATION_SEED`. Its mean there is the
    luckiest of as many, so that it tells too much; on episodes of the sweep's own it does not.

    Args:
        sweep: Its name.
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
        name: Its configuration: ``trial 7`` or ``baseline``.
        trial: The search's trial; None for a baseline that the search did not try.
        params: Its values.
        objective: What the search believed; None without a trial.
        folder: The checkpoint.
        run: Its run in MLflow: the trial's, or that of a certification's seed.
        evaluation: On the episodes that are the same in every sweep; None when it was not evaluated.
        measured: On the sweep's own episodes, with the interval of `rltune.statistics.predictive_interval`: what a
            person is shown. None when it was not measured.
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
    """Whether a checkpoint can be evaluated: from its bundle, or by RLlib's own parts."""
    return (folder / "policy").is_dir() or is_rllib_policy(folder)


def describe_winner(finalist: Finalist | None, sweep: Path) -> dict[str, Any] | None:
    """Describe the winner as the summary has it; None without one."""
    if finalist is None:
        return None
    found: dict[str, Any] = {
        "name": finalist.name,
        "trial": finalist.trial,
        "params": dict(finalist.params),
        "objective": finalist.objective,
        "checkpoint": str(finalist.folder.relative_to(sweep)),
    }
    if evaluation := finalist.measured:
        found["evaluation"] = {
            "episodes": len(evaluation.returns),
            "mean": evaluation.mean,
            "iqm": evaluation.iqm,
            "low": evaluation.low,
            "high": evaluation.high,
        }
    return found
