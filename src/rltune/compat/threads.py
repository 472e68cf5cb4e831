"""Read where another thread of this process is."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType


def list_frames(thread: int) -> Iterator[FrameType]:
    """Yield the frames of a running thread, the innermost first; none if the thread has ended.

    What: ``sys._current_frames``, which Python documents for this purpose.

    Args:
        thread: The thread's ``ident``.
    """
    frame = sys._current_frames().get(thread)
    while frame is not None:
        yield frame
        frame = frame.f_back
