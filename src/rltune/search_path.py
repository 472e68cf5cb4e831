"""Decide where modules are searched: the working folder comes last, so that its files hide no library.

A folder may be somebody else's, such as an unpacked policy with a file ``gymnasium.py``. Imports nothing but what every
Python has imported, so that ``python -m rltune`` can call it before anything is searched.
"""

from __future__ import annotations

import os
import sys

# The modules are found where the parent finds them; "-m" and "-c" alone would search the working folder first.
_START = (
    "import sys; count = int(sys.argv[2]); name, words = sys.argv[1], sys.argv[3:3 + count]; "
    "sys.path[:] = sys.argv[3 + count:]; sys.argv[:] = [name, *words]; "
    "import importlib; importlib.import_module(name).main(*words)"
)


def place_working_folder(*, is_searched: bool) -> None:
    """Move the working folder to the end of `sys.path`, or remove it.

    Args:
        is_searched: Whether modules of the user's, which lie there, may be needed.
    """
    try:
        folder = os.getcwd()
    except FileNotFoundError:  # It was deleted, so that nothing is found there.
        return
    place = os.path.realpath(folder)
    sys.path[:] = [path for path in sys.path if os.path.realpath(path) != place]
    if is_searched:
        sys.path.append(folder)


def spell_python(module: str, *words: str) -> list[str]:
    """Return the command that calls a module's ``main`` in a process which finds modules where this one does.

    Args:
        module: The module's full name, which is also an argument of the command.
        words: The arguments of ``main``.
    """
    return [sys.executable, "-c", _START, module, str(len(words)), *words, *sys.path]
