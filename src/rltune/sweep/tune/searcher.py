"""Propose what is tried next: a Tune Searcher over the study's ask and tell.

Order: trials that an interrupted sweep left unfinished, then the warm starts, then the sampler's proposals until the
budget of trials is spent. Runs in the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from optuna.samplers import BaseSampler
from ray.tune.search import Searcher

from rltune.search.space import Space
from rltune.study.record import TrialRecord
from rltune.study.study import Study


@dataclass(frozen=True)
class SearchPlan:
    """What a searcher goes through.

    Attributes:
        num_trials: The budget.
        slots: Trials at once; a proposal waits until one is free, so that it knows all that is known by then.
        warm_starts: Values by name for the first trials.
        unfinished: Trials to continue.
        seeds: Returns a trial's seeds from its number.
        sampler: Returns what proposes a trial, from its number: a resumed sweep proposes what an unbroken one would
            have.
    """

    num_trials: int
    slots: int
    warm_starts: Sequence[Mapping[str, Any]]
    unfinished: Sequence[TrialRecord]
    seeds: Callable[[int], list[int]]
    sampler: Callable[[int], BaseSampler]


class StudySearcher(Searcher):
    """Proposes trials and keeps nothing that the study does not hold.

    Args:
        study: The ledger.
        space: What is searched.
        plan: What to go through.
        assign: Turns a record into Tune's config for the worker.
        is_stopping: Whether no more trials are wanted.
        on_idle: Called when one more slot has nothing left to try; None for nothing.
    """

    def __init__(
        self,
        study: Study,
        space: Space,
        plan: SearchPlan,
        assign: Callable[[TrialRecord], dict[str, Any]],
        is_stopping: Callable[[], bool],
        on_idle: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(metric="objective", mode="max")
        self._study, self._space, self._plan = study, space, plan
        self._assign, self._is_stopping, self._on_idle = assign, is_stopping, on_idle
        self._unfinished = list(plan.unfinished)
        self._live: dict[str, int] = {}
        self._num_idle = 0

    @property
    def num_live(self) -> int:
        """Trials that were proposed and have not ended."""
        return len(self._live)

    def trials(self) -> list[TrialRecord]:
        """All trials as the ledger has them."""
        return self._study.trials()

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Return the next trial's config; None while all slots are taken, FINISHED when nothing is left to try."""
        if self._is_stopping():
            return str(Searcher.FINISHED)
        if len(self._live) >= self._plan.slots:
            return None
        if self._unfinished:
            record = self._complete(self._unfinished.pop(0))
        elif self._study.num_trials < self._plan.num_trials:
            record = self._propose()
        elif self._live:
            self._report_idle_slots()
            return None  # one of them may have to be tried again
        else:
            return str(Searcher.FINISHED)
        self._live[trial_id] = record.number
        return self._assign(record)

    def _report_idle_slots(self) -> None:
        """Call ``on_idle`` once for each slot that falls idle: Tune calls `suggest` again and again meanwhile."""
        num_idle = self._plan.slots - len(self._live)
        if num_idle > self._num_idle and self._on_idle:
            self._on_idle()
        self._num_idle = num_idle

    def _complete(self, record: TrialRecord) -> TrialRecord:
        """Draw what is missing: a driver killed between `ask` and `note` left a trial without values and seeds."""
        if record.seeds:
            return record
        number = record.number
        raw = self._study.complete(number, self._plan.sampler(number), self._space.draw)
        return self._note(number, raw)

    def _propose(self) -> TrialRecord:
        number = self._study.num_trials
        warm = self._plan.warm_starts[number] if number < len(self._plan.warm_starts) else {}
        sampler = self._plan.sampler(number)
        return self._note(*self._study.ask(self._space.draw, self._space.encode(warm), sampler))

    def _note(self, number: int, raw: Mapping[str, Any]) -> TrialRecord:
        self._study.note(number, params=self._space.decode(raw), seeds=self._plan.seeds(number))
        return self._study.trial(number)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Free the slot; the recorder has written the ledger already."""
        self._live.pop(trial_id, None)

    def retry(self, record: TrialRecord) -> None:
        """Put a trial that went wrong back in front."""
        self._unfinished.insert(0, record)

    def __getstate__(self) -> dict[str, Any]:
        """Return nothing: Tune pickles its searcher for a restore that is never used."""
        return {}

    def save(self, checkpoint_path: str) -> None:
        """Keep nothing: the study holds it all."""

    def restore(self, checkpoint_path: str) -> None:
        """Restore nothing: the study holds it all."""
