"""Show a sweep on the driver's console, with the progress that trials make between their reports."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from rltune.cluster.slots import Slots
from rltune.ledger.ledger import Ledger
from rltune.trial.supervisor import read_steps
from rltune.views.console import Console
from rltune.views.sweep_view import DriverState, Episodes, SweepView

MAX_SHARE = 0.05  # The share of the driver's time that drawing may take.
logger = logging.getLogger("rltune")


class Heartbeats:
    """The progress of running trials between reports, in environment steps, from the trials' heartbeats.

    Args:
        sweep: The sweep's folder, as in the trials' assignments.
        live: The folders of the trials whose workers run. The set changes meanwhile.
    """

    def __init__(self, sweep: str, live: set[str]) -> None:
        self._sweep, self._live = sweep, live
        self._steps: dict[str, int] = {}

    def update(self) -> None:
        """Read the heartbeats from Ray's head. While the head is down, this waits for a minute or raises an error."""
        self._steps = read_steps(self._sweep, list(self._live))

    def read(self) -> Mapping[str, int]:
        """Return the environment steps of each running trial, per seed, by the trial's folder."""
        steps = self._steps
        return {folder: steps[folder] for folder in list(self._live) if folder in steps}


class Display:
    """Draws the sweep on the console: its state in the ledger, and what only the driver knows, such as free slots.

    Args:
        ledger: The sweep's ledger.
        console: The console on which the sweep is drawn.
        slots: How many trials run at once.
        heartbeats: The progress of the running trials between two reports.
    """

    clock: Callable[[], float] = staticmethod(time.monotonic)

    def __init__(
        self,
        ledger: Ledger,
        console: Console,
        slots: Slots,
        heartbeats: Heartbeats,
    ) -> None:
        self._ledger, self._console, self._slots, self._heartbeats = ledger, console, slots, heartbeats
        self._episodes: Episodes | None = None
        self._view: SweepView | None = None
        self._due_s = 0.0

    def draw(self) -> None:
        """Draw the sweep's current state, unless the last drawing was too recent, see `MAX_SHARE`."""
        began_s = self.clock()
        if began_s < self._due_s:
            return
        try:
            driver = DriverState(
                self._heartbeats.read(), self._slots.count, self._slots.describe_wait(), self._episodes
            )
            self._view = view = SweepView.read(self._ledger, self._view, driver)
        except Exception as error:
            # A failed read is not reported, because the recorder reports a ledger that does not answer.
            logger.debug("the sweep could not be read to be drawn", exc_info=error)
        else:
            self._console.draw(view)
        self._due_s = self.clock() + (self.clock() - began_s) / MAX_SHARE

    def show_episodes(self, name: str, done: int, total: int) -> None:
        """Set how many episodes of the final evaluations have been played; see `Episodes`."""
        self._episodes = Episodes(name, done, total)

    def close(self) -> None:
        """Draw the final state, and remove the live table."""
        self._due_s = 0.0
        self.draw()
        self._console.close()
