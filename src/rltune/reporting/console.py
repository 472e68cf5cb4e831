"""Show a sweep's progress in the terminal: a live table, or a line every 15 s where nobody watches.

The driver reports what happens to the trials; the console counts and draws. It decides nothing and never raises into
the driver.
"""

from __future__ import annotations

import atexit
import functools
import logging
import math
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Concatenate, ParamSpec, TextIO

from rich.console import Console as RichConsole
from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rltune.config.uris import redact
from rltune.formatting import first_line, format_clock, format_count, format_duration, format_objective, format_params
from rltune.records import Report, TrialRecord
from rltune.reporting.closing_page import ClosingPage, TrialView, render_closing_page

_log = logging.getLogger(__name__)
_P = ParamSpec("_P")
_REDRAW_S = 0.25
_RATE_WINDOW_S = 30.0
_BAR_WIDTH = 16
_PLAIN_WIDTH = 120  # of the closing page where there is no terminal to ask
_WORDS = {"COMPLETE": "done", "RUNNING": "running", "PRUNED": "stopped", "FAIL": "failed"}
_STYLES = {"COMPLETE": "green", "PRUNED": "yellow", "FAIL": "red", "INTERRUPTED": "magenta"}


def _log_errors(
    method: Callable[Concatenate[Console, _P], None],
) -> Callable[Concatenate[Console, _P], None]:
    """Log what the method raises: a closed pipe or an odd terminal must not end a sweep that is otherwise well."""

    @functools.wraps(method)
    def quiet(self: Console, /, *args: _P.args, **kwargs: _P.kwargs) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception:
            _log.log(self._complain, "the console could not show something", exc_info=True)
            self._complain = logging.DEBUG  # what is broken stays broken: once is enough

    return quiet


class _Screen(RichConsole):
    """rich's console, which by itself ends the process when its reader goes away (``... | head``)."""

    def on_broken_pipe(self) -> None:
        """Fall silent; the sweep goes on."""
        self.quiet = True


class Console:
    """Counts and draws what the driver reports of its trials.

    Args:
        name: The sweep's name.
        num_trials: How many trials the budget has, those of earlier drivers included.
        env_steps: A trial's whole budget in environment steps.
        slots: How many trials run at once; see `show_slots`.
        stream: Where to write; None is standard output.
        plain_every_s: Seconds between two lines where ``stream`` is not a terminal.
    """

    clock: Callable[[], float] = staticmethod(time.monotonic)

    def __init__(
        self,
        *,
        name: str,
        num_trials: int,
        env_steps: int,
        slots: int,
        stream: TextIO | None = None,
        plain_every_s: float = 15.0,
    ) -> None:
        self.name, self.num_trials, self.env_steps, self.slots = name, num_trials, env_steps, slots
        out = stream if stream is not None else sys.stdout
        # FORCE_COLOR makes rich call a file a terminal: ask the stream itself whether somebody watches.
        tty = bool(getattr(out, "isatty", lambda: False)())
        width = None if tty else _PLAIN_WIDTH
        self._rich = _Screen(
            file=out, force_terminal=tty, force_jupyter=False, width=width, highlight=False, emoji=False, markup=False
        )
        self._live: Live | None = None
        self._stopped = False
        self._complain = logging.WARNING
        self._tty = tty and not self._rich.is_dumb_terminal
        self._every_s = _REDRAW_S if self._tty else plain_every_s
        self._trials: dict[int, TrialView] = {}
        self._shown_reasons: set[str] = set()
        self._began = self._drawn = self.clock()
        self._steps = 0
        self._history: deque[tuple[float, int]] = deque([(self._began, 0)])
        self._stage = self._wait = ""

    @_log_errors
    def start(self, already: Sequence[TrialView] = ()) -> None:
        """Begin to draw.

        Args:
            already: The trials of earlier drivers; the unfinished run once ``show_start`` names them.
        """
        for view in already:
            state = "INTERRUPTED" if view.state == "RUNNING" else view.state
            self._trials[view.number] = replace(view, state=state, objectives=list(view.objectives))
        self._began = self._drawn = self.clock()
        self._history = deque([(self._began, 0)])
        begun = f", {len(already)} of them begun before" if already else ""
        self._print_line(
            f"sweep {self.name}: {self.num_trials} trials of up to {format_count(self.env_steps)} env steps, "
            f"{self.slots} at a time{begun}"
        )
        if self._tty:
            self._live = Live(self._build_screen(), console=self._rich, auto_refresh=False, transient=True)
            self._live.start(refresh=True)
            atexit.register(self.stop)  # a driver that dies without stop() must not leave the cursor hidden

    @_log_errors
    def show_start(self, record: TrialRecord) -> None:
        """Show that a trial begins, or that one of an earlier driver goes on."""
        view = self._trials.setdefault(record.number, TrialView(record.number))
        view.state, view.params, view.reason = "RUNNING", dict(record.params), None
        self.tick()

    @_log_errors
    def show_report(self, report: Report) -> None:
        """Show a trial's report; its objective is NaN while no episode has ended."""
        view = self._trials.setdefault(report.number, TrialView(report.number))
        self._steps += max(0, report.env_steps - view.env_steps)
        self._history.append((self.clock(), self._steps))
        view.env_steps = report.env_steps
        view.objectives.append(report.objective)
        self.tick()

    @_log_errors
    def show_end(self, record: TrialRecord, where: str = "") -> None:
        """Show how a trial ended, or that it was interrupted.

        Args:
            record: The trial as the ledger has it; it is RUNNING where it was interrupted.
            where: What is added to the reason of a trial that failed or diverged.
        """
        number, state = record.number, "INTERRUPTED" if record.state == "RUNNING" else record.state
        view = self._trials.setdefault(number, TrialView(number))
        went_wrong = state == "FAIL" or record.diverged
        view.diverged = record.diverged
        view.state, view.reason = state, f"{record.stop_reason}{where}" if went_wrong else None
        view.objectives = list(record.reports.values())
        if (
            went_wrong and first_line(view.reason) not in self._shown_reasons
        ):  # a reason is shown once, not once a trial
            self._shown_reasons.add(first_line(view.reason))
            word = "diverged" if record.diverged else "failed"
            self._print_line(f"trial {number} {word}: {first_line(view.reason)}", "red")
        elif self._live:
            facts = f"{format_objective(view.score):>7}  {format_params(view.params)}"
            room = self._rich.width - 18
            word = _WORDS.get(state, state.lower())
            self._print_line(f"trial {number:>3} {word:<8}"[:18] + facts[: max(8, room)], _STYLES.get(state, ""))
        self.tick()

    @_log_errors
    def stage(self, text: str) -> None:
        """Set what goes on besides the trials; it is shown once none of them runs any more."""
        self._stage = text
        self.tick()

    @_log_errors
    def show_slots(self, slots: int, wait: str) -> None:
        """Show that a cluster has gained or lost room, and what trials wait for.

        Args:
            slots: How many trials run at once.
            wait: A sentence; empty where none waits.
        """
        if slots != self.slots:
            self._print_line(f"trials at once on the cluster: {slots}, {self.slots} before")
        if wait and not self._wait:
            self._drawn = -math.inf  # who sees nothing run is told why at once
        self.slots, self._wait = slots, wait

    @_log_errors
    def note(self, text: str) -> None:
        """Print one line above the table, such as a warning."""
        self._print_line(text, "yellow")

    @_log_errors
    def tick(self) -> None:
        """Draw the present state if it is time to; call it often."""
        now = self.clock()
        if now - self._drawn >= self._every_s and not self._stopped:
            self._drawn = now
            self._draw()

    @_log_errors
    def stop(self) -> None:
        """Remove the table, or write the last line; a second call does nothing."""
        if self._live:
            self._live.stop()
            self._live = None
            atexit.unregister(self.stop)
        elif self._trials and not self._tty and not self._stopped:
            self._print_line(self._write_line())
        self._stopped = True

    @_log_errors
    def summary(self, page: ClosingPage) -> None:
        """Print the closing page: the best trials, the cost, where things are, what to type next."""
        self.stop()
        failed = [view for view in self._trials.values() if view.state == "FAIL"]
        for part in render_closing_page(page, failed):
            if isinstance(part, str):  # never wrapped: commands and paths are copied from here
                self._rich.print(Text(redact(part)), soft_wrap=True)
            else:
                self._rich.print(part)

    def best(self) -> TrialView | None:
        """Return the trial with the highest score of all that can win; None before there is one."""
        able = [view for view in self._trials.values() if view.state != "FAIL" and not view.diverged]
        seen = [view for view in able if view.score is not None]
        return max(seen, key=lambda view: view.score or 0.0, default=None)

    def env_steps_per_s(self) -> float:
        """Return the environment steps per second of wall time, of all trials over about the last 30 s.

        Slow trials report less often than that: the window always holds two reports of every slot.
        """
        now = self.clock()
        while len(self._history) > 2 * self.slots + 1 and self._history[1][0] <= now - _RATE_WINDOW_S:
            self._history.popleft()
        then, steps = self._history[0]
        return (self._steps - steps) / (now - then) if now > then else 0.0

    def time_left_s(self) -> float | None:
        """Estimate the seconds until the budget is spent, at this session's mean pace.

        None before the first report, and when nothing is left.

        A trial still to come is taken to last as long as those that ended, among them one imagined whole one.
        """
        ended = [view.env_steps for view in self._trials.values() if view.state in ("COMPLETE", "PRUNED")]
        running = [view.env_steps for view in self._trials.values() if view.state in ("RUNNING", "INTERRUPTED")]
        expected = (sum(ended) + self.env_steps) / (len(ended) + 1)
        to_come = max(0, self.num_trials - len(self._trials)) * expected
        left = to_come + sum(max(0, self.env_steps - steps) for steps in running)
        elapsed = self.clock() - self._began
        return left * elapsed / self._steps if self._steps and left else None

    def _describe_progress(self) -> tuple[str, str, str]:
        """Return what both forms of the display show: the counts, the pace, the best."""
        counts = Counter(view.state for view in self._trials.values())
        states = ", ".join(f"{counts[state]} {word}" for state, word in _WORDS.items())
        rate, left = self.env_steps_per_s(), self.time_left_s()
        pace = f"{format_count(rate)} env steps/s" if rate else "no report yet"
        pace += "" if left is None else f", about {format_duration(left)} left"
        if self._stage and not counts["RUNNING"]:
            pace = self._stage
        if self._wait:
            pace = f"{pace}, {self._wait}" if counts["RUNNING"] or self._stage else self._wait
        best = self.best()
        found = f"best {format_objective(best.score)} by trial {best.number}" if best else "best -"
        return f"{states} of {self.num_trials}", pace, found

    def _write_line(self) -> str:
        counts, pace, found = self._describe_progress()
        best = self.best()
        params = f": {format_params(best.params)}" if best and best.params else ""
        return f"[{format_clock(self.clock() - self._began)}] {counts} | {pace} | {found}{params}"

    def _build_screen(self) -> RenderableType:
        counts, pace, found = self._describe_progress()
        best = self.best()
        top, pace_row = Table.grid(expand=True), Table.grid(padding=(0, 2, 0, 0))
        top.add_column(no_wrap=True, overflow="crop", ratio=1)
        top.add_column(no_wrap=True, justify="right")
        top.add_row(Text(counts, "bold"), Text(format_clock(self.clock() - self._began), "dim"))
        ended = sum(view.state in ("COMPLETE", "PRUNED", "FAIL") for view in self._trials.values())
        bar = ProgressBar(total=max(1, self.num_trials), completed=ended, width=_BAR_WIDTH)
        pace_row.add_row(bar, Text(pace))
        line = Text.assemble((found, "bold green"), "  ", format_params(best.params) if best else "")
        line.no_wrap, line.overflow = True, "crop"
        return Group("", top, pace_row, line, self._build_table())

    def _build_table(self) -> RenderableType:
        running = sorted((v for v in self._trials.values() if v.state == "RUNNING"), key=lambda v: v.number)
        if not running:
            return Text("" if self._stage or self._wait else "waiting for trials to start ...", "dim")
        table = Table(box=None, expand=True, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("trial", justify="right", no_wrap=True)
        table.add_column("progress", width=_BAR_WIDTH)
        table.add_column("env steps", justify="right", no_wrap=True)
        table.add_column("objective", justify="right", no_wrap=True)
        table.add_column("score", justify="right", no_wrap=True)
        table.add_column("params", ratio=1, no_wrap=True, overflow="crop")
        fits = max(1, self._rich.height - 8)
        for view in running[:fits]:
            bar = ProgressBar(total=max(1, self.env_steps), completed=view.env_steps, width=_BAR_WIDTH)
            values = format_objective(view.objective), format_objective(view.score), format_params(view.params)
            table.add_row(str(view.number), bar, format_count(view.env_steps), *map(Text, values))
        more = len(running) - fits
        return Group(table, Text(f"... and {more} more running", "dim")) if more > 0 else table

    def _draw(self) -> None:
        if self._live:
            self._live.update(self._build_screen(), refresh=True)
        elif not self._tty:
            self._print_line(self._write_line())

    def _print_line(self, text: str, style: str = "") -> None:
        self._rich.print(Text(redact(text), style), soft_wrap=not self._tty)
