"""A call in a thread of its own gives its result or its error, and keeps no program from ending."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rltune.background import start_in_thread

HANG = """
import time
from rltune.background import start_in_thread
start_in_thread('hang', time.sleep, 600)
"""


@pytest.mark.fast
def test_a_call_in_a_thread_has_its_result_or_its_error() -> None:
    assert start_in_thread("divide", divmod, 7, 2).result(10) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        start_in_thread("divide", divmod, 7, 0).result(10)


@pytest.mark.fast
def test_a_call_that_hangs_keeps_no_program_from_ending() -> None:
    assert subprocess.run([sys.executable, "-c", HANG], timeout=60, check=False).returncode == 0
