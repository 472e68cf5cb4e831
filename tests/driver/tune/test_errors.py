"""An error in one of Tune's callbacks never ends Tune's run."""

from __future__ import annotations

import errno
from types import SimpleNamespace
from typing import Any

import pytest

from rltune.driver.tune.errors import interrupt_on_errors
from rltune.errors import ConfigError
from rltune.ledger.disk_full import DISK_FULL
from rltune.ledger.lease import LeaseLostError


@pytest.fixture
def sweep() -> Any:
    notes: list[str] = []
    requests: list[str] = []
    stopper = SimpleNamespace(request=requests.append, interrupt=lambda reason: requests.append(f"75: {reason}"))
    return SimpleNamespace(console=SimpleNamespace(note=notes.append), notes=notes, stopper=stopper, requests=requests)


def test_an_event_that_is_not_recorded_interrupts_the_sweep(sweep):
    with interrupt_on_errors(sweep):
        raise ConfigError("lr=5: too large", "less", "lr=1")
    assert sweep.requests == ["75: not everything could be recorded: lr=5: too large"]


def test_a_full_disk_ends_the_sweep_and_a_lost_lease_needs_no_more(sweep):
    with interrupt_on_errors(sweep):
        raise OSError(errno.ENOSPC, "No space left on device")
    with interrupt_on_errors(sweep):
        raise LeaseLostError("a", "b", "c")
    assert (sweep.requests, sweep.notes) == ([DISK_FULL], [])
