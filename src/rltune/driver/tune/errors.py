"""Decide what an error in one of Tune's callbacks does to the sweep. Runs in the driver.

An exception that left a callback would end Tune's run, and the other trials could not save their state.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rltune.errors import RltuneError, describe_exception
from rltune.ledger.disk_full import DISK_FULL, is_disk_full
from rltune.ledger.lease import LeaseLostError

if TYPE_CHECKING:
    from rltune.driver.open_sweep import OpenSweep

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def interrupt_on_errors(sweep: OpenSweep) -> Iterator[None]:
    """Interrupt the sweep at an error, so that the next driver repeats what is not in the ledger."""
    try:
        yield
    except LeaseLostError:  # The stopper knows.
        pass
    except Exception as error:
        if is_disk_full(error):
            sweep.stopper.request(DISK_FULL)
            return
        logger.error("an event was not recorded", exc_info=error)
        reason = error.what if isinstance(error, RltuneError) else describe_exception(error)
        sweep.stopper.interrupt(f"not everything could be recorded: {reason}")
