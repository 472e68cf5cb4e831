"""A simulator that damages its process, prints below Python, leaks, and holds a lock until it is closed.

Sweeps of their own find this module in their folder, as a user's: it imports nothing of rltune.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import gymnasium
import numpy as np

IN_WORKER = "RAY_JOB_ID" in os.environ
WAS_DAMAGED: list[str] = []
LOST: list[Any] = []
DAMAGES = {
    "cuda": lambda: WAS_DAMAGED.append("cuda"),
    "recursion": lambda: sys.setrecursionlimit(len(list(_walk_stack())) + 4),
    "dtype": lambda: sys.modules["torch"].set_default_dtype(sys.modules["torch"].float64),
    "errors": lambda: np.seterr(all="raise"),
    "folder": lambda: os.chdir("/"),
    "mask": lambda: os.umask(0o777),
    "signals": lambda: [signal.signal(number, signal.SIG_IGN) for number in (signal.SIGTERM, signal.SIGINT)],
    "memory": lambda: LOST.extend(np.ones(2**18) for _ in range(150)),
    "hangs": lambda: time.sleep(600),
}


def _walk_stack() -> Any:
    frame = sys._getframe()
    while frame:
        yield frame
        frame = frame.f_back  # type: ignore[assignment]


def happens_once(name: str) -> bool:
    """Return whether this is the first call with the name in any process of the folder."""
    try:
        os.close(os.open(f"{name}.happened", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


class Damages(gymnasium.Env[Any, Any]):
    """An episode takes eight steps, of which each pays 1. Each damage happens once, in a trial's step.

    Args:
        damages: Names in `DAMAGES`. The process fails after ``cuda``, and goes on after the others while it can.
        lock: Whether no other copy of the folder may be open, in any process.
        close_s: How long closing a copy takes.
    """

    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    steps = 0

    def __init__(self, damages: list[str] | tuple[str, ...] = (), lock: bool = False, close_s: float = 0.0) -> None:
        self.damages, self.lock, self.close_s = damages, lock, close_s
        self._fail_if_damaged()
        if lock:
            os.close(os.open("licence", os.O_CREAT | os.O_EXCL))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = 8
        return self.np_random.uniform(-1, 1, 3).astype(np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        Damages.steps += 1
        self.left -= 1
        self._fail_if_damaged()
        if IN_WORKER and Damages.steps == 500:
            for name in self.damages:
                if happens_once(name):
                    DAMAGES[name]()
                    break
            self._fail_if_damaged()
        return self.np_random.uniform(-1, 1, 3).astype(np.float32), 1.0, self.left == 0, False, {}

    def close(self) -> None:
        time.sleep(self.close_s)
        if self.lock:
            os.remove("licence")

    def _fail_if_damaged(self) -> None:
        if WAS_DAMAGED:
            raise RuntimeError("CUDA error: device-side assert triggered, as every call in this process from now on")


os.write(1, b"simulator of January\n")
gymnasium.register("Damages-v0", Damages)
