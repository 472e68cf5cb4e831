"""Another thread's frames can be read."""

import threading

import pytest

from rltune.compat.threads import list_frames

pytestmark = pytest.mark.fast


def test_the_frames_of_a_waiting_thread_are_read() -> None:
    begun, ending = threading.Event(), threading.Event()

    def wait_here() -> None:
        begun.set()
        ending.wait()

    thread = threading.Thread(target=wait_here)
    thread.start()
    begun.wait()
    assert thread.ident is not None
    assert "wait_here" in [frame.f_code.co_name for frame in list_frames(thread.ident)]
    ending.set()
    thread.join()
    assert not list(list_frames(thread.ident))
