"""Starts the processes of `rltune.measurement`, lets several measure at the same moment, and ends them.

Runs in the driver of `rltune.probe`.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import IO, Any, Self, cast

from rltune.errors import RltuneError
from rltune.measurement import Measured, Order

START_S = 60.0  # a process may take this long to import RLlib, build and warm up, and ten times what it measures
STOP_S = 20.0  # to close environments and Ray


class CellFailedError(Exception):
    """One combination could not be measured; the others may."""


def measure(orders: Sequence[Order]) -> list[Measured]:
    """Measure these at the same time, each in a process of its own.

    Raises:
        RltuneError: One cannot be configured, so no other combination can either.
        CellFailedError: One failed, or was not done in time.
    """
    limit_s = START_S + 10 * max(order.seconds for order in orders)
    until = time.monotonic() + limit_s
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(_Process(order)) for order in orders]
        for process in running:
            process.hear("ready", until, limit_s)
        for process in running:
            process.tell("go")
        results = [Measured(**process.hear("measured", until, limit_s)) for process in running]
        for process in running:
            process.tell("stop")
        for process in running:
            process.end(STOP_S)
        return results


class _Process:
    """One measuring process; gone when its block ends, however that ends.

    Args:
        order: What it measures.
    """

    def __init__(self, order: Order) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed with the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rltune.measurement"],
            bufsize=0,  # select() must see all that there is to read
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            # Thread pools read it once, when they are loaded; Ray sets it to a trial's CPUs in the same way.
            env=os.environ | {"OMP_NUM_THREADS": str(order.cell.threads)},
            start_new_session=True,  # Ctrl-C is the driver's, which then ends this one and its group
        )
        self.tell(order.to_json())

    def __enter__(self) -> Self:
        """Nothing more to open."""
        return self

    def __exit__(self, *_: object) -> None:
        """Kill it, if it still lives, with what it started; its Ray ends by itself within seconds."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            with contextlib.suppress(BrokenPipeError):
                cast(IO[bytes], pipe).close()

    def tell(self, line: str) -> None:
        """Write a line; what has died meanwhile is noticed when it is heard."""
        with contextlib.suppress(BrokenPipeError):
            cast(IO[bytes], self._process.stdin).write(line.encode() + b"\n")

    def hear(self, word: str, until: float, limit_s: float) -> Any:
        """Wait for an answer.

        Raises:
            RltuneError: The configuration was refused.
            CellFailedError: It failed, died, or is not done at ``until``.
        """
        pipe = cast(IO[bytes], self._process.stdout)
        if not select.select([pipe], [], [], max(0.0, until - time.monotonic()))[0]:
            raise CellFailedError(f"not done after {limit_s:.0f} s")
        line = pipe.readline()
        answer = json.loads(line) if line else {"failed": f"its process died: {self._last_words()}"}
        if "refused" in answer:
            raise RltuneError(*answer["refused"])
        if word not in answer:
            raise CellFailedError(str(answer.get("failed", answer)))
        return answer[word]

    def end(self, timeout_s: float) -> None:
        """Let it close its environments and its Ray."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else f"exit code {self._process.wait()}"
