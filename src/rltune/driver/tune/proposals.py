"""Propose the search's trials in order: unfinished, enqueued, warm starts, portfolio, the sampler's.

Runs in the driver; knows nothing of Tune.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from rltune.config.budget import STEPS_SPENT
from rltune.ledger.trial_table import TrialTable
from rltune.records import ENQUEUED, TrialRecord

if TYPE_CHECKING:
    from rltune.driver.plan import Plan
    from rltune.driver.requests.inbox import Inbox
    from rltune.driver.stopper import SweepStopper
    from rltune.ledger.optuna_study import OptunaStudy


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

    def learn(self, record: TrialRecord) -> None:
        """Take a trial that has ended into account for those that are proposed later."""


class SearchProposals:
    """Proposes the search's trials. Its state follows from the ledger, so that a resume continues it.

    Args:
        plan: The sweep's plan.
        table: The search's trials in the ledger.
        study: Optuna's study of them.
        inbox: Has the enqueued configurations.
        stopper: Counts the environment steps.
        note: Shows the user a line.

    Attributes:
        table: As given.
    """

    def __init__(
        self,
        plan: Plan,
        table: TrialTable,
        study: OptunaStudy,
        inbox: Inbox,
        stopper: SweepStopper,
        note: Callable[[str], None],
    ) -> None:
        self._plan, self.table, self._study, self._inbox = plan, table, study, inbox
        self._stopper, self._note = stopper, note
        self._waiting = [record for record in self.table.records() if record.state == "RUNNING"]
        # Each enqueued configuration has taken a trial's number, which delays the warm starts by one.
        self._num_enqueued = inbox.count_begun()
        self._has_changed_space = inbox.has_changed_space()
        self._was_spent = False

    def propose(self, is_search_over: bool) -> TrialRecord | None:
        """Return the next trial to run; None when the budget of trials or environment steps is used up."""
        if self._waiting:
            return self._waiting.pop(0)
        number, plan = self.table.num_trials, self._plan
        if number >= plan.budget.trials or self._has_spent_steps():
            return None
        enqueued = self._inbox.find_enqueued()
        if enqueued:
            given, origin = plan.encode_request(enqueued.payload), ENQUEUED
            labels = {dimension.name: dimension.label for dimension in plan.space.dimensions}
            if outside := [name for name in enqueued.payload if labels.get(name) not in given and name in labels]:
                self._note(f"trial {number}: {', '.join(outside)} as enqueued is no longer in the space, and is drawn")
        else:
            tried = [record.params for record in self.table.records()] if self._has_changed_space else ()
            given, origin = plan.fixed_values(number - self._num_enqueued, tried)
        proposal = self._study.propose(given, plan.sampler(number), plan.space.draw)
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
        self._study.reopen(record)
        self._waiting.insert(0, record)

    def learn(self, record: TrialRecord) -> None:
        """Report a trial that has ended to Optuna's study."""
        self._study.tell(record)

    def _has_spent_steps(self) -> bool:
        is_spent = self._stopper.has_spent_steps()
        if is_spent and not self._was_spent:
            self._note(f"{STEPS_SPENT}: no further trial begins")
        self._was_spent |= is_spent
        return is_spent
