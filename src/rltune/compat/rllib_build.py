"""Skip needless work of RLlib and torch when a worker builds an algorithm, and its folder in the home directory."""

from __future__ import annotations

import contextlib
import inspect
import sys
import tempfile
import types
from collections.abc import Iterator
from typing import Any

import torch
from ray.rllib.connectors import connector_v2
from ray.rllib.utils import torch_utils
from ray.tune.trainable import trainable

from rltune.compat.patching import are_replacements_on, is_tested, switched

COMPILER = "torch._inductor.config"
# Under this attribute, torch keeps the plain version of a method that its compiler leaves uncompiled.
LEFT_OUT = "__dynamo_disable"


@switched(lambda: None)
def skip_needless_work(compiling: bool) -> None:
    """Avoid, in this process, RLlib's reading of source files and the import of torch's compiler.

    What: `inspect` as ``connector_v2`` sees it, `torch` as ``torch_utils`` sees it, the mark ``__dynamo_disable`` on
    methods of `torch.optim.Optimizer`. Nobody else sees the replacements.
    Why: each connector of RLlib asks `inspect.stack` for its caller, to keep the caller's arguments. That reads the
    source of every frame below, and a worker's lowest frames have none: for each of them `inspect` looks through all
    modules that are imported. A PPO trial builds 22 connectors. RLlib's seeding asks for deterministic algorithms, and
    torch imports its compiler to tell that too; an optimizer imports it to be left out of what it compiles.
    Gains: 0.3 of the 0.35 s between two trials; 2 s of CPU in each worker before a sweep's first step.
    Tested with Ray 2.60 and torch 2.8, 2.13 and 2.14.

    Args:
        compiling: Whether torch's compiler will be used, which then has to know.
    """
    connector_v2.inspect = _replace_in(inspect, stack=stack)
    if not is_tested("torch"):
        # The replacements of torch's functions below are only tested with some versions.
        return
    for method in filter(_is_left_out, vars(torch.optim.Optimizer).values()):
        if compiling:
            vars(method.__wrapped__).pop(LEFT_OUT, None)
        else:
            vars(method.__wrapped__).setdefault(LEFT_OUT, method.__wrapped__)
    quick = _replace_in(torch, use_deterministic_algorithms=use_deterministic_algorithms)
    torch_utils.torch = torch if compiling else quick


@contextlib.contextmanager
def without_home_folder() -> Iterator[None]:
    """Keep an algorithm that is built here from making a folder in the home directory, which may not be writable.

    What: ``DEFAULT_STORAGE_PATH`` of `ray.tune.trainable.trainable`, a constant below ``~/ray_results``. Ray offers no
    setting for it.
    Why: `Trainable` makes a folder for its log files there, into which RLlib's new API stack writes nothing. So the
    folder is made below a temporary one, and removed with it.
    Tested with Ray 2.60.
    """
    if not are_replacements_on():
        yield
        return
    before = trainable.DEFAULT_STORAGE_PATH
    with tempfile.TemporaryDirectory(prefix="rltune-build-", ignore_cleanup_errors=True) as folder:
        trainable.DEFAULT_STORAGE_PATH = folder
        try:
            yield
        finally:
            trainable.DEFAULT_STORAGE_PATH = before


def stack(context: int = 1) -> list[inspect.FrameInfo]:
    """Replace `inspect.stack` by a version that reads no source files; the caller's frame comes first."""
    frame: types.FrameType | None = sys._getframe(1)
    frames = []
    while frame is not None:
        frames.append(
            inspect.FrameInfo(frame, frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name, None, None)
        )
        frame = frame.f_back
    return frames


def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Replace torch's function by one that configures torch's compiler only if it is already imported."""
    if COMPILER in sys.modules:
        torch.use_deterministic_algorithms(mode, warn_only=warn_only)
    else:
        torch._C._set_deterministic_algorithms(mode, warn_only=warn_only)


def _is_left_out(method: Any) -> bool:
    """Return whether torch keeps its compiler away from a method, for which it would import the compiler."""
    return isinstance(method, types.FunctionType) and method.__code__.co_filename == torch._compile.__file__


def _replace_in(module: types.ModuleType, **others: Any) -> types.ModuleType:
    """Return a copy of a module with some names replaced; other users of the module are not affected."""
    changed = types.ModuleType(module.__name__)
    # Resolved on access, so that names which the module imports later are found as well.
    changed.__getattr__ = lambda name: getattr(module, name)  # type: ignore[method-assign]
    vars(changed).update(others)
    return changed
