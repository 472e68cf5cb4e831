"""Pickle vector environments in the middle of their episodes, and refuse those whose pickle would lose state.

A pickle need not hold an environment's state. Those over C or C++ code are built anew from their arguments (Gymnasium's
`EzPickle`), or hold the number of a simulator that the next process does not have. So only packages are taken whose
environments are known to consist of Python and NumPy objects.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

MAX_BYTES = 16 * 2**20  # Larger environments are not pickled, because checkpoints may be written once a minute.

KNOWN_PACKAGES = {"builtins", "collections", "copyreg", "enum", "functools", "gymnasium", "minigrid", "numpy", "rltune"}
"""Packages whose objects come out of a pickle as they went in."""


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        """Refuse objects whose pickle would lose state, and pickle all others as usual."""
        if any(base.__name__ == "EzPickle" for base in type(obj).__mro__):
            raise pickle.PicklingError(f"{type(obj).__name__} is pickled without its state")
        # Classes and functions are pickled by their module and name, so it is their own module that counts.
        kind = obj if hasattr(obj, "__qualname__") else type(obj)
        if str(kind.__module__).partition(".")[0] not in KNOWN_PACKAGES:
            raise pickle.PicklingError(f"{kind.__module__}.{kind.__qualname__} is not known to be pickled whole")
        return NotImplemented


class _Bounded(io.BytesIO):
    def write(self, data: Any) -> int:
        if self.tell() + memoryview(data).nbytes > MAX_BYTES:
            raise pickle.PicklingError(f"they are larger than {MAX_BYTES // 2**20} MiB")
        return super().write(data)


def pickle_envs(envs: Any) -> bytes:
    """Pickle environments so that `pickle.loads` restores them in the middle of their episodes.

    Raises:
        pickle.PicklingError: They would not come back as they are; says why.
    """
    file = _Bounded()
    try:
        _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(envs)
    except pickle.PicklingError:
        raise
    except Exception as error:  # Objects that cannot be pickled raise any exception, such as TypeError.
        raise pickle.PicklingError(str(error)) from error
    return file.getvalue()
