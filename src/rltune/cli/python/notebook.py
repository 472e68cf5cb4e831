"""Show a sweep in a notebook's cell: one line for each event, and one line for the progress, which is replaced."""

from __future__ import annotations

import io
import logging
import sys
import warnings
from typing import Any, TextIO, cast


def find_stream() -> TextIO | None:
    """Return the stream of a sweep's console: the cell of a notebook; elsewhere None, which is standard output."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if not hasattr(shell, "kernel"):
        return None
    # MLflow and Ray advise to install ipywidgets, but rltune never uses it.
    warnings.filterwarnings("ignore", message="IProgress not found")
    logging.getLogger("ray.widgets.util").setLevel(logging.WARNING)
    return cast(TextIO, CellStream())


class CellStream(io.TextIOBase):
    """Writes into a notebook's cell, whose progress is one line that is replaced again and again."""

    def __init__(self) -> None:
        from IPython.display import display

        self._progress: Any = display(_as_text(""), raw=True, display_id=True)

    def writable(self) -> bool:
        """Return True, because a notebook's cell can be written to."""
        return True

    def write(self, text: str) -> int:
        """Write text below the progress."""
        return sys.stdout.write(text)

    def show_progress(self, text: str) -> None:
        """Replace the line of the progress."""
        self._progress.update(_as_text(text), raw=True)


def _as_text(text: str) -> dict[str, str]:
    """Return a text by its media type, because IPython would show a string with quotes."""
    return {"text/plain": text}
