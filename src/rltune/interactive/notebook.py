"""Show a sweep's progress in a notebook: a line for what happens, and one that changes for how far it is."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast

PROGRESS = re.compile(r"\[[\d:]+\] ")  # the console's lines that say how far a sweep is begin with the time


@contextlib.contextmanager
def find_stream() -> Iterator[TextIO | None]:
    """Yield where a sweep's console is to write: in a notebook its cell; None, standard output, elsewhere."""
    show = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if show is None or not hasattr(show, "kernel"):
        yield None
        return
    stream = NotebookStream()
    try:
        yield cast(TextIO, stream)
    finally:
        stream.write("\n" * bool(stream.rest))


class NotebookStream(io.TextIOBase):
    """Writes lines into a cell; one that says how far the sweep is takes the place of the one before.

    Attributes:
        every_s: How often such a line is wanted.
    """

    every_s = 1.0

    def __init__(self) -> None:
        from IPython.display import display

        self.rest = ""  # of a line that has no end yet
        self._place: Any = display(_Line(""), display_id=True)

    def writable(self) -> bool:
        """It is written to."""
        return True

    def write(self, text: str) -> int:
        """Take text; whole lines are shown."""
        *lines, self.rest = (self.rest + text).split("\n")
        for line in lines:
            if PROGRESS.match(line):
                self._place.update(_Line(line))
            else:
                print(line)
        return len(text)


class _Line:
    """One line as text, without quotes."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text
