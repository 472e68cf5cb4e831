"""Show a sweep's progress in a notebook: a line for what happens, and one line that changes for the progress."""

from __future__ import annotations

import io
import sys
from typing import Any, TextIO, cast


def find_stream() -> TextIO | None:
    """Return where a sweep's console is to write: in a notebook its cell; None, standard output, elsewhere."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return cast(TextIO, CellStream()) if hasattr(shell, "kernel") else None


class CellStream(io.TextIOBase):
    """Writes into a notebook's cell, whose progress is one line that is replaced again and again."""

    def __init__(self) -> None:
        from IPython.display import display

        self._progress: Any = display(_Line(""), display_id=True)

    def writable(self) -> bool:
        """Return that the stream can be written to."""
        return True

    def write(self, text: str) -> int:
        """Write text below the progress."""
        return sys.stdout.write(text)

    def show_progress(self, text: str) -> None:
        """Replace the line of the progress."""
        self._progress.update(_Line(text))


class _Line:
    """One line that is displayed as text, without quotes."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text
