"""Propose the search's trials in order: unfinished, enqueued, warm starts, portfolio, the sampler's.

Runs in the driver; knows nothing of Tune.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from rltune.config.budget import STEPS_SPENT
from rltune.ledger.trial_table import TrialTable
from rltune.records import ENQUEUED, TrialRecord

if TYPE_CHECKING:
    from rltune.driver.open_sweep import OpenSweep


class Stage(Protocol):
    """Proposes one kind of trials: the search's or the certification's; a protocol.

    One run of Tune has both, so that runs of the certification take the slots that the search's last trials leave free.

    Attributes:
        table: The trials of this kind in the ledger.
    """

    table: TrialTable

    def propose(self, is_search_over: bool) -> TrialRecord | None:
        """Return the ledger's record of the next trial to run; None if none can start at the moment.

        Args:
            is_search_over: Whether every trial of the search has ended.
        """

    def retry(self, record: TrialRecord) -> None:
        """Propose a trial again before all others, because an attempt at it failed or a user wants to retry it."""


class SearchProposals:
    """Proposes the search's trials. Its state follows from the ledger, so that a resume continues it.

    Args:
        sweep: The sweep.

    Attributes:
        table: The search's trials in the ledger.
    """

    def __init__(self, sweep: OpenSweep) -> None:
        self._sweep, self.table = sweep, sweep.ledger.trials
        self._waiting = [record for record in self.table.records() if record.state == "RUNNING"]
        # Each enqueued configuration has taken a trial's number, which delays the warm starts by one.
        self._num_enqueued = sweep.inbox.count_begun()
        self._was_spent = False

    def propose(self, is_search_over: bool) -> TrialRecord | None:
        """Return the next trial to run; None when the budget of trials or environment steps is used up."""
        if self._waiting:
            return self._waiting.pop(0)
        number, plan, study = self.table.num_trials, self._sweep.plan, self._sweep.study
        if number >= plan.budget.trials or self._has_spent_steps():
            return None
        enqueued = self._sweep.inbox.find_enqueued()
        if enqueued:
            given, origin = plan.encode_request(enqueued.payload), ENQUEUED
        else:
            given, origin = plan.fixed_values(number - self._num_enqueued)
        proposal = study.propose(given, plan.sampler(number), plan.space.draw)
        record = self.table.add(
            plan.space.decode(proposal.drawn),
            plan.seeds(number),
            enqueued.id if enqueued else None,
            proposal.trial_state,
            proposal.study_state,
            drawn=proposal.drawn,
            origin=origin,
        )
        self._num_enqueued += enqueued is not None
        return record

    def retry(self, record: TrialRecord) -> None:
        """Propose a trial again before all others, because an attempt at it failed or a user wants to retry it."""
        self._waiting.insert(0, record)

    def _has_spent_steps(self) -> bool:
        is_spent = self._sweep.stopper.has_spent_steps()
        if is_spent and not self._was_spent:
            self._sweep.console.note(f"{STEPS_SPENT}: no further trial begins")
        self._was_spent |= is_spent
        return is_spent
