"""Build an algorithm in a worker without what RLlib and torch do for nothing. Runs in workers."""

from __future__ import annotations

import inspect
import sys
import types
from typing import Any

import torch
from ray.rllib.connectors import connector_v2
from ray.rllib.utils import torch_utils

from rltune.compat.patching import is_tested, switched

COMPILER = "torch._inductor.config"
LEFT_OUT = "__dynamo_disable"  # Torch keeps an undecorated method under this name and calls it instead of compiling it.


@switched(lambda: None)
def skip_needless_work(compiling: bool) -> None:
    """Skip a search for source code in RLlib and the import of torch's compiler, for the rest of the process.

    What: `inspect` as ``connector_v2`` sees it, `torch` as ``torch_utils`` sees it, the mark ``__dynamo_disable`` on
    methods of `torch.optim.Optimizer`. Nobody else sees the replacements.
    Why: each connector of RLlib asks `inspect.stack` for its caller, to keep the caller's arguments. That reads the
    source of every frame below, and a worker's lowest frames have none: for each of them `inspect` looks through all
    modules that are imported. A PPO trial builds 22 connectors. RLlib's seeding asks for deterministic algorithms, and
    torch imports its compiler to tell that too; an optimizer imports it to be left out of what it compiles.
    Gains: 0.3 of the 0.35 s between two trials; 2 s of CPU in each worker before a sweep's first step.
    Tested with Ray 2.60 and torch 2.13.

    Args:
        compiling: Whether torch's compiler will be used, which then has to know.
    """
    connector_v2.inspect = _replace_in(inspect, stack=stack)
    if not is_tested("torch"):  # Other versions of torch can be installed, too.
        return
    for method in filter(_is_left_out, vars(torch.optim.Optimizer).values()):
        if compiling:
            vars(method.__wrapped__).pop(LEFT_OUT, None)
        else:
            vars(method.__wrapped__).setdefault(LEFT_OUT, method.__wrapped__)
    quick = _replace_in(torch, use_deterministic_algorithms=use_deterministic_algorithms)
    torch_utils.torch = torch if compiling else quick


def stack(context: int = 1) -> list[inspect.FrameInfo]:
    """Do as `inspect.stack`, the caller's frame first, with the file as its code names it and without its source."""
    frame: types.FrameType | None = sys._getframe(1)
    found = []
    while frame is not None:
        found.append(
            inspect.FrameInfo(frame, frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name, None, None)
        )
        frame = frame.f_back
    return found


def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Do as torch's own, but do not tell a compiler that is not there."""
    if COMPILER in sys.modules:
        torch.use_deterministic_algorithms(mode, warn_only=warn_only)
    else:
        torch._C._set_deterministic_algorithms(mode, warn_only=warn_only)


def _is_left_out(method: Any) -> bool:
    """Tell whether this is a method that compiled code is to call as it is: torch marks it, at its first call."""
    return isinstance(method, types.FunctionType) and method.__code__.co_filename == torch._compile.__file__


def _replace_in(module: types.ModuleType, **others: Any) -> types.ModuleType:
    """Return the module with some names of its own replaced, for one who looks them up in it."""
    changed = types.ModuleType(module.__name__)
    # Names that the original module imports later are found as well.
    changed.__getattr__ = lambda name: getattr(module, name)  # type: ignore[method-assign]
    vars(changed).update(others)
    return changed
