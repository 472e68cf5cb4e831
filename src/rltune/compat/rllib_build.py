"""Building an algorithm in a Ray worker without what RLlib and torch do for nothing (2.60, 2.13).

Each connector of RLlib asks `inspect.stack` for its caller, to keep the caller's arguments. That reads the source of
every frame below, and a worker's lowest frames have none: for each of them `inspect` looks through all modules that are
imported. A PPO trial builds 22 connectors, which took 0.3 s of the 0.35 s between two trials.

RLlib's seeding asks torch for deterministic algorithms, and torch imports its compiler to tell that too. An optimizer
imports it to be left out of what it compiles. That is 2 s of CPU in each worker before a sweep's first step.
"""

from __future__ import annotations

import inspect
import sys
import types
from typing import Any

import torch
from ray.rllib.connectors import connector_v2
from ray.rllib.utils import torch_utils

COMPILER = "torch._inductor.config"
LEFT_OUT = "__dynamo_disable"  # where torch keeps what such a method is called by


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


def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """As torch's own; a compiler that is not there is not told."""
    if COMPILER in sys.modules:
        torch.use_deterministic_algorithms(mode, warn_only=warn_only)
    else:
        torch._C._set_deterministic_algorithms(mode, warn_only=warn_only)


def quicken(compiling: bool) -> None:
    """Let RLlib's connectors and its seeding, and nothing else, ask these instead, and optimizers no compiler.

    Args:
        compiling: Whether torch's compiler will be used, which then has to know.
    """
    for method in filter(_left_out, vars(torch.optim.Optimizer).values()):
        if compiling:
            vars(method.__wrapped__).pop(LEFT_OUT, None)
        else:
            vars(method.__wrapped__).setdefault(LEFT_OUT, method.__wrapped__)
    connector_v2.inspect = _with(inspect, stack=stack)
    torch_utils.torch = torch if compiling else _with(torch, use_deterministic_algorithms=use_deterministic_algorithms)


def _left_out(method: Any) -> bool:
    """Whether this is a method that compiled code is to call as it is: torch marks it, at its first call."""
    return isinstance(method, types.FunctionType) and method.__code__.co_filename == torch._compile.__file__


def _with(module: types.ModuleType, **others: Any) -> types.ModuleType:
    """The module with some names of its own replaced, for one who looks them up in it."""
    made = types.ModuleType(module.__name__)
    made.__getattr__ = lambda name: getattr(module, name)  # type: ignore[method-assign]  # what is imported later, too
    vars(made).update(others)
    return made
