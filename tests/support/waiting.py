"""Wait in a test for what another process or thread does."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(is_so: Callable[[], bool], limit_s: float = 240) -> None:
    """Wait until something is so; after ``limit_s`` seconds the test fails."""
    deadline = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)
