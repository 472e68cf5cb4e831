"""Compile the kernels with Numba, and keep the machine code for the next process."""

from __future__ import annotations

import functools
import importlib
import logging
import os
import shutil
from collections.abc import Callable
from typing import Any

from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

from rltune.cluster.kernel_cache import COMPLETE, find_kernel_cache

numba: Any = None
try:
    import numba
except ImportError as error:  # A platform without a wheel, or a NumPy that is too new for it.
    reason = str(error)

FASTMATH = {"reassoc", "contract", "arcp", "nsz"}
"""What LLVM may assume of floats. Never that NaN and infinity do not occur: a diverged trial must be seen."""
KERNELS = tuple(f"rltune.engine.kernels.{name}" for name in ("ppo", "dqn", "sac", "replay"))
"""The modules with a function ``warm_up``, which calls each kernel that Python calls."""
SLOWER = "training takes two to four times as long"

logger = logging.getLogger(__name__)


@functools.cache
def _make_decorator() -> Callable[[Callable[..., Any]], Any]:
    """Return Numba's decorator with our options; it does nothing where there is no Numba."""
    if numba is None:
        return lambda function: function
    folder = find_kernel_cache()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        can_write = os.access(folder, os.W_OK)
    except OSError:
        can_write = False  # Each process compiles for itself.

    def decorate(function: Callable[..., Any]) -> Any:
        # Numba reads the folder when a function is decorated. A user's own functions keep theirs.
        settings = numba.config
        before, settings.CACHE_DIR = settings.CACHE_DIR, str(folder)
        try:
            return numba.njit(fastmath=FASTMATH, error_model="numpy", cache=can_write)(function)
        finally:
            settings.CACHE_DIR = before

    return decorate


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function of arrays and numbers, at its first call or from the cache."""
    return _make_decorator()(function)


@functools.cache
def load_kernels() -> bool:
    """Load all kernels, or compile them where that has not been done yet; return whether they can be used.

    NumPy's and SciPy's products use one thread from now on: the other cores belong to other trials.
    """
    if numba is None:
        logger.warning("engine: Numba cannot be imported (%s); %s", reason, SLOWER)
        return False
    folder = find_kernel_cache()
    try:
        _warm_up()
    except Exception:  # A damaged file. If it is a kernel that is wrong, then the error comes again.
        logger.info("engine: the kernels in %s cannot be loaded, and are compiled again", folder)
        shutil.rmtree(folder, ignore_errors=True)
        _warm_up()
    # Numba has loaded SciPy's products only now.
    ThreadpoolController().select(internal_api="openblas").limit(limits=1)
    if os.access(folder, os.W_OK):
        (folder / COMPLETE).touch()
    return True


def _warm_up() -> None:
    for name in KERNELS:
        importlib.import_module(name).warm_up()
