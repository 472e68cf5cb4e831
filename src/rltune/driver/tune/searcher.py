"""Give Tune the next trial to run: one of the search, or a certification run if a slot would stay free.

Runs in the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ray.tune.search import Searcher

from rltune.driver.tune.assignments import Assignments
from rltune.driver.tune.proposals import Stage
from rltune.records import TRIALS

if TYPE_CHECKING:
    from rltune.cluster.slots import Slots
    from rltune.driver.requests.inbox import Inbox
    from rltune.driver.stopper import SweepStopper

MAX_IN_A_ROW = 8  # Tune reads no reports during a series of proposals, and a thousand of them take half a minute.


class StageSearcher(Searcher):
    """Tune searcher that returns the trials of the search and of the certification, see `Stage`.

    A proposal waits until a slot is free, so that it is based on all reports until then.

    Args:
        stages: The stages, the search's first.
        assignments: Makes the workers' assignments.
        slots: How many trials run at once.
        inbox: The requests to the sweep.
        stopper: Ends the sweep early.
        note: Shows the user a line.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        assignments: Assignments,
        slots: Slots,
        inbox: Inbox,
        stopper: SweepStopper,
        note: Callable[[str], None],
    ) -> None:
        super().__init__(metric="score", mode="max")
        self._assignments, self._slots, self._inbox, self._stopper = assignments, slots, inbox, stopper
        self._note = note
        self._stages = {stage.table.kind: stage for stage in stages}
        self._live: dict[str, str] = {}  # The kinds of Tune's running trials by Tune's id.
        self._num_in_a_row = 0

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Return the next trial's config; None if it must wait for a slot or for running trials, FINISHED at the end.

        Tune asks until it gets None, and sees to its running trials only then. So this returns None after
        `MAX_IN_A_ROW` proposals, too.
        """
        if self._stopper.is_requested():
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
        """Reopen failed trials that users want to retry, and propose them next."""
        for record in reversed(self._inbox.reopen_failed(self._note)):
            self._stages[record.kind].retry(record)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Free the trial's slot; the recorder writes the ledger before Tune asks for the next trial."""
        self._live.pop(trial_id, None)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle no attributes, because Tune pickles its searcher for a restore that rltune does not use."""
        return {}

    def save(self, checkpoint_path: str) -> None:
        """Save nothing, because a resume reads everything from the ledger."""

    def restore(self, checkpoint_path: str) -> None:
        """Restore nothing, because a resume reads everything from the ledger."""
