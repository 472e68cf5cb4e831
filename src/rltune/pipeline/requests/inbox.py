"""See to what is asked of a sweep while it runs. Runs in the driver.

A thread looks into the ledger about once a second, through all phases of a sweep: one short query. It ends the sweep by
itself; whatever changes trials waits until the driver asks for it, which alone writes them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from signal import SIGINT
from types import TracebackType

from rltune.pipeline.stopper import SweepStopper
from rltune.records import ENQUEUE, RETRY, STOP, SweepRequest, TrialRecord
from rltune.study.ledger import Ledger

LOOK_S = 1.0
logger = logging.getLogger("rltune")


class Inbox:
    """What is asked of a sweep.

    Args:
        ledger: The sweep's.
        stopper: Ends it.
    """

    def __init__(self, ledger: Ledger, stopper: SweepStopper) -> None:
        self._ledger, self._stopper = ledger, stopper
        self._waiting: frozenset[str] = frozenset((ENQUEUE, RETRY))  # what there may be
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="requests", daemon=True)

    def __enter__(self) -> Inbox:
        """Begin to look."""
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Stop looking, before the ledger is closed."""
        self._closed.set()
        self._thread.join(LOOK_S)

    def find_enqueued(self) -> SweepRequest | None:
        """Find the configuration that is to be tried next; None where none waits. Who begins it takes the request."""
        return next(iter(self._ledger.read_requests(ENQUEUE)), None) if ENQUEUE in self._waiting else None

    def count_begun(self) -> int:
        """Count the trials whose configurations were enqueued."""
        return sum(request.trial is not None for request in self._ledger.read_requests(ENQUEUE, waiting=False))

    def reopen_failed(self, notify: Callable[[str], None]) -> list[TrialRecord]:
        """Reopen the trials and runs that are to be tried again, and return them.

        Args:
            notify: Shows a person a line.
        """
        return reopen_failed(self._ledger, notify) if RETRY in self._waiting else []

    def _follow(self) -> None:
        while not self._closed.is_set():
            try:
                self._look()
            except Exception as error:  # a server that is away is asked again; who needs it says so
                logger.debug("no request could be read", exc_info=error)
            self._closed.wait(LOOK_S)

    def _look(self) -> None:
        found = self._ledger.read_requests()
        self._waiting = frozenset(request.kind for request in found)
        for request in found:
            if request.kind == STOP:
                self._stopper.request(f"stopped by {request.asked_by}", SIGINT)
                self._ledger.take_request(request.id)


def withdraw_stops(ledger: Ledger) -> None:
    """Withdraw the requests to stop that an earlier driver left; whoever asked learns it (`asking.stop_sweep`).

    A driver does so when it has claimed the sweep, and obeys all that come after: clocks of machines differ.

    Args:
        ledger: The sweep's.
    """
    for request in ledger.read_requests(STOP):
        ledger.withdraw_request(request.id)


def reopen_failed(ledger: Ledger, notify: Callable[[str], None]) -> list[TrialRecord]:
    """Reopen what is asked to be tried again, and return it: RUNNING, as a resumed sweep finds what is unfinished.

    Args:
        ledger: The sweep's.
        notify: Shows a person a line.
    """
    found = []
    for request in ledger.read_requests(RETRY):
        again = ledger.reopen_failed(request)
        found += again
        if again:
            notify(f"{', '.join(record.name for record in again)}: tried again, as {request.asked_by} has asked")
    return found
