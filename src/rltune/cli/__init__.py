"""The commands ``rltune <command>``. Each reads its settings and calls the rooms below, without logic of its own."""

import atexit
import contextlib
import os
import sys

_codes: list[int] = []


@atexit.register
def _skip_teardown() -> None:
    """Exit after all exit handlers, but skip the interpreter's slow teardown of imported modules.

    Python calls exit handlers in reverse order of registration, so that this one, registered first, is called last.
    Taking the modules apart would take 3.9 s with torch, MLflow and RLlib.
    """
    if _codes:
        with contextlib.suppress(BrokenPipeError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(_codes[0])


def set_exit_code(code: int) -> None:
    """Let this process end with a code, without Python's teardown of the imported modules, which takes seconds."""
    _codes.insert(0, code)


def end_command(code: int) -> None:
    """Exit as `sys.exit` does, but without Python's teardown of the imported modules, which takes seconds."""
    set_exit_code(code)
    sys.exit(code)
