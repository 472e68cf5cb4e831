"""Describe submissions as REST and the page show them: the queue's row, and what the sweep's ledger adds.

Only reads. What a ledger said is kept until its file changes, so that a list of many sweeps comes at once.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import yaml

from rltune.cluster.gpus import list_devices, open_nvml, read_state
from rltune.envs.objective import Shown
from rltune.errors import RltuneError, StudyError
from rltune.formatting import first_line, format_count, format_objective, format_params
from rltune.reporting.closing_page import explain_scores
from rltune.reporting.html import FOLDER, PAGE
from rltune.reporting.sweep_data import SweepData, load_sweep_data
from rltune.reporting.wording import describe_verdict
from rltune.service.folder import ServiceFolder
from rltune.service.submissions import INTERRUPTED, QUEUED, RUNNING, Submission
from rltune.study.outcome import count_states
from rltune.study.ranking import order_records, rank_records
from rltune.study.storage import open_ledger
from rltune.study.sweep_folder import LEDGER

WIDTH, HEIGHT = 720, 260  # of the curves, in the picture's own units
LOOK_S = 0.1  # for which the CPUs are watched: since another look, which may be just now, says nothing
COLOURS = {"COMPLETE": "#3b6fb6", "PRUNED": "#a9b4c0", "FAIL": "#c92a2a", "RUNNING": "#24313f"}


@dataclass(frozen=True)
class Progress:
    """How far a sweep is, by its ledger.

    Attributes:
        percent: Of its trials, those that have ended, and those that run by their steps; 100 where it has ended whole.
        trials_ended: Those that have ended.
        trials: Trials in all.
        best: The best score, as it is shown; ``-`` before there is one.
        env_steps: Of all trials.
        status: As the ledger has it: running, or how it ended last; empty without a ledger.
    """

    percent: int = 0
    trials_ended: int = 0
    trials: int = 0
    best: str = "-"
    env_steps: int = 0
    status: str = ""


class Views:
    """What is shown of the sweeps of a service. May be used from several threads.

    Args:
        folder: The service's.
    """

    def __init__(self, folder: ServiceFolder) -> None:
        self._folder = folder
        self._known: dict[str, tuple[Any, Progress]] = {}
        self._lock = threading.Lock()

    def list(self, submissions: Sequence[Submission]) -> list[dict[str, Any]]:
        """Describe the submissions: what runs, what waits in its order, then what has ended, newest first."""
        order = {RUNNING: 0, QUEUED: 1}
        newest = sorted(submissions, key=lambda one: -(one.ended_s or 0.0))
        shown = sorted(newest, key=lambda one: (order.get(one.state, 2), one.position if one.state in order else 0))
        waiting = [one.name for one in shown if one.state == QUEUED]
        return [self._describe(one, waiting) for one in shown]

    def _describe(self, one: Submission, waiting: Sequence[str]) -> dict[str, Any]:
        progress = self.read_progress(one.name)
        is_starting = one.state == RUNNING and self._is_starting(one, progress.status)
        place = waiting.index(one.name) + 1 if one.state == QUEUED else None
        if progress.trials and (place or is_starting):  # what was complete has more to do
            progress = _extend(progress, _read_trials(one.overrides))
        far = {key: value for key, value in asdict(progress).items() if key != "status"}
        return {
            "id": one.id,
            "name": one.name,
            "state": one.state,
            "in_words": describe_state(one, place, is_starting),
            "starting": is_starting,
            "stopping": one.is_stopping and one.state == RUNNING,
            "reason": one.reason,
            "group": one.group,
            "queue": place,
            "overrides": [*one.overrides],
            "submitted": format_time(one.submitted_s),
            "begun": format_time(one.started_s),
            "ended": format_time(one.ended_s),
            **far,
            "report": has_report(self._folder.sweeps / one.name),
        }

    def _is_starting(self, one: Submission, status: str) -> bool:
        """Whether the process of a running sweep has not come to its ledger, which is empty or tells of an earlier end.

        What has ended just now, and still writes its report, has written its summary since it began.
        """
        try:
            ended_s = (self._folder.sweeps / one.name / "summary.json").stat().st_mtime
        except OSError:
            ended_s = 0.0
        return not status or (status != "running" and ended_s < (one.started_s or 0.0))

    def read_progress(self, name: str) -> Progress:
        """Read how far a sweep is."""
        folder = self._folder.sweeps / name
        mark = _mark(folder)
        with self._lock:
            known = self._known.get(name)
        if known and mark is not None and known[0] == mark:
            return known[1]
        progress = _read_progress(folder)
        with self._lock:
            self._known[name] = (mark, progress)
        return progress

    def show(self, submission: Submission) -> dict[str, Any]:
        """Describe one sweep as its page shows it: its trials, curves and certified results, the machine's load."""
        try:
            data: SweepData | None = load_sweep_data(self._folder.sweeps / submission.name)
        except RltuneError:
            data = None
        return {
            "load": describe_load(submission),
            **(_describe_data(data) if data else {"has_data": False}),
        }


def has_report(folder: Path) -> bool:
    """Whether a sweep has a report."""
    return (folder / FOLDER / PAGE).is_file()


def describe_state(one: Submission, place: int | None, is_starting: bool) -> str:
    """Say in words which state a sweep is in: in the list, on its page and by the commands.

    Args:
        one: The sweep.
        place: In the queue; None where it does not wait.
        is_starting: Whether it runs, and nothing has come of that yet.
    """
    if place:
        return f"number {place} in the queue"
    if one.state == RUNNING and (one.is_stopping or is_starting):
        return "told to end" if one.is_stopping else "starting"
    return f"{one.state}, {first_line(one.reason)}" if one.state == INTERRUPTED and one.reason else one.state


def _mark(folder: Path) -> tuple[float, ...] | None:
    """Return what changes when a ledger's file does; None where there is none, as in a database."""
    found = []
    for path in (folder / LEDGER, folder / f"{LEDGER}-wal"):
        try:
            status = os.stat(path)
        except OSError:
            continue
        found += [status.st_mtime_ns, status.st_size]
    return tuple(found) or None


def _read_trials(words: Sequence[str]) -> int:
    """Read how many trials a sweep is to have by what was typed for it; 0 where it does not say."""
    typed = [word.partition("=")[2] for word in words if word.startswith("budget.trials=")]
    try:
        return int(float(typed[-1]))
    except (IndexError, ValueError, OverflowError):  # none, or not to be read without Hydra
        return 0


def _extend(progress: Progress, trials: int) -> Progress:
    """Measure what has been done by the trials that a sweep is to have when it goes on."""
    trials = max(trials, progress.trials)
    done = 100 * progress.trials_ended if progress.percent == 100 else progress.percent * progress.trials
    return replace(progress, trials=trials, percent=min(99, done // trials))


def _read_progress(folder: Path) -> Progress:
    try:
        ledger = open_ledger(folder)
    except StudyError:
        return Progress()
    with closing(ledger):
        records, found = ledger.trials.records(), ledger.sweep()
    try:
        text = (folder / "config.yaml").read_text()  # as it was gone on with; the ledger has how it was begun
    except OSError:
        text = found.config or "{}"
    # Not by OmegaConf, which takes 20 ms for each of many sweeps; the text is a driver's own.
    settings = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506
    budget = settings.get("budget") or {}
    trials, env_steps = int(budget.get("trials") or len(records)), int(budget.get("env_steps") or 0)
    parts = [
        1.0 if one.state != "RUNNING" else min(1.0, one.env_steps / env_steps) if env_steps else 0.0 for one in records
    ]
    steps = int(settings.get("replicates") or 1) * sum(one.env_steps for one in records)
    total = budget.get("total_env_steps")
    part = max(sum(parts) / max(1, trials), steps / total if total else 0.0)
    percent = 100 if found.status == "complete" else min(99, math.floor(100 * part))
    best = next((one.score for one in rank_records(records)), None)
    ended = sum(one.state != "RUNNING" for one in records)
    shown = format_objective(Shown.of(settings.get("objective"))(best))
    return Progress(percent, ended, trials, shown, steps, found.status or "running")


def _describe_data(data: SweepData) -> dict[str, Any]:
    rows = [
        {
            "number": trial.number,
            "state": data.state_of(trial),
            "score": format_objective(data.shown(trial.score)),
            "env_steps": format_count(trial.env_steps),
            "params": format_params(trial.params),
            "reason": data.explain_end(trial),
        }
        for trial in order_records(data.trials)
    ]
    certified = [data.shown.turn(row) for row in (data.record.certification or {}).get("configurations", ())]
    has_fresh = certified or (data.record.winner or {}).get("evaluation")
    return {
        "has_data": True,
        "verdict": describe_verdict(data),
        "measured": explain_scores(data.criteria.scored, bool(certified)) if has_fresh else "",
        "label": data.shown.label,
        "counts": count_states(data.trials),
        "trials": rows,
        "curves": draw_curves(data),
        "certified": [
            {
                "name": row["name"],
                "iqm": format_objective(row["iqm"] if row["per_seed"] else None),
                "low": format_objective(row["low"]),
                "high": format_objective(row["high"]),
                "seeds": len(row["per_seed"]),
            }
            for row in certified
        ],
        "running": sum(trial.state == "RUNNING" for trial in data.trials),
        "model": (data.record.model or {}).get("uri"),
        "parameters": list(data.space.names),
    }


def draw_curves(data: SweepData) -> dict[str, Any]:
    """Draw the trials' learning curves: lines in the picture's units, and what its edges stand for."""
    points = [
        (trial, [(steps, data.shown(value) or 0.0) for steps, value in trial.reports.items() if math.isfinite(value)])
        for trial in data.trials
    ]
    values = [value for _, line in points for _, value in line]
    if not values:
        return {"lines": []}
    low, high = min(values), max(values)
    span = high - low or 1.0
    rows, columns = list_ticks(low, high), list_ticks(0, data.env_steps)
    lines = [
        {
            "points": " ".join(
                f"{steps / data.env_steps * WIDTH:.1f},{HEIGHT - (value - low) / span * HEIGHT:.1f}"
                for steps, value in (line if len(line) > 1 else line * 2)  # a line of no length is a dot
            ),
            "colour": COLOURS[trial.state],
            "width": 2 if len(line) > 1 else 6,
            "title": f"trial {trial.number}: {format_objective(line[-1][1])}",
        }
        for trial, line in points
        if line
    ]
    return {
        "lines": lines,
        "low": format_objective(low),
        "high": format_objective(high),
        "steps": format_count(data.env_steps),
        "rows": [(round(HEIGHT - (value - low) / span * HEIGHT, 1), format_objective(value)) for value in rows],
        "columns": [(round(steps / data.env_steps * WIDTH, 1), format_count(steps)) for steps in columns],
        "width": WIDTH,
        "height": HEIGHT,
    }


def list_ticks(low: float, high: float) -> list[float]:
    """List the round numbers between two values that an axis names: up to six."""
    if low == high:
        return [low]
    size = 10.0 ** math.floor(math.log10((high - low) / 5))
    step = next(size * times for times in (1, 2, 5, 10) if size * times >= (high - low) / 5)
    return [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def describe_load(submission: Submission) -> dict[str, Any]:
    """Say how busy the machine is, and how much memory a sweep's processes have."""
    memory = psutil.virtual_memory()
    load: dict[str, Any] = {
        "cpu": f"{psutil.cpu_percent(LOOK_S):.0f}%",
        "memory": f"{memory.percent:.0f}% of {memory.total / 2**30:.0f} GB",
        "gpus": read_gpus(),
        "processes": None,
        "sweep_memory": None,
    }
    if submission.state == RUNNING and submission.process:
        try:
            driver = psutil.Process(int(submission.process["pid"]))
            mine = [driver, *driver.children(recursive=True)]
            load["processes"] = len(mine)
            load["sweep_memory"] = f"{sum(_memory_of(one) for one in mine) / 2**30:.1f} GB"
        except psutil.Error:
            pass
    return load


def read_gpus() -> list[str]:
    """Say what each NVIDIA GPU of this machine holds and does; none without the extra ``gpu``."""
    with open_nvml() as nvml:
        devices = list_devices(nvml) if nvml else {}
        states = [read_state(nvml, name, device) for name, device in devices.items()]
    return [str(state) for state in states if state]


def _memory_of(process: psutil.Process) -> int:
    """Return the memory that a process has for itself as far as the system tells: forked ones share theirs."""
    try:
        found = process.memory_info()
    except psutil.Error:
        return 0
    return int(found.rss - getattr(found, "shared", 0))


def format_time(seconds: float | None) -> str | None:
    """Format a moment as ISO 8601 in UTC."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
