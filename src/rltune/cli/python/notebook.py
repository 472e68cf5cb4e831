"""Show a running sweep in a notebook's cell: one line for each event, and a progress line that is updated."""

from __future__ import annotations

import io
import logging
import sys
import warnings
from typing import Any, TextIO, cast


def find_stream() -> TextIO | None:
    """Return the stream for the sweep's console: the notebook's cell; None (standard output) outside of notebooks."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if not hasattr(shell, "kernel"):
        return None
    # Hide the advice of MLflow and Ray to install ipywidgets, which rltune never uses.
    warnings.filterwarnings("ignore", message="IProgress not found")
    logging.getLogger("ray.widgets.util").setLevel(logging.WARNING)
    return cast(TextIO, CellStream())


class CellStream(io.TextIOBase):
    """A text stream that prints into a notebook's cell and has one progress line, which is updated in place."""

    def __init__(self) -> None:
        from IPython.display import display

        self._progress: Any = display(_as_text(""), raw=True, display_id=True)

    def writable(self) -> bool:
        """Return True, as text streams do that can be written to."""
        return True

    def write(self, text: str) -> int:
        """Print text below the progress line."""
        return sys.stdout.write(text)

    def show_progress(self, text: str) -> None:
        """Replace the text of the progress line."""
        self._progress.update(_as_text(text), raw=True)


def _as_text(text: str) -> dict[str, str]:
    """Wrap a string for IPython's ``display``, which would otherwise show it with quotes."""
    return {"text/plain": text}
