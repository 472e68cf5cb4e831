"""Stop a whole sweep early: at the end of a budget, after a signal or after a failure. Runs in the driver."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ray.tune import Stopper

from rltune.checkpoints.clients import StoreError
from rltune.checkpoints.store import Store
from rltune.config.budget import has_spent_steps
from rltune.config.schema import BudgetConfig
from rltune.trial.supervisor import STOP_FILE

if TYPE_CHECKING:
    from rltune.ledger.lease import Lease

GRACE_S = 8.0  # Seconds that trials have to save their state after a stop request.
EXIT_S = 9.5  # Seconds from a signal to the driver's exit.


class SweepStopper(Stopper):
    """Decides that a sweep ends early, with reason and deadline; shared by all threads of the driver.

    Args:
        store: The sweep's store, in which trials look for the stop file.
        budget: The sweep's budget.
        spent_steps: The environment steps that earlier drivers have spent.
        lease: The sweep's lease, whose loss ends the sweep; None in tests.
        waits_for_nodes: Whether wall time starts with the first trial, because a joined cluster may have to get nodes.

    Attributes:
        on_lease_lost: Called when the lease is lost, from any thread.
    """

    def __init__(
        self,
        store: Store,
        budget: BudgetConfig,
        spent_steps: int = 0,
        lease: Lease | None = None,
        *,
        waits_for_nodes: bool = False,
    ) -> None:
        self._store, self._lease = store, lease
        # Whether another driver has taken the lease. If so, the stop file is that driver's.
        self.lease_lost = False
        self.on_lease_lost: Callable[[], None] = lambda: None
        self.clear()
        self._budget = budget
        self._began: float | None = None if waits_for_nodes else time.monotonic()
        self._deadline = math.inf
        self.env_steps = spent_steps
        self.reason: str | None = None
        self.signal: int | None = None
        self.interrupted = False  # Whether the command ends with exit code 75: the same command may succeed later.
        self.has_failed = False  # Whether it ends with exit code 1, even with a winner: its trials fail on and on.
        self.head_gone = False  # Whether the cluster's head node is lost, so that Ray answers no calls.
        self.active_trial_dirs: set[str] = set()  # The folders of running trials, which have a state to save.
        if lease:
            lease.on_lost = self.lose_lease
            if lease.is_lost:
                self.lose_lease()

    def __getstate__(self) -> dict[str, Any]:
        """Pickle no attributes: Tune (2.60) writes the pickle to a file that all can read, and it might hold logins."""
        return {}

    def request(self, reason: str, signal: int | None = None) -> None:
        """Ask all running trials, by a stop file, to save their training state and stop.

        A second request changes nothing, except that a signal leaves only seconds to a sweep that a budget has ended.

        Args:
            reason: Shown to the user, and kept in the outcome.
            signal: The signal's number; None where a budget or a failure ends the sweep.
        """
        if self.lease_lost:
            return
        if self.reason is None or (signal is not None and not self.is_urgent()):
            self.reason, self.signal = reason, signal
            self._deadline = time.monotonic() + GRACE_S
            if self.is_urgent():
                self._store.client.set_deadline(EXIT_S - 0.5)
            # On a full disk or without the storage, trials do not see the stop file and are killed at the deadline.
            with contextlib.suppress(OSError, StoreError):
                self._store.write(STOP_FILE, b"", is_quick=True)

    def interrupt(self, reason: str) -> None:
        """Stop the sweep for a temporary failure, after which the same command can resume it."""
        self.interrupted = True
        self.request(reason)

    def fail(self, reason: str) -> None:
        """Stop the sweep for a failure that would happen again with the same command."""
        self.has_failed = True
        self.request(reason)

    def lose_lease(self) -> None:
        """Abandon all trials at once, without saving, because another driver has taken the sweep over.

        Called from any thread.
        """
        self.lease_lost, self.reason, self._deadline = True, "another driver has taken the sweep over", 0.0
        self.on_lease_lost()

    def lose_head(self) -> None:
        """Stop the sweep because the cluster's head node is lost; called from another thread."""
        self.head_gone = True
        self.request("the cluster's head is gone")

    def is_urgent(self) -> bool:
        """Return whether the rest of the sweep has to take seconds, as after a signal or the loss of the head node."""
        return self.signal is not None or self.head_gone or self.lease_lost

    def is_requested(self) -> bool:
        """Return whether the sweep was asked to stop."""
        return self.reason is not None

    def left_s(self) -> float:
        """Return the seconds until the driver must exit after a signal; at least 1, because MLflow may be starting."""
        return max(1.0, self._deadline - GRACE_S + EXIT_S - time.monotonic())

    def check_wall_time(self) -> None:
        """Stop the sweep when its wall time is used up."""
        limit_s, now = self._budget.wall_time_s, time.monotonic()
        if self._began is None and self.active_trial_dirs:
            self._began = now
        began = now if self._began is None else self._began
        if limit_s is not None and now - began >= limit_s:
            self.request("budget.wall_time_s is spent")

    def has_spent_steps(self) -> bool:
        """Return whether ``budget.total_env_steps`` is used up; then no trial starts, but running trials continue."""
        return has_spent_steps(self._budget, self.env_steps)

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Return whether Tune has to stop a trial, because the lease is lost; Tune asks after each result."""
        return self._lease is not None and not self._lease.is_held()

    def stop_all(self) -> bool:
        """Return whether Tune has to end: after a stop request, when no trial runs any more or the deadline has passed.

        Tune asks after each event.
        """
        return self.is_requested() and (not self.active_trial_dirs or time.monotonic() > self._deadline)

    def clear(self) -> None:
        """Delete the stop file, unless another driver now owns it."""
        if self.lease_lost:
            return
        with contextlib.suppress(OSError, StoreError):
            self._store.delete(STOP_FILE, is_quick=True)
