"""The first signal requests a clean end, the second one leaves at once."""

from __future__ import annotations

import os
import pty
import signal
import sys
from pathlib import Path

import pytest

from rltune.driver import signals
from rltune.driver.signals import stop_on_signals
from rltune.errors import UnavailableError


@pytest.mark.usefixtures("heeds_signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_requests_an_end_the_second_raises(number: signal.Signals) -> None:
    before, requests = signal.getsignal(number), []
    with stop_on_signals(lambda reason, received: requests.append((reason, received))):
        os.kill(os.getpid(), number)
        assert requests == [("interrupted", number)]
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM if number == signal.SIGHUP else number)
    assert len(requests) == 1
    assert signal.getsignal(number) is before


@pytest.mark.usefixtures("heeds_signals")
def test_a_terminal_that_hangs_up_twice_insists_on_nothing() -> None:
    requests = set()
    with stop_on_signals(lambda reason, received: requests.add(received)):
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGHUP)
    assert requests == {signal.SIGHUP}


def test_sighup_stays_ignored_under_nohup() -> None:
    requests: list[int] = []
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_on_signals(lambda reason, received: requests.append(received)):
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert requests == []


@pytest.mark.usefixtures("heeds_signals")
def test_a_closed_terminal_lets_a_program_end_by_itself(tmp_path: Path) -> None:
    program = f"""
import pathlib, time
from rltune.driver import signals
from rltune.driver.signals import stop_on_signals
from rltune.errors import UnavailableError
requests = []
with stop_on_signals(lambda *request: requests.append(request)):
    print("ready", flush=True)
    while not requests:
        time.sleep(0.01)
    print("the terminal is gone", flush=True)
pathlib.Path({str(tmp_path / "end")!r}).write_text(repr(requests[0]))
"""
    pid, terminal = pty.fork()
    if not pid:
        os.execv(sys.executable, [sys.executable, "-c", program])
    assert os.read(terminal, 5) == b"ready"
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert (tmp_path / "end").read_text() == "('interrupted', 1)"


def test_a_process_ends_even_if_its_last_words_cannot_be_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: UnavailableError) -> None:
        raise BrokenPipeError

    codes: list[int] = []
    monkeypatch.setattr(signals, "_calls_at_exit", [fail])
    monkeypatch.setattr("os._exit", codes.append)
    with pytest.raises(BrokenPipeError):  # A real exit would not return to raise it.
        signals.end_process(UnavailableError("the head is gone", "a head", "try again"))
    assert codes == [75]
