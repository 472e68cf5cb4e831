"""Keep a sweep's report up to date while the sweep runs.

About once a minute a thread of the driver writes the page anew, and less often where that takes long: it shares the
interpreter with what starts and records trials.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from rltune.reporting import html
from rltune.study.ledger import Ledger

EVERY_S = 60.0
SHARE = 0.02  # of one CPU that pages may take
WAIT_S = 10.0  # for a page that is being written when the sweep ends
logger = logging.getLogger(__name__)


class LiveReport:
    """Writes the page of a sweep that runs, one at a time.

    Args:
        folder: The sweep's.
        ledger: The sweep's.
        wanted: False does nothing.
    """

    clock: Callable[[], float] = staticmethod(time.monotonic)

    def __init__(self, folder: Path, ledger: Ledger, wanted: bool) -> None:
        self._folder, self._ledger, self._wanted = folder, ledger, wanted
        self._due = 0.0
        self._writer: threading.Thread | None = None

    @property
    def page(self) -> Path:
        """Where the page is, or will be."""
        return self._folder / html.FOLDER / html.PAGE

    def tick(self, describe_progress: Callable[[], str]) -> None:
        """Begin to write the page if it is time to; call it often.

        Args:
            describe_progress: Says how far the sweep is; called in this thread.
        """
        if not self._wanted or self.clock() < self._due or (self._writer and self._writer.is_alive()):
            return
        self._due = self.clock() + EVERY_S
        self._writer = threading.Thread(target=self._write, args=(describe_progress(),), name="report", daemon=True)
        self._writer.start()

    def end(self) -> None:
        """Write no further page; the report of the end takes its place."""
        self._wanted = False
        if self._writer:
            self._writer.join(WAIT_S)

    def close(self) -> None:
        """Do as `end`; where no other report has taken its place, write that the sweep runs no more, for instance."""
        self.end()
        if html.is_live(self._folder):
            self._write(None)

    def _write(self, progress: str | None) -> None:
        """Write the page; what goes wrong is logged, since a sweep must not fail for its report."""
        began, is_loaded = time.thread_time(), "plotly.graph_objects" in sys.modules
        try:
            # At a signal there are seconds left, and importing Plotly takes some.
            page = html.make_live_page(self._folder, self._ledger, progress, draw=is_loaded or progress is not None)
            if self._wanted or progress is None:  # else the sweep has ended meanwhile, and has another page
                html.save_page(self._folder / html.FOLDER, page)
        except Exception:
            logger.warning("the live report could not be written", exc_info=True)
        if is_loaded:  # else most of it was imports, which the end needs, too
            self._due = max(self._due, self.clock() + (time.thread_time() - began) / SHARE)
