"""Read and carry out the requests that users send to a running sweep. Runs in the driver.

The driver's housekeeping reads the ledger's requests through all phases of a sweep, by one short query, and stops the
sweep itself. Requests that change trials wait until the driver's main thread fetches them, because only that thread
writes trials.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from signal import SIGINT
from typing import TYPE_CHECKING

from rltune.formatting import name_user
from rltune.records import ENQUEUE, RETRY, SPACE, STOP, SweepRequest, TrialRecord

if TYPE_CHECKING:
    from rltune.driver.stopper import SweepStopper
    from rltune.ledger.ledger import Ledger


class Inbox:
    """The pending requests of users to a running sweep, read from its ledger.

    Args:
        ledger: The sweep's ledger.
        stopper: Stops the sweep.
    """

    def __init__(self, ledger: Ledger, stopper: SweepStopper) -> None:
        self._ledger, self._stopper = ledger, stopper
        # Requests may be waiting from before this driver started.
        self._waiting: frozenset[str] = frozenset((ENQUEUE, RETRY))

    def read(self) -> None:
        """Read the pending requests from the ledger, and carry out a request to stop."""
        requests = self._ledger.read_requests()
        self._waiting = frozenset(request.kind for request in requests)
        for request in requests:
            if request.kind == STOP:
                self._stopper.request(f"stopped by {request.requested_by}", SIGINT)
                self._ledger.take_request(request.id)

    def find_enqueued(self) -> SweepRequest | None:
        """Return the next enqueued configuration or None; it stays pending until its trial is added to the ledger."""
        return next(iter(self._ledger.read_requests(ENQUEUE)), None) if ENQUEUE in self._waiting else None

    def count_begun(self) -> int:
        """Count the trials that came from enqueued configurations."""
        return sum(request.trial is not None for request in self._ledger.read_requests(ENQUEUE, waiting=False))

    def has_changed_space(self) -> bool:
        """Return whether a resume has changed what is searched."""
        return bool(self._ledger.read_requests(SPACE, waiting=False))

    def reopen_failed(self, notify: Callable[[str], None]) -> list[TrialRecord]:
        """Set failed trials and certification runs that users want to retry to RUNNING in the ledger, and return them.

        Args:
            notify: Shows the user a line of text.
        """
        return reopen_failed(self._ledger, notify) if RETRY in self._waiting else []


def withdraw_stops(ledger: Ledger) -> None:
    """Withdraw stop requests that were meant for an earlier driver.

    A driver does so as soon as it holds the sweep's lease, and obeys every later request. Times of requests are not
    compared, because the clocks of machines differ. Those who requested a stop notice that it was withdrawn.
    """
    for request in ledger.read_requests(STOP):
        ledger.withdraw_request(request.id)


def describe_user() -> str:
    """Return this process's user and host, such as ``maria@host``, as the sender of a request."""
    return f"{name_user()}@{socket.gethostname()}"


def reopen_failed(ledger: Ledger, notify: Callable[[str], None]) -> list[TrialRecord]:
    """Set the trials and runs of all retry requests to RUNNING in the ledger, so that they are continued.

    Args:
        ledger: The sweep's ledger.
        notify: Shows the user a line of text.
    """
    reopened = []
    for request in ledger.read_requests(RETRY):
        records = ledger.reopen_failed(request)
        reopened += records
        if records:
            notify(f"{', '.join(record.name for record in records)}: tried again, as {request.requested_by} has asked")
    return reopened
