"""Hand Tune what is run next: the search's trials first, and the certification's runs in slots that they leave.

Runs in the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ray.tune.search import Searcher

from rltune.cluster.slots import Slots
from rltune.driver.tune.stages import Stage
from rltune.records import TrialRecord

BUNDLES = "bundles"  # beside a trial's assignment in Tune's config: its own, where they are not the common ones
MAX_IN_A_ROW = 8  # proposals: a thousand take half a minute, in which nothing starts and no report is read


class StageSearcher(Searcher):
    """Proposes what its stages propose, and keeps nothing that the ledger does not hold.

    Args:
        stages: The search's first.
        slots: Says how many trials run at once, which may change; a proposal waits until a slot is free, so that it
            knows all that is known by then.
        assign: Turns a record into Tune's config for the worker.
        is_stopping: Whether no more are wanted.
        look: Called before something is proposed: gives the stages what is to be tried again.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        slots: Slots,
        assign: Callable[[TrialRecord], dict[str, Any]],
        is_stopping: Callable[[], bool],
        look: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(metric="objective", mode="max")
        self._stages, self._slots, self._assign = stages, slots, assign
        self._is_stopping, self._look = is_stopping, look
        self._live: dict[str, Stage] = {}
        self._num_in_a_row = 0

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Return the next config; None while all slots are taken or a trial may yet be retried, FINISHED at the end.

        Tune asks until it gets None, and only then sees to its trials: it gets one after some proposals, too.
        """
        if self._is_stopping():
            return str(Searcher.FINISHED)
        self._look()
        is_full = len(self._live) >= self._slots.count or self._slots.are_kept
        if is_full or self._num_in_a_row == MAX_IN_A_ROW:
            self._num_in_a_row = 0
            return None
        is_search_over = not any(stage.is_search for stage in self._live.values())
        for stage in self._stages:
            if record := stage.proposer.propose(is_search_over):
                self._live[trial_id] = stage
                self._num_in_a_row += 1
                config = self._assign(record)
                self._slots.hold(trial_id, config.get(BUNDLES))
                return config
        return None if self._live else str(Searcher.FINISHED)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Free the slot; the recorder has written the ledger already."""
        self._live.pop(trial_id, None)
        self._slots.release(trial_id)

    def __getstate__(self) -> dict[str, Any]:
        """Return nothing: Tune pickles its searcher for a restore that is never used."""
        return {}

    def save(self, checkpoint_path: str) -> None:
        """Keep nothing: the ledger holds it all."""

    def restore(self, checkpoint_path: str) -> None:
        """Restore nothing: the ledger holds it all."""
