"""Compile the kernels with Numba, and keep the machine code for the next process."""

from __future__ import annotations

import functools
import hashlib
import importlib
import logging
import os
import shutil
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

numba: Any = None
try:
    import numba
except ImportError as error:  # A platform without a wheel, or a NumPy that is too new for it.
    reason = str(error)

FASTMATH = {"reassoc", "contract", "arcp", "nsz"}
"""What LLVM may assume of floats. Never that NaN and infinity do not occur: a diverged trial must be seen."""
KERNELS = ("rltune.engine.kernels.ppo",)
"""The modules with a function ``warm_up``, which calls each kernel that Python calls."""
COMPLETE = "complete"
"""The file that a cache folder has as soon as all kernels are in it."""

logger = logging.getLogger(__name__)


def find_cache() -> Path:
    """Return the folder of the machine code: another one for other sources, and for another Numba or NumPy.

    Numba itself keeps apart what it compiled for different CPUs and versions of Python.
    """
    parts = [path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))]
    parts += [metadata.version(name).encode() for name in ("numba", "numpy")]
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "rltune" / f"kernels-{hashlib.sha256(b'|'.join(parts)).hexdigest()[:16]}"


def is_compiled() -> bool:
    """Return whether the kernels need no compilation here, or cannot be compiled at all."""
    return numba is None or (find_cache() / COMPLETE).exists()


@functools.cache
def _make_decorator() -> Callable[[Callable[..., Any]], Any]:
    """Return Numba's decorator with our options; it does nothing where there is no Numba."""
    if numba is None:
        return lambda function: function
    options: dict[str, Any] = {"fastmath": FASTMATH, "error_model": "numpy"}
    folder = find_cache()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        options["cache"] = os.access(folder, os.W_OK)
    except OSError:  # Without a cache, each process compiles for itself.
        options["cache"] = False

    def decorate(function: Callable[..., Any]) -> Any:
        # Numba reads the folder when a function is decorated. A user's own functions keep theirs.
        settings = numba.config
        before, settings.CACHE_DIR = settings.CACHE_DIR, str(folder)
        try:
            return numba.njit(**options)(function)
        finally:
            settings.CACHE_DIR = before

    return decorate


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function of arrays and numbers, at its first call or from the cache."""
    return _make_decorator()(function)


@functools.cache
def load_kernels() -> bool:
    """Load all kernels, or compile them where that has not been done yet; return whether they can be used.

    The products use one thread of BLAS from now on: the other cores belong to other trials.
    """
    if numba is None:
        logger.warning("engine: Numba cannot be imported (%s); training takes two to four times as long", reason)
        return False
    try:
        _warm_up()
    except Exception:  # A damaged file of the cache. What is wrong with a kernel itself is raised again.
        shutil.rmtree(find_cache(), ignore_errors=True)
        _warm_up()
    return True


def _warm_up() -> None:
    for name in KERNELS:
        importlib.import_module(name).warm_up()
    ThreadpoolController().select(internal_api="openblas").limit(limits=1)
    folder = find_cache()
    if folder.is_dir() and os.access(folder, os.W_OK):
        (folder / COMPLETE).touch()
