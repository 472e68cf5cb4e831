"""Give Tune the next trial to run: those of the search first, and runs of the certification in the slots left free.

Runs in the driver.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ray.tune.search import Searcher

from rltune.driver.tune.assignments import Assignments
from rltune.driver.tune.proposals import Stage
from rltune.records import TRIALS

if TYPE_CHECKING:
    from rltune.driver.open_sweep import OpenSweep

MAX_IN_A_ROW = 8  # A thousand proposals in a row take half a minute, in which no trial starts and no report is read.


class StageSearcher(Searcher):
    """Proposes the trials of the sweep's stages, and keeps nothing that the ledger does not hold.

    A proposal waits until a slot is free, so that it is based on all reports until then.

    Args:
        sweep: The sweep.
        stages: The stages, the search's first.
        assignments: Makes the workers' assignments.
    """

    def __init__(self, sweep: OpenSweep, stages: Sequence[Stage], assignments: Assignments) -> None:
        super().__init__(metric="score", mode="max")
        self._sweep, self._slots, self._assignments = sweep, sweep.slots, assignments
        self._stages = {stage.table.kind: stage for stage in stages}
        self._live: dict[str, str] = {}  # The kind of each trial that Tune is running, by Tune's id.
        self._num_in_a_row = 0

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Return the next config; None while all slots are taken or a trial may yet be retried, FINISHED at the end.

        Tune asks until it gets None, and sees to its running trials only then. So this returns None after
        `MAX_IN_A_ROW` proposals, too.
        """
        if self._sweep.stopper.is_requested():
            return str(Searcher.FINISHED)
        self._reopen_failed()
        is_full = len(self._live) >= self._slots.count
        if is_full or self._num_in_a_row == MAX_IN_A_ROW:
            self._num_in_a_row = 0
            return None
        is_search_over = TRIALS not in self._live.values()
        for kind, stage in self._stages.items():
            if record := stage.propose(is_search_over):
                self._live[trial_id] = kind
                self._num_in_a_row += 1
                return self._assignments.make_config(record)
        return None if self._live else str(Searcher.FINISHED)

    def _reopen_failed(self) -> None:
        """Reopen the trials that a user wants to be retried, and propose them next."""
        reopened = self._sweep.inbox.reopen_failed(self._sweep.console.note)
        if any(record.kind == TRIALS for record in reopened):
            self._sweep.study.rebuild()
        for record in reversed(reopened):
            self._stages[record.kind].retry(record)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Free the slot; the recorder has written the ledger already."""
        self._live.pop(trial_id, None)

    def __getstate__(self) -> dict[str, Any]:
        """Return nothing: Tune pickles its searcher for a restore that is never used."""
        return {}

    def save(self, checkpoint_path: str) -> None:
        """Keep nothing: the ledger holds it all."""

    def restore(self, checkpoint_path: str) -> None:
        """Restore nothing: the ledger holds it all."""
