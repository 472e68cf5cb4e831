"""The first signal asks, the second one insists."""

from __future__ import annotations

import os
import signal

import pytest

from rltune.pipeline.signals import stop_on_signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_requests_an_end_the_second_raises(number: signal.Signals) -> None:
    before, requests = signal.getsignal(number), []
    with stop_on_signals(lambda reason, received: requests.append((reason, received))):
        os.kill(os.getpid(), number)
        assert requests == [("interrupted", number)]
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert len(requests) == 1
    assert signal.getsignal(number) is before
