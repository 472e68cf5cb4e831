"""Answer Ctrl-C in one line while a command is still being imported, from the moment that this module is imported.

`rltune.cli.application.command.exit_on_signals` does it once the command has begun. Programs import this module before
all others; the Python interface does not, since its process is the user's.
"""

from __future__ import annotations

import signal
import sys
from types import TracebackType

from rltune.cli import set_exit_code

_show = sys.excepthook


def _end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print one line in place of a traceback if Ctrl-C ends the program, whose exit code says so, too."""
    if not issubclass(kind, KeyboardInterrupt):
        _show(kind, error, trace)
        return
    set_exit_code(128 + signal.SIGINT)
    print("interrupted by SIGINT", file=sys.stderr, flush=True)


sys.excepthook = _end
