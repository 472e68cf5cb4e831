"""Show a sweep's progress in the terminal: a live table, or a line every 15 s where nobody watches.

The driver reports what happens to the trials; the console counts and draws. It decides nothing and never raises into
the driver. What it prints but for its progress stands in the sweep's log too.
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
from dataclasses import dataclass, replace
from typing import Concatenate, ParamSpec, TextIO

from rich.console import Console as RichConsole
from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rltune.config.uris import redact
from rltune.envs.objective import AS_RETURN, Shown
from rltune.formatting import (
    STATE_WORDS,
    classify_failure,
    first_line,
    format_clock,
    format_count,
    format_duration,
    format_number,
    format_objective,
    format_params,
)
from rltune.records import CERTIFY, SCORED_REPORTS, TRIALS, Report, TrialRecord
from rltune.reporting.closing_page import ClosingPage, TrialView, render_closing_page
from rltune.study.sweep_folder import TOLD

_log = logging.getLogger(__name__)
_told = logging.getLogger(TOLD)
_told.propagate = False
_told.setLevel(logging.INFO)
_P = ParamSpec("_P")
_REDRAW_S = 0.25
_DRAW_SHARE = 0.05  # of the driver's time, at most: each picture goes through all trials
_RATE_WINDOW_S = 30.0
_BAR_WIDTH = 16
_PLAIN_WIDTH = 120  # of the closing page where there is no terminal to ask
_SILENCE_S = 300.0  # between two plain lines that say the same
_LOOK_S = 2.0  # about, between two looks for steps since a report
_PACE_AFTER_S = 8.0  # since the first steps: these are slower than those to come
_LONG_S = 3600.0  # a sweep that takes longer is said to
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


@dataclass
class _Play:
    """Holds how far those are that play: who, the episodes, and since when and which it is known."""

    who: str
    done: int
    total: int
    began: float
    first: int

    def describe(self, now: float) -> str:
        """Say how many episodes are done, and how long the others take at the pace so far."""
        said = f"{self.who}: {self.done} of {self.total} episodes"
        left, played = self.total - self.done, self.done - self.first
        return f"{said}, about {format_duration(left * (now - self.began) / played)} left" if left and played else said


class Console:
    """Counts and draws what the driver reports of its trials.

    Args:
        name: The sweep's name.
        num_trials: How many trials the budget has, those of earlier drivers included.
        env_steps: A trial's whole budget in environment steps.
        slots: How many trials run at once; see `show_slots`.
        total_env_steps: So many of all trials and seeds, and no trial begins any more; None: no limit.
        replicates: Seeds of a trial.
        num_reports: Reports of a trial over its whole budget.
        shown: Shows scores.
        scored: How many of a trial's last reports its score is the mean of; None is all.
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
        total_env_steps: int | None = None,
        replicates: int = 1,
        num_reports: int = 1,
        shown: Shown = AS_RETURN,
        scored: int | None = SCORED_REPORTS,
        stream: TextIO | None = None,
        plain_every_s: float = 15.0,
    ) -> None:
        self.name, self.num_trials, self.env_steps, self.slots = name, num_trials, env_steps, slots
        self._steps_of_all = math.inf if total_env_steps is None else total_env_steps / replicates
        self._num_reports, self._shown, self._scored = num_reports, shown, scored
        out = stream if stream is not None else sys.stdout
        # FORCE_COLOR makes rich call a file a terminal: ask the stream itself whether somebody watches.
        tty = bool(getattr(out, "isatty", lambda: False)())
        width = None if tty else _PLAIN_WIDTH
        self._rich = _Screen(
            file=out,
            force_terminal=tty,
            width=width,
            highlight=False,
            emoji=False,
            markup=False,
            force_jupyter=False,  # the stream decides
        )
        self._live: Live | None = None
        self._stopped = False
        self._complain = logging.WARNING
        self._tty = tty and not self._rich.is_dumb_terminal
        self._every_s = _REDRAW_S if self._tty else getattr(out, "every_s", plain_every_s)
        self._trials: dict[int, TrialView] = {}
        self._shown_reasons: set[str] = set()
        self._began = self._drawn = self.clock()
        self._draw_s = 0.0
        self._steps = 0
        self._history: deque[tuple[float, int]] = deque([(self._began, 0)])
        self._first_steps: tuple[float, int] | None = None
        self._is_forecast = self._is_overshoot_told = False
        self._told: dict[tuple[str, int], int] = {}  # environment steps that were told last, by kind and number
        self._runs: dict[int, int] = {}  # environment steps of the certification's runs
        self._runs_left = 0
        self._certification = self._wait = self._last_line = ""
        self._playing_since: dict[int, float] = {}  # runs that have all their steps
        self._play_s: list[float] = []
        self._play: _Play | None = None
        self._last_line_at = -math.inf

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
        begun = ""
        if already:
            ended = self._count_ended()
            begun = f"; {len(already)} begun before: {ended} ended, {len(already) - ended} to go on"
        trials = format_number(self.num_trials, "trial")
        self._print_line(
            f"sweep {self.name}: {trials} of up to {format_count(self.env_steps)} env steps, "
            f"{self.slots} at a time{begun}"
        )
        if self._tty:
            self._live = Live(self._build_screen(), console=self._rich, auto_refresh=False, transient=True)
            self._live.start(refresh=True)
            atexit.register(self.stop)  # a driver that dies without stop() must not leave the cursor hidden

    @_log_errors
    def show_start(self, record: TrialRecord) -> None:
        """Show that a trial begins, or that one of an earlier driver goes on."""
        if record.enqueued_by and record.number not in self._trials:
            self._print_line(f"trial {record.number} has what {record.enqueued_by} enqueued", "yellow")
        view = self._trials.setdefault(record.number, TrialView(record.number, scored=self._scored))
        _told.info("trial %s begins: %s", record.number, format_params(record.params))
        view.state, view.params, view.reason = "RUNNING", dict(record.params), None
        if self._steps == 0:  # what was before has no part in the pace
            self._history = deque([(self.clock(), 0)])
        self.tick()

    @_log_errors
    def show_report(self, report: Report, broken: str = "") -> None:
        """Show a trial's report; its objective is NaN while no episode has ended.

        Args:
            report: The newest one.
            broken: The constraints that the trial breaks by it, in words.
        """
        view = self._trials.setdefault(report.number, TrialView(report.number, scored=self._scored))
        self._count_from((TRIALS, report.number), view.env_steps, report.env_steps)
        view.env_steps = report.env_steps
        view.objectives.append(report.objective)
        view.broken = broken
        if report.env_steps >= 2 * self.env_steps and not self._is_overshoot_told:
            self._is_overshoot_told = True
            self._print_line(
                f"trial {report.number} has taken {format_count(report.env_steps)} env steps of a budget of "
                f"{format_count(self.env_steps)}: one iteration takes so many",
                "yellow",
            )
        self.tick()

    @_log_errors
    def show_steps(self, number: int, env_steps: int) -> None:
        """Show how far a trial is between two reports, in environment steps of each seed."""
        view = self._trials.get(number)
        if view and env_steps != self._told.get((TRIALS, number), view.env_steps):
            self._begin_pace()
            self._count_from((TRIALS, number), view.env_steps, env_steps)
            view.env_steps = max(view.env_steps, env_steps)

    @_log_errors
    def begin_run(self, number: int, env_steps: int) -> None:
        """Begin to count one of the certification's runs, which have no row of their own.

        Args:
            number: Which.
            env_steps: Of an earlier driver.
        """
        self._runs[number] = env_steps

    @_log_errors
    def show_run_steps(self, number: int, env_steps: int) -> None:
        """Count the environment steps of a run that was begun."""
        if number in self._runs and env_steps != self._told.get((CERTIFY, number), self._runs[number]):
            self._begin_pace()
            self._count_from((CERTIFY, number), self._runs[number], env_steps)
            self._runs[number] = max(self._runs[number], env_steps)
            if env_steps >= self.env_steps:  # what is left of it are its policy's episodes
                self._playing_since.setdefault(number, self.clock())
        self.tick()

    @_log_errors
    def end_run(self, number: int) -> None:
        """Count a run no more: it has ended."""
        self._runs.pop(number, None)
        if since := self._playing_since.pop(number, None):
            self._play_s.append(self.clock() - since)

    @_log_errors
    def show_certification(self, progress: str, runs_left: int) -> None:
        """Show how far certification is.

        Args:
            progress: How many of its runs are done.
            runs_left: How many are not; while trials still run, how many there may be.
        """
        self._certification, self._runs_left = f"certifying: {progress} done", runs_left
        self.tick()

    @_log_errors
    def show_episodes(self, who: str, done: int, total: int) -> None:
        """Show how far those are that play when all training is over; call it again and again.

        Args:
            who: Who plays.
            done: Episodes so far.
            total: Of how many.
        """
        if self._play is None or self._play.who != who:
            self._play, self._drawn = _Play(who, done, total, self.clock(), done), -math.inf
        self._play.done, self._play.total = done, total
        self.tick()

    @_log_errors
    def show_end(self, record: TrialRecord, where: str = "") -> None:
        """Show how a trial ended, or that it was interrupted.

        Args:
            record: The trial as the ledger has it; it is RUNNING where it was interrupted.
            where: What is added to the reason of a trial that failed or diverged.
        """
        number, state = record.number, "INTERRUPTED" if record.state == "RUNNING" else record.state
        view = self._trials.setdefault(number, TrialView(number, scored=self._scored))
        went_wrong = state == "FAIL" or record.diverged
        view.diverged, view.broken = record.diverged, record.breaks
        view.state, view.reason = state, f"{record.stop_reason}{where}" if went_wrong else None
        view.objectives = list(record.reports.values())
        word, kind = STATE_WORDS[state], classify_failure(first_line(view.reason))
        if went_wrong and kind not in self._shown_reasons:  # a reason is shown once, not once a trial
            self._shown_reasons.add(kind)
            how = f"{word}, diverged" if record.diverged else word
            self._print_line(f"trial {number} {how}: {first_line(view.reason)}", "red")
        else:
            facts = f"{format_objective(self._shown(view.score)):>7}  {format_params(view.params)}"
            facts += f"  {view.broken}" * bool(view.broken)
            self._print_line(f"trial {number:>3} {word:<11} {facts}", _STYLES.get(state, ""), cut=True)
        self.tick()

    @_log_errors
    def show_slots(self, slots: int, wait: str) -> None:
        """Show that there is more or less room, as on a cluster or beside a larger trial, and what trials wait for.

        Args:
            slots: How many trials run at once.
            wait: A sentence; empty where none waits.
        """
        if slots != self.slots:
            self._print_line(f"trials at once: {slots}, {self.slots} before")
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
        self._forecast()
        if now - self._drawn >= max(self._every_s, self._draw_s / _DRAW_SHARE) and not self._stopped:
            self._drawn = now
            self._draw()
            self._draw_s = self.clock() - now

    @_log_errors
    def stop(self) -> None:
        """Remove the table; a second call does nothing."""
        if self._live:
            self._live.stop()
            self._live = None
            atexit.unregister(self.stop)
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
            if said := str(part).strip() if isinstance(part, str | Text) else "":
                _told.info("%s", said)

    def best(self) -> TrialView | None:
        """Return the trial with the highest score of all that can win; None before there is one."""
        views = self._trials.values()
        able = [view for view in views if not (view.state == "FAIL" or view.diverged or view.broken)]
        scores = {view.number: score for view in able if (score := view.score) is not None}
        return self._trials[max(scores, key=scores.__getitem__)] if scores else None

    def env_steps_per_s(self) -> float:
        """Return the environment steps per second of wall time, of all trials over about the last 30 s.

        Slow trials report less often than that: the window always holds two reports of every slot.
        """
        now = self.clock()
        while len(self._history) > 2 * self.slots + 1 and self._history[1][0] <= now - _RATE_WINDOW_S:
            self._history.popleft()
        then, steps = self._history[0]
        return (self._steps - steps) / max(1.0, now - then)  # the first steps come right after a trial's begin

    def time_left_s(self) -> float | None:
        """Estimate the seconds until the budget is spent and the winner certified, at this session's mean pace.

        None before the pace is known, and when nothing is left.
        """
        pace = self._measure_pace()
        return self._steps_left() / pace + self._play_left_s() or None if pace else None

    def _measure_pace(self) -> float | None:
        """Measure the environment steps per second since the first ones of this session; None for a few seconds.

        What the first ones took is not known: processes were started, and networks built, before them.
        """
        (then, before), now = self._first_steps or (math.inf, 0), self.clock()
        return (self._steps - before) / (now - then) or None if now - then >= _PACE_AFTER_S else None

    def _play_left_s(self) -> float:
        """Estimate the seconds in which runs of the certification will play episodes, as long as those that have."""
        if not self._play_s:
            return 0.0
        mean_s, now = sum(self._play_s) / len(self._play_s), self.clock()
        played_s = sum(min(mean_s, now - since) for since in self._playing_since.values())
        return max(0.0, self._runs_left * mean_s - played_s) / max(1, self.slots)

    def _steps_left(self) -> float:
        """Estimate the environment steps that are left, those of the certification among them.

        A trial still to come is taken to last as long as those that ended, among them one imagined whole one.
        """
        ended = [view.env_steps for view in self._trials.values() if view.state in ("COMPLETE", "PRUNED")]
        running = [view.env_steps for view in self._trials.values() if view.state in ("RUNNING", "INTERRUPTED")]
        expected = (sum(ended) + self.env_steps) / (len(ended) + 1)
        to_come = max(0, self.num_trials - len(self._trials)) * expected
        to_run = sum(max(0, self.env_steps - steps) for steps in running)
        had = sum(view.env_steps for view in self._trials.values())
        to_come = min(to_come, max(0.0, self._steps_of_all - had - to_run))
        certifying = sum(min(self.env_steps, steps) for steps in self._runs.values())
        return to_come + to_run + max(0, self._runs_left * self.env_steps - certifying)

    def _begin_pace(self) -> None:
        """Leave the start out of the pace: the first steps that are shown were taken since the last look for them."""
        if self._steps == 0:
            self._drawn = -math.inf  # the first sign of life is shown at once
            self._history = deque([(max(self._history[0][0], self.clock() - _LOOK_S), 0)])

    def _count_from(self, which: tuple[str, int], known: int, env_steps: int) -> None:
        """Count what a trial has taken since it was heard of, also of steps that were lost and are taken again.

        Args:
            which: The trial's kind, and its number.
            known: The environment steps that it has reached.
            env_steps: Those that it tells of.
        """
        before = self._told.get(which, min(known, env_steps))
        self._told[which] = env_steps
        self._count(env_steps - before)

    def _count(self, env_steps: int) -> None:
        """Count steps that were just taken."""
        now = self.clock()
        self._steps += max(0, env_steps)
        self._history.append((now, self._steps))
        self._first_steps = self._first_steps or (now, self._steps)

    def _count_ended(self) -> int:
        return sum(view.state in ("COMPLETE", "PRUNED", "FAIL") for view in self._trials.values())

    def _forecast(self) -> None:
        """Say how long a slow sweep takes as soon as its pace is known, and what makes it shorter."""
        if self._is_forecast or not (rate := self._measure_pace()):
            return
        self._is_forecast = True
        left_s = self._steps_left() / rate
        if left_s < _LONG_S:
            return
        fewer = max(1, self.env_steps // 5)
        certify_s = self._runs_left * self.env_steps / rate
        saved = f", certify=off about {format_duration(certify_s)} less" if certify_s else ""
        self._print_line(
            f"{format_count(rate)} env steps/s: this sweep takes up to about {format_duration(left_s)}; "
            f"budget.env_steps={fewer} would take about {format_duration(left_s * fewer / self.env_steps)}{saved}",
            "yellow",
        )

    def _describe_progress(self, best: TrialView | None) -> tuple[str, str, str]:
        """Return what both forms of the display show: the counts, the pace, the best."""
        counts = Counter(view.state for view in self._trials.values())
        shown = [state for state in STATE_WORDS if counts[state] or state == "COMPLETE"]
        states = ", ".join(f"{counts[state]} {STATE_WORDS[state]}" for state in shown)
        rate, left = self.env_steps_per_s(), self.time_left_s()
        parts = [f"{format_count(rate)} env steps/s" if rate else "no environment step yet"]
        if self._is_certifying():
            playing = len(self._playing_since)
            parts = [self._certification, *(parts if rate and left is not None else [])]
            parts += [f"{playing} playing episodes"] if playing else []
        parts += [] if left is None else [f"about {format_duration(left)} left"]
        if (first := self._first_report_s()) is not None:
            parts.append(f"first report in about {format_duration(first)}")
        pace = ", ".join(parts)
        if self._play:
            pace = self._play.describe(self.clock())
        elif self._wait:
            pace = f"{pace}, {self._wait}" if counts["RUNNING"] or self._runs else self._wait
        found = f"best {format_objective(self._shown(best.score))} by trial {best.number}" if best else "best -"
        return f"{states} of {self.num_trials}", pace, found

    def _is_certifying(self) -> bool:
        """Whether nothing but the certification is left to run."""
        is_searching = any(view.state == "RUNNING" for view in self._trials.values())
        return (
            bool(self._certification)
            and not is_searching
            and bool(self._runs or self._count_ended() >= self.num_trials)
        )

    def _first_report_s(self) -> float | None:
        """Estimate the seconds until the first report of all; None once there is one, or where it comes soon."""
        views, rate = self._trials.values(), self._measure_pace()
        running = [view.env_steps for view in views if view.state == "RUNNING"]
        if not rate or not running or any(view.objectives for view in views):
            return None
        left = max(0.0, self.env_steps / self._num_reports - max(running))
        seconds = left * len(running) / rate
        return seconds if seconds >= self._every_s and seconds >= 30 else None

    def _print_progress(self) -> None:
        """Print the plain line, unless it says what the last one said: that stands above."""
        said, now = " | ".join(self._describe_progress(self.best())), self.clock()
        if said != self._last_line or now - self._last_line_at >= _SILENCE_S:
            self._last_line, self._last_line_at = said, now
            self._print_line(f"[{format_clock(now - self._began)}] {said}", log=False)

    def _build_screen(self) -> RenderableType:
        best = self.best()
        counts, pace, found = self._describe_progress(best)
        top, pace_row = Table.grid(expand=True), Table.grid(padding=(0, 2, 0, 0))
        top.add_column(no_wrap=True, overflow="crop", ratio=1)
        top.add_column(no_wrap=True, justify="right")
        top.add_row(Text(counts, "bold"), Text(format_clock(self.clock() - self._began), "dim"))
        bar = ProgressBar(total=max(1, self.num_trials), completed=self._count_ended(), width=_BAR_WIDTH)
        pace_row.add_row(bar, Text(pace))
        line = Text.assemble((found, "bold green"), "  ", format_params(best.params) if best else "")
        line.no_wrap, line.overflow = True, "ellipsis"
        return Group("", top, pace_row, line, self._build_table())

    def _build_table(self) -> RenderableType:
        running = sorted((v for v in self._trials.values() if v.state == "RUNNING"), key=lambda v: v.number)
        if not running:
            is_said = self._is_certifying() or self._wait or self._play
            return Text("" if is_said else "waiting for trials to start ...", "dim")
        table = Table(box=None, expand=True, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("trial", justify="right", no_wrap=True)
        table.add_column("progress", width=_BAR_WIDTH)
        table.add_column("env steps", justify="right", no_wrap=True)
        table.add_column(self._shown.name if self._shown.is_cost else "objective", justify="right", no_wrap=True)
        table.add_column("score", justify="right", no_wrap=True)
        table.add_column("params", ratio=1, no_wrap=True, overflow="ellipsis")
        fits = max(1, self._rich.height - 8)
        for view in running[:fits]:
            bar = ProgressBar(total=max(1, self.env_steps), completed=view.env_steps, width=_BAR_WIDTH)
            values = (
                format_objective(self._shown(view.objective)),
                format_objective(self._shown(view.score)),
                format_params(view.params),
            )
            table.add_row(str(view.number), bar, format_count(view.env_steps), *map(Text, values))
        more = len(running) - fits
        return Group(table, Text(f"... and {more} more running", "dim")) if more > 0 else table

    def _draw(self) -> None:
        if self._live:
            self._live.update(self._build_screen(), refresh=True)
        elif not self._tty:
            self._print_progress()

    def _print_line(self, text: str, style: str = "", cut: bool = False, log: bool = True) -> None:
        """Print one line, and log it.

        Args:
            text: The line.
            style: Its colour.
            cut: Whether a terminal shows what fits into one of its lines.
            log: Whether the sweep's log has it too.
        """
        if log:
            _told.info("%s", text)
        line = Text(redact(text), style)
        if cut and self._tty:
            line.truncate(self._rich.width, overflow="ellipsis")
        self._rich.print(line, soft_wrap=not self._tty)
