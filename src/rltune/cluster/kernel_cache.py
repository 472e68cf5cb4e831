"""Find the machine code of the engine's compiled kernels on this node. Imports neither Numba nor the engine."""

from __future__ import annotations

import functools
import hashlib
import os
from importlib import metadata
from pathlib import Path

COMPLETE = "complete"  # The file that the folder has as soon as all kernels are in it.


@functools.cache
def find_kernel_cache() -> Path:
    """Return the folder of the machine code: another one for other sources, and for another Numba or NumPy.

    Numba itself keeps apart what it compiled for different CPUs and versions of Python.
    """
    sources = sorted((Path(__file__).parents[1] / "engine" / "kernels").glob("*.py"))
    parts = [path.read_bytes() for path in sources]
    for name in ("numba", "numpy"):
        try:
            parts.append(metadata.version(name).encode())
        except metadata.PackageNotFoundError:
            parts.append(b"")
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "rltune" / f"kernels-{hashlib.sha256(b'|'.join(parts)).hexdigest()[:16]}"


def are_kernels_compiled() -> bool:
    """Return whether all kernels are in the cache, so that a process has only to load them."""
    return (find_kernel_cache() / COMPLETE).exists()
