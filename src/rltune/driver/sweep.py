"""What a sweep is in its driver: the objects that the steps of a sweep hand on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rltune.certification.retraining import Retraining
    from rltune.checkpoints.retention import Retention
    from rltune.checkpoints.store import Store
    from rltune.cluster.resources import Share
    from rltune.cluster.slots import Slots
    from rltune.driver.display import Display, Heartbeats
    from rltune.driver.plan import Invocation, Plan
    from rltune.driver.requests.inbox import Inbox
    from rltune.driver.stopper import SweepStopper
    from rltune.ledger.ledger import Ledger
    from rltune.ledger.optuna_study import OptunaStudy
    from rltune.search.schedulers import StoppingRule
    from rltune.tracking.feed import Feeds
    from rltune.views.console import Console


@dataclass(frozen=True)
class Search:
    """What only the training of a sweep's trials needs.

    Attributes:
        share: A trial's share of the machine.
        rule: Stops weak trials; it has seen the reports of earlier drivers.
        study: Optuna's study, derived from the ledger.
        inbox: The requests to the sweep.
        heartbeats: The progress of the running trials between two reports.
    """

    share: Share
    rule: StoppingRule
    study: OptunaStudy
    inbox: Inbox
    heartbeats: Heartbeats


@dataclass(frozen=True)
class Sweep:
    """A sweep in its driver, see `rltune.driver.open_sweep.open_sweep`.

    Attributes:
        plan: What is to be done, and in which folder.
        invocation: How the driver was called.
        ledger: The sweep's ledger, the source of truth; this driver holds its lease.
        store: Holds the checkpoints.
        retention: Drops the checkpoints that nobody needs any more.
        slots: How many trials run at once.
        search: What only the training of trials needs.
        retraining: The certification's runs; None if nothing is certified.
        stopper: Ends the sweep early.
        tracker: Delivers the sweep to its trackers.
        console: Shows the sweep to the user.
        display: Draws the sweep on the console.
    """

    plan: Plan
    invocation: Invocation
    ledger: Ledger
    store: Store
    retention: Retention
    slots: Slots
    search: Search
    retraining: Retraining | None
    stopper: SweepStopper
    tracker: Feeds
    console: Console
    display: Display

    def is_certified(self) -> bool:
        """Return whether all certification runs have ended; True without certification."""
        return self.retraining is None or self.retraining.is_done(self.ledger.trials.records())
