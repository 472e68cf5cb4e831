"""Building an algorithm in a Ray worker without RLlib's search for source code.

Each of RLlib's connectors asks `inspect.stack` for its caller, to keep the caller's arguments (2.60). That reads the
source of every frame below, and a worker's lowest frames have none: for each of them `inspect` looks through all
modules that are imported. A PPO trial builds 22 connectors, which took 0.3 s of the 0.35 s between two trials.
"""

from __future__ import annotations

import inspect
import sys
import types

from ray.rllib.connectors import connector_v2


def stack(context: int = 1) -> list[inspect.FrameInfo]:
    """As `inspect.stack`, the caller's frame first, with its file as its code names it and without lines of source."""
    frame: types.FrameType | None = sys._getframe(1)
    found = []
    while frame is not None:
        found.append(
            inspect.FrameInfo(frame, frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name, None, None)
        )
        frame = frame.f_back
    return found


def quicken() -> None:
    """Let RLlib's connectors, and nothing else, ask this instead."""
    if isinstance(getattr(connector_v2, "inspect", None), types.ModuleType):
        quick = types.SimpleNamespace(**vars(inspect))
        quick.stack = stack
        connector_v2.inspect = quick
