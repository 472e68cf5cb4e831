"""Describe a running sweep in words: events between two views, its progress, and the live table.

Everything here is a function of one or two `SweepView`s. `rltune.views.console` prints what these return.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rltune.formatting import (
    STATE_WORDS,
    first_line,
    fit_words,
    format_clock,
    format_count,
    format_duration,
    format_number,
    format_objective,
    format_params,
)
from rltune.records import BASELINE, Direction
from rltune.views.sweep_view import INTERRUPTED, WAITING, SweepView, TrialSnapshot

BAR_WIDTH = 16
PADDING = 2  # Spaces between the columns of the live table.
LINES_BESIDE_TABLE = 8  # The rows of running trials leave this many lines of the terminal to all else.
MIN_LEFT_S = 10.0  # A shorter estimate is not shown, because its error is longer: one slow iteration takes more.
STATE_STYLES = {"COMPLETE": "green", "PRUNED": "yellow", "FAIL": "red", INTERRUPTED: "magenta"}


@dataclass(frozen=True)
class Line:
    """One line of output about an event, such as the end of a trial.

    Attributes:
        text: What is printed.
        style: How rich shows it.
        is_cut: Whether a terminal shows only what fits into one of its lines.
        is_printed: Whether it is printed; otherwise only the sweep's log has it.
    """

    text: str
    style: str = ""
    is_cut: bool = False
    is_printed: bool = True


def describe_changes(before: SweepView | None, view: SweepView) -> Iterator[Line]:
    """Describe the events between two views of a sweep, such as trials that have ended, in one line each.

    Args:
        before: The earlier view; None if the sweep was not shown before.
        view: The later one.
    """
    if before is None:
        yield Line(_describe_start(view))
        before = view
    if None not in (before.driver.slots, view.driver.slots) and before.driver.slots != view.driver.slots:
        yield Line(f"trials at once: {view.driver.slots}, {before.driver.slots} before")
    earlier = {trial.number: trial for trial in before.trials}
    for trial in sorted(view.trials, key=_order_by_end):
        yield from _describe_trial(earlier.get(trial.number), trial, view)
    earlier = {run.number: run for run in before.runs}
    ended = [run for run in sorted(view.runs, key=_order_by_end) if _has_just_ended(earlier.get(run.number), run)]
    for num_later, run in zip(reversed(range(len(ended))), ended, strict=True):
        yield _describe_run(run, view, num_later)


def _order_by_end(trial: TrialSnapshot) -> tuple[float, int]:
    """Sort key: ended trials by the time of their end, then unfinished trials by number."""
    return trial.record.ended_s or math.inf, trial.number


def _has_just_ended(before: TrialSnapshot | None, trial: TrialSnapshot) -> bool:
    """Return whether a trial has ended since the earlier view, even if it was retried and ended before."""
    return trial.has_ended and not (before and before.record.ended_s == trial.record.ended_s)


def _describe_start(view: SweepView) -> str:
    parts = [f"{format_number(view.num_trials, 'trial')} of up to {format_count(view.env_steps)} env steps"]
    if view.driver.slots is not None:
        parts.append(f"{view.driver.slots} at a time")
    if view.num_runs:
        runs = format_number(view.num_runs, "certification run")
        episodes = format_number(int(view.certify.get("episodes") or 0), "episode")
        parts.append(f"then up to {runs} of {format_count(view.env_steps)} env steps and {episodes} each")
    if view.num_final_episodes:
        parts.append(f"then {format_number(view.num_final_episodes, 'episode')} of the best")
    text = f"sweep {view.name}: {', '.join(parts)}"
    if view.trials:
        unfinished = len(view.trials) - view.num_ended
        text += f"; {len(view.trials)} begun so far: {view.num_ended} ended, {unfinished} unfinished"
    return text


def _describe_trial(before: TrialSnapshot | None, trial: TrialSnapshot, view: SweepView) -> Iterator[Line]:
    """Describe that a trial has started, ended or been interrupted.

    Args:
        before: The trial as it was before; None if it is new.
    """
    if before is None and trial.record.enqueued_by:
        yield Line(f"trial {trial.number} is the configuration that {trial.record.enqueued_by} enqueued", "yellow")
    if before is None or (trial.state == "RUNNING" and before.state not in (WAITING, "RUNNING")):
        yield Line(f"trial {trial.number} begins: {format_params(trial.params)}", is_printed=False)
    was_interrupted = trial.state == INTERRUPTED and before is not None and before.state != INTERRUPTED
    if not (was_interrupted or _has_just_ended(before, trial)):
        return
    word = STATE_WORDS[trial.state]
    if trial.went_wrong:
        word += ", diverged" if trial.record.diverged else ""
        log = f"; see {view.folder / trial.record.log}" if trial.record.log else ""
        yield Line(f"trial {trial.number} {word}: {first_line(trial.reason)}{log}", "red")
        return
    facts = f"{format_objective(trial.score):>7}  {format_params(trial.params)}"
    facts += f"  {trial.broken}" if trial.broken else ""
    yield Line(f"trial {trial.number:>3} {word:<11} {facts}", STATE_STYLES.get(trial.state, ""), is_cut=True)


def _describe_run(run: TrialSnapshot, view: SweepView, num_later: int) -> Line:
    """Describe the end of a certification run; ``num_later`` runs that ended after it are not counted yet."""
    owner = BASELINE if run.record.of_trial is None else f"trial {run.record.of_trial}"
    name = f"seed {(run.record.seed_index or 0) + 1} of {owner}"
    if run.state == "COMPLETE":
        return Line(f"certified {name}: {format_objective(run.score)} ({describe_runs(view, num_later)})", "yellow")
    log = f"; see {view.folder / run.record.log}" if run.record.log else ""
    return Line(f"certifying {name} failed, which counts against it: {first_line(run.reason)}{log}", "yellow")


def describe_runs(view: SweepView, num_later: int = 0) -> str:
    """Describe how many certification runs have ended, without the ``num_later`` latest ones."""
    up_to = "" if view.is_searched else "up to "
    return f"{view.num_runs_ended - num_later} of {up_to}{view.num_runs} runs"


def describe_progress(view: SweepView) -> tuple[str, str, str]:
    """Describe a sweep's progress in three parts: its trials by state, its pace, and its best trial."""
    states = Counter(trial.state for trial in view.trials if trial.state != WAITING)
    words = ", ".join(
        f"{states[state]} {STATE_WORDS[state]}" for state in STATE_WORDS if states[state] or state == "COMPLETE"
    )
    best = view.best
    score = f"best {format_objective(best.score)} by trial {best.number}" if best else "best -"
    return f"{words} of {view.num_trials}", _describe_pace(view), score


def _describe_pace(view: SweepView) -> str:
    if episodes := view.driver.episodes:
        return f"{episodes.name}: {episodes.done} of {episodes.total} episodes"
    running = [trial for trial in (*view.trials, *view.runs) if trial.state == "RUNNING"]
    if view.driver.wait and not running:
        return view.driver.wait
    pace = view.env_steps_per_s
    parts = [f"certifying: {describe_runs(view)} done"] if view.is_certifying else []
    # After its whole budget a run plays the episodes by which it is judged, which are no steps of the training.
    playing = [run for run in view.runs if run.state == "RUNNING" and run.env_steps >= view.env_steps]
    parts += [f"{format_number(len(playing), 'run')} playing the episodes that count"] if playing else []
    if not playing or len(playing) < len(running):
        parts += [f"{format_count(pace)} env steps/s" if pace else "no environment step yet"]
    phases = {"search": view.search_left_s, "certification": view.certification_left_s}
    left = [f"{format_duration(s)} of {phase}" for phase, s in phases.items() if s is not None and s >= MIN_LEFT_S]
    parts += [f"about {' and '.join(left)} left"] if left else []
    return ", ".join([*parts, view.driver.wait] if view.driver.wait else parts)


def render_live_table(view: SweepView, height: int, width: int) -> RenderableType:
    """Render the live table of a running sweep.

    Args:
        height: The number of the terminal's lines.
        width: The number of its columns. What does not fit is left out by whole words.
    """
    counts, pace, score = describe_progress(view)
    clock = format_clock(view.elapsed_s)
    top, pace_row = Table.grid(expand=True), Table.grid(padding=(0, 2, 0, 0))
    top.add_column(no_wrap=True, ratio=1)
    top.add_column(no_wrap=True, justify="right")
    top.add_row(Text(fit_words(counts, width - len(clock)), "bold"), Text(clock, "dim"))
    bar = ProgressBar(total=100, completed=view.percent, width=BAR_WIDTH)
    pace_row.add_row(bar, Text(pace))
    best = fit_words(f"{score}  {format_params(view.best.params) if view.best else ''}", width)
    line = Text(best)
    line.stylize("bold green", 0, len(score))
    return Group("", top, pace_row, line, _render_running(view, max(1, height - LINES_BESIDE_TABLE), width))


def _render_running(view: SweepView, num_rows: int, width: int) -> RenderableType:
    running = [trial for trial in view.trials if trial.state == "RUNNING"]
    if not running:
        is_explained = view.is_certifying or view.driver.wait or view.driver.episodes
        return Text("" if is_explained else "waiting for trials to start ...", "dim")
    heading = "score" if view.criteria.direction is Direction.MAX else view.objective.name
    numbers = [(str(t.number), format_count(t.env_steps), format_objective(t.score)) for t in running[:num_rows]]
    widths = [max(map(len, column)) for column in zip(("trial", "env steps", heading), *numbers, strict=True)]
    left = width - sum(widths) - 3 * PADDING
    has_bar = left >= BAR_WIDTH + PADDING
    left -= (BAR_WIDTH + PADDING) * has_bar
    table = Table(box=None, expand=True, padding=(0, PADDING, 0, 0), header_style="dim")
    table.add_column("trial", justify="right", width=widths[0])
    if has_bar:
        table.add_column("progress", width=BAR_WIDTH)
    table.add_column("env steps", justify="right", width=widths[1])
    table.add_column(heading, justify="right", width=widths[2])
    if left > len("params") + PADDING:
        table.add_column("params", ratio=1, no_wrap=True)
    for trial, (number, env_steps, score) in zip(running, numbers, strict=False):
        bar = ProgressBar(total=max(1, view.env_steps), completed=trial.env_steps, width=BAR_WIDTH)
        params = fit_words(format_params(trial.params), left - PADDING)
        cells: list[RenderableType] = [Text(number), Text(env_steps), Text(score), Text(params)]
        table.add_row(*[*cells[:1], *[bar] * has_bar, *cells[1:]][: len(table.columns)])
    more = len(running) - num_rows
    return Group(table, Text(f"... and {more} more running", "dim")) if more > 0 else table
