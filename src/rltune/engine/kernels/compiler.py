"""Compile the kernels with Numba, and keep the machine code for the next process."""

from __future__ import annotations

import functools
import hashlib
import importlib
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

from rltune.envs.layout import ILLEGAL

numba: Any = None
reason = ""
try:
    import numba
    from llvmlite import binding  # type: ignore[import-untyped]
except Exception as error:  # Numba may lack a wheel for this platform, clash with NumPy, or fail to load.
    reason = f"Numba cannot be imported: {error}"

KERNELS = {"ppo": ("ppo",), "dqn": ("dqn", "replay"), "sac": ("sac", "replay", "ppo")}
"""The modules that an algorithm needs. Each has a function ``warm_up``, which calls the kernels that Python calls."""
FASTMATH = {"reassoc", "contract", "arcp", "nsz"}
"""What LLVM may assume of floats. Never that NaN and infinity do not occur: a diverged trial must be seen."""

logger = logging.getLogger(__name__)


@functools.cache
def find_cache() -> Path | None:
    """Return the folder of the machine code, which only we can write, in the user's cache or else for temporary files.

    It is another one for everything that the machine code depends on, so that Numba's own index, which processes write
    without a lock, never holds the code of two kinds of CPU.
    """
    kernels = Path(__file__).parent
    # The kernels also depend on ppo_loss.py, which defines the fields of a batch, and have this constant in them.
    sources = [*sorted(kernels.glob("*.py")), kernels.parent / "on_policy" / "ppo_loss.py"]
    parts: list[Any] = [path.read_bytes() for path in sources]
    parts += [metadata.version(name) for name in ("numba", "numpy", "ray")]
    parts += [ILLEGAL, __file__, sys.version, binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten()]
    name = f"kernels-{hashlib.sha256(repr(parts).encode()).hexdigest()[:16]}"
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    for parent in (Path(home) / "rltune", Path(tempfile.gettempdir()) / f"rltune-{os.getuid()}"):
        try:
            (parent / name).mkdir(mode=0o700, parents=True, exist_ok=True)
            # Machine code that another user could have written must not run. A folder that is there may be on a disk
            # that is mounted to be read alone, where Numba reads nothing either.
            is_own = all(path.stat().st_uid == os.getuid() for path in (parent, parent / name))
            if is_own and os.access(parent / name, os.W_OK):
                return parent / name
        except OSError:
            continue
    return None


@functools.cache
def _make_decorator() -> Callable[[Callable[..., Any]], Any]:
    """Return Numba's decorator with rltune's options, or without Numba a decorator that does nothing."""
    if numba is None:
        return lambda function: function
    folder = find_cache()

    def decorate(function: Callable[..., Any]) -> Any:
        # Numba reads CACHE_DIR when it decorates a function. A user's own functions keep their folder.
        settings = numba.config
        before, settings.CACHE_DIR = settings.CACHE_DIR, str(folder)
        try:
            # Another thread sends heartbeats, so a long update must release Python's lock.
            return numba.njit(fastmath=FASTMATH, error_model="numpy", nogil=True, cache=folder is not None)(function)
        finally:
            settings.CACHE_DIR = before

    return decorate


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function of arrays and numbers, at its first call or from the cache."""
    return _make_decorator()(function)


@functools.cache
def find_missing_kernels(algorithm: str) -> str | None:
    """Load the kernels of an algorithm, a key of `KERNELS`, or compile them; say why they cannot be used."""
    missing = reason
    if numba is not None:
        try:
            _warm_up(algorithm)
            return None
        except OSError as error:
            missing = f"compiled kernels cannot be kept in {find_cache()}: {error}"
    missing = f"{missing}; so torch trains, which takes two to four times as long"
    logger.warning("engine: %s", missing)
    return missing


def load_kernels(algorithm: str) -> bool:
    """Load the kernels of an algorithm, or compile them; return whether they can be used."""
    return find_missing_kernels(algorithm) is None


def load_compiled_kernels() -> None:
    """Load the kernels that were compiled before."""
    for algorithm in KERNELS if numba is not None else ():
        if (folder := find_cache()) and (folder / algorithm).exists():
            load_kernels(algorithm)


def _warm_up(algorithm: str) -> None:
    folder = find_cache()
    for name in KERNELS[algorithm]:
        module = importlib.import_module(f"{__package__}.{name}")
        try:
            module.warm_up()
        except OSError:  # The disk may be full, for example.
            raise
        except Exception:  # Either a cached file is damaged, or a kernel is wrong and fails again without the cache.
            if folder is None:
                raise
            shutil.rmtree(folder, ignore_errors=True)
            module.warm_up()
    if folder:
        folder.mkdir(exist_ok=True)
        (folder / algorithm).touch()


def set_num_threads(threads: int) -> None:
    """Let torch and the kernels' products use so many threads. They take every core by default, as if alone."""
    torch.set_num_threads(threads)
    if numba is not None:
        importlib.import_module("scipy.linalg.cython_blas")  # Numba computes matrix products with SciPy's BLAS.
        ThreadpoolController().select(internal_api="openblas").limit(limits=threads)
