"""What is tried next: a Tune Searcher over the study's ask and tell.

Order: trials that an interrupted sweep left unfinished, then the warm starts, then the sampler's proposals until the
budget of trials is spent. Runs in the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from optuna.samplers import BaseSampler
from ray.tune.search import Searcher

from rltune.search.space import Space
from rltune.study.record import TrialRecord
from rltune.study.study import Study


class SearchPlan:
    """What a searcher is to go through.

    Args:
        num_trials: The budget.
        slots: Trials at once; a proposal waits until one is free, so that it knows all that is known by then.
        warm_starts: Values by name for the first trials.
        unfinished: Trials to continue.
        seeds: A trial's seeds from its number.
        sampler: What proposes a trial, from its number: a resumed sweep proposes what an unbroken one would have.
    """

    def __init__(
        self,
        num_trials: int,
        slots: int,
        warm_starts: Sequence[Mapping[str, Any]],
        unfinished: Sequence[TrialRecord],
        seeds: Callable[[int], list[int]],
        sampler: Callable[[int], BaseSampler],
    ) -> None:
        self.num_trials, self.slots, self.warm_starts = num_trials, slots, list(warm_starts)
        self.unfinished, self.seeds = list(unfinished), seeds
        self.sampler = sampler


class StudySearcher(Searcher):
    """Proposes trials and keeps nothing that the study does not hold.

    Args:
        study: The ledger.
        space: What is searched.
        plan: What to go through.
        assign: Turns an entry into Tune's config for the worker.
        stopping: Whether no more trials are wanted.
    """

    def __init__(
        self,
        study: Study,
        space: Space,
        plan: SearchPlan,
        assign: Callable[[TrialRecord], dict[str, Any]],
        stopping: Callable[[], bool],
    ) -> None:
        super().__init__(metric="objective", mode="max")
        self._study, self._space, self._plan = study, space, plan
        self._assign, self._stopping = assign, stopping
        self._unfinished = list(plan.unfinished)
        self._live: dict[str, int] = {}
        self._spare = 0
        self.idle: Callable[[], None] = lambda: None  # told when one more slot has nothing left to try

    @property
    def num_live(self) -> int:
        """Proposed and not ended."""
        return len(self._live)

    def entries(self) -> list[TrialRecord]:
        """All trials as the ledger has them."""
        return self._study.entries()

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """The next trial's config; None while all slots are taken, FINISHED when nothing is left to try."""
        if self._stopping():
            return str(Searcher.FINISHED)
        if len(self._live) >= self._plan.slots:
            return None
        if self._unfinished:
            entry = self._whole(self._unfinished.pop(0))
        elif self._study.num_trials < self._plan.num_trials:
            entry = self._new()
        elif self._live:
            self._told_idle()
            return None  # one of them may have to be tried again
        else:
            return str(Searcher.FINISHED)
        self._live[trial_id] = entry.number
        return self._assign(entry)

    def _told_idle(self) -> None:
        """Tune asks again and again."""
        spare = self._plan.slots - len(self._live)
        if spare > self._spare:
            self.idle()
        self._spare = spare

    def _whole(self, entry: TrialRecord) -> TrialRecord:
        """A driver that was killed between the question and its notes left a trial without values and seeds."""
        if "seeds" in entry.attributes:
            return entry
        number = entry.number
        raw = self._study.complete(number, self._plan.sampler(number), self._space.draw)
        return self._noted(number, raw)

    def _new(self) -> TrialRecord:
        asked = self._study.num_trials
        warm = self._plan.warm_starts[asked] if asked < len(self._plan.warm_starts) else {}
        sampler = self._plan.sampler(asked)
        return self._noted(*self._study.ask(self._space.draw, self._space.encode(warm), sampler))

    def _noted(self, number: int, raw: Mapping[str, Any]) -> TrialRecord:
        self._study.note(number, params=self._space.decode(raw), seeds=self._plan.seeds(number))
        return self._study.entry(number)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Free the slot; the conductor has told the ledger already."""
        self._live.pop(trial_id, None)

    def retry(self, entry: TrialRecord) -> None:
        """Put a trial that went wrong back in front."""
        self._unfinished.insert(0, entry)

    def __getstate__(self) -> dict[str, Any]:
        """Tune pickles its searcher for a restore that is never used: the study holds it all."""
        return {}

    def save(self, checkpoint_path: str) -> None:
        """Nothing to keep: the study holds it all."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing to restore."""
