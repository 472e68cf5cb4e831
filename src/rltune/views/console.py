"""Show a running sweep in the terminal: a live table, or a line every 15 s if the output is not a terminal.

The console draws views and keeps nothing of a sweep but the last one, see `rltune.views.progress`. It never raises.
What it prints except for the progress is written to the sweep's log, too.
"""

from __future__ import annotations

import atexit
import functools
import logging
import math
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Concatenate, ParamSpec, TextIO

from rich.console import Console as RichConsole
from rich.live import Live
from rich.text import Text

from rltune.errors import clean_text
from rltune.formatting import fit_words, format_clock
from rltune.ledger.sweep_folder import SWEEP_LOGGER
from rltune.views.page import Section
from rltune.views.progress import Line, describe_changes, describe_progress, render_live_table
from rltune.views.sweep_view import SweepView
from rltune.views.terminal import print_sections

_log = logging.getLogger(__name__)
_sweep_log = logging.getLogger(SWEEP_LOGGER)
_sweep_log.propagate = False
_sweep_log.setLevel(logging.INFO)
_P = ParamSpec("_P")
PLAIN_WIDTH = 120  # The width of tables if the output is not a terminal.
SILENCE_S = 300.0  # A progress line that has not changed is printed again only after this time.


def _log_errors(method: Callable[Concatenate[Console, _P], None]) -> Callable[Concatenate[Console, _P], None]:
    """Log exceptions of a method instead of raising them, because a closed pipe must not end the sweep."""

    @functools.wraps(method)
    def quiet(self: Console, /, *args: _P.args, **kwargs: _P.kwargs) -> None:
        try:
            with self._lock:
                method(self, *args, **kwargs)
        except Exception:
            _log.log(self._error_level, "the console could not show something", exc_info=True)
            # The stream will stay broken, so only the first error is logged as a warning.
            self._error_level = logging.DEBUG

    return quiet


class _QuietConsole(RichConsole):
    """A rich console that does not end the process when its reader goes away (``... | head``)."""

    def on_broken_pipe(self) -> None:
        """Print nothing more after the reader has gone away; the sweep continues."""
        self.quiet = True


class Console:
    """Shows one sweep in the terminal. Thread-safe.

    Args:
        stream: Where to write; None is standard output. A stream with a method ``show_progress`` gets the progress by
            it, as a notebook's cell does, in which one line is replaced again and again.
        plain_every_s: Seconds between two lines of progress if ``stream`` is not a terminal.
        has_tables: Whether it prints tables, which a log that a page shows does not need: the page has them.

    Attributes:
        draw_every_s: How often a view is wanted, in seconds.
    """

    clock: Callable[[], float] = staticmethod(time.monotonic)

    def __init__(self, stream: TextIO | None = None, plain_every_s: float = 15.0, *, has_tables: bool = True) -> None:
        self._has_tables = has_tables
        out = stream if stream is not None else sys.stdout
        # rich is not asked, because FORCE_COLOR makes it treat any file as a terminal.
        is_terminal = bool(getattr(out, "isatty", lambda: False)())
        self._rich = _QuietConsole(
            file=out,
            force_terminal=is_terminal,
            width=None if is_terminal else PLAIN_WIDTH,
            highlight=False,
            emoji=False,
            markup=False,
            force_jupyter=False,  # rich would otherwise draw notebook output in Jupyter.
        )
        self._show_progress: Callable[[str], None] | None = getattr(out, "show_progress", None)
        self._is_live = is_terminal and not self._rich.is_dumb_terminal
        self.draw_every_s = 0.25 if self._is_live else 1.0
        self._plain_every_s = 1.0 if self._show_progress else plain_every_s
        self._live: Live | None = None
        self._view: SweepView | None = None
        self._is_closed = False
        self._drawn_s = self.clock()
        self._printed, self._printed_s = "", -math.inf
        self._error_level = logging.WARNING
        # draw() is called by the housekeeping thread, and note() also by the main thread.
        self._lock = threading.RLock()

    @_log_errors
    def draw(self, view: SweepView) -> None:
        """Print the events since the last view, and update the progress when it is time to. Call it often."""
        before = self._view
        if self._is_closed or (before and before.read_s > view.read_s):
            return
        self._view = view
        for line in describe_changes(before, view):
            self._print(line)
        if self._is_live:
            self._draw_table(view)
        elif _has_news(before, view) or self.clock() - self._drawn_s >= self._plain_every_s:
            self._draw_line(view)

    @_log_errors
    def note(self, text: str) -> None:
        """Print one line, such as a warning, above the live table."""
        self._print(Line(text, "yellow"))

    @_log_errors
    def close(self, sections: Sequence[Section] = ()) -> None:
        """Remove the live table, print the last sections, and ignore later views.

        Args:
            sections: What is printed at the end.
        """
        self._is_closed = True
        if self._live:
            self._live.stop()
            self._live = None
            atexit.unregister(self.close)
        if sections:
            self._rich.print()
        print_sections(self._rich, [section for section in sections if self._has_tables or not section.table])
        for section in sections:
            for line in section.list_lines():
                _sweep_log.info("%s", line.strip())

    def _draw_table(self, view: SweepView) -> None:
        if self._live is None:
            self._live = Live(console=self._rich, auto_refresh=False, transient=True)
            self._live.start()
            # rich hides the cursor, which must come back even if the driver ends by an error.
            atexit.register(self.close)
        self._live.update(render_live_table(view, self._rich.height, self._rich.width), refresh=True)

    def _draw_line(self, view: SweepView) -> None:
        """Print a line about the progress, unless the line printed last says the same."""
        self._drawn_s = now_s = self.clock()
        text = " | ".join(describe_progress(view))
        if text == self._printed and now_s - self._printed_s < SILENCE_S:
            return
        self._printed, self._printed_s = text, now_s
        text = f"[{format_clock(view.elapsed_s)}] {text}"
        if self._show_progress:
            self._show_progress(text)
        else:
            self._rich.print(Text(text), soft_wrap=True)

    def _print(self, line: Line) -> None:
        _sweep_log.info("%s", line.text)
        if not line.is_printed:
            return
        text = clean_text(line.text)
        if line.is_cut and self._is_live:
            text = fit_words(text, self._rich.width)
        self._rich.print(Text(text, line.style), soft_wrap=not self._is_live)


def _has_news(before: SweepView | None, view: SweepView) -> bool:
    """Return whether progress should be shown at once: training or an evaluation begins, or trials have to wait."""
    if before is None:
        return False
    playing, played = (each.driver.episodes.name if each.driver.episodes else "" for each in (view, before))
    first_steps = view.driver.env_steps and not before.pace.env_steps
    return bool(first_steps or (view.driver.wait and not before.driver.wait) or (playing and playing != played))
