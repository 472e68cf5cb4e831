"""Propose the search's trials: what is unfinished or enqueued, then warm starts, then what the sampler proposes.

Runs in the driver; knows nothing of Tune.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from rltune.driver.plan import Plan
from rltune.driver.requests.inbox import Inbox
from rltune.ledger.disk_full import is_disk_full
from rltune.ledger.optuna_study import OptunaStudy
from rltune.ledger.trial_table import TrialTable
from rltune.records import TrialRecord

logger = logging.getLogger(__name__)


class Proposer(Protocol):
    """Say what is run next: the search's trials, or the certification's runs."""

    def propose(self, is_search_over: bool) -> TrialRecord | None:
        """Return what is to be run next, from the ledger; None while there is nothing.

        Args:
            is_search_over: Whether every trial of the search has ended.
        """

    def retry(self, record: TrialRecord) -> None:
        """Put what went wrong back in front."""


class SearchProposals:
    """Proposes trials, and keeps nothing that the ledger does not hold.

    Args:
        plan: What is searched, and what is tried first.
        trials: The ledger's.
        study: Optuna's, which agrees with the ledger.
        unfinished: Trials of earlier drivers to go on with.
        inbox: Knows the configurations that were enqueued by hand.
        is_spent: Whether no further trial may begin.
    """

    def __init__(
        self,
        plan: Plan,
        trials: TrialTable,
        study: OptunaStudy,
        unfinished: Sequence[TrialRecord],
        inbox: Inbox,
        is_spent: Callable[[], bool],
    ) -> None:
        self._is_spent = is_spent
        self._plan, self._trials, self._study, self._inbox = plan, trials, study, inbox
        self._waiting = list(unfinished)
        self._num_enqueued = inbox.count_begun()  # which push back the warm starts

    def propose(self, is_search_over: bool) -> TrialRecord | None:
        """Return the next trial; None when the budget of trials or environment steps is spent."""
        if self._waiting:
            return self._waiting.pop(0)
        number, plan = self._trials.num_trials, self._plan
        if number >= plan.config.budget.trials or self._is_spent():
            return None
        enqueued = self._inbox.find_enqueued()
        given = plan.space.encode(enqueued.payload) if enqueued else plan.given(number - self._num_enqueued)
        drawn = self._study.propose(given, plan.sampler(number), plan.space.draw)
        taken = enqueued.id if enqueued else None
        record = self._trials.add(plan.space.decode(drawn), plan.seeds(number), taken, drawn=drawn)
        self._num_enqueued += taken is not None
        self._begin_in_optuna(record)
        return record

    def _begin_in_optuna(self, record: TrialRecord) -> None:
        """Show the trial in Optuna's study; one that fails is made to agree when the sweep is opened the next time."""
        try:
            self._study.begin(record)
        except Exception as error:
            if is_disk_full(error):
                raise
            logger.exception("Optuna's study does not show %s", record.name)

    def retry(self, record: TrialRecord) -> None:
        """Put a trial that went wrong back in front."""
        self._waiting.insert(0, record)
