"""Describe submissions for REST and the page: the row of the queue, and the progress in the sweep's ledger.

This module only reads. Progress is cached until the ledger's file changes, so that a list of many sweeps is fast.
"""

from __future__ import annotations

import contextlib
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
from rltune.cluster.stale_processes import is_running
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
from rltune.study.sweep_folder import LEDGER, SETTINGS

WIDTH, HEIGHT = 720, 260  # The size of the picture of learning curves, in its own units.
CPU_INTERVAL_S = 0.1  # The load of the CPUs is measured over this time.
COLOURS = {"COMPLETE": "#3b6fb6", "PRUNED": "#a9b4c0", "FAIL": "#c92a2a", "RUNNING": "#24313f"}


@dataclass(frozen=True)
class Progress:
    """The progress of a sweep by its ledger.

    Attributes:
        percent: The share of its trials that have ended, where a running trial counts by its steps; 100 if the sweep is
            complete.
        trials_ended: The number of trials that have ended.
        trials: The number of trials in all.
        best: The best score as text; ``-`` before there is one.
        env_steps: The environment steps of all trials.
        driver: The id of the last driver in the sweep's lease; None without a ledger, or if it had no driver yet.
        unreadable: Why the ledger cannot be read, such as damage; None if it can, or if there is none yet.
    """

    percent: int = 0
    trials_ended: int = 0
    trials: int = 0
    best: str = "-"
    env_steps: int = 0
    driver: str | None = None
    unreadable: str | None = None


class Views:
    """Describe the sweeps of a service. May be used from several threads.

    Args:
        folder: The service's folder.
    """

    def __init__(self, folder: ServiceFolder) -> None:
        self._folder = folder
        self._cache: dict[str, tuple[Any, Progress]] = {}
        self._lock = threading.Lock()

    def list(self, submissions: Sequence[Submission]) -> list[dict[str, Any]]:
        """Describe the submissions: those that run, those that wait in their order, then the newest that have ended."""
        order = {RUNNING: 0, QUEUED: 1}

        def sort_key(submission: Submission) -> tuple[float, ...]:
            if submission.state in order:
                return order[submission.state], submission.position
            return len(order), -(submission.ended_s or 0.0)

        ordered = sorted(submissions, key=sort_key)
        waiting = [submission.name for submission in ordered if submission.state == QUEUED]
        return [self._describe(submission, waiting) for submission in ordered]

    def _describe(self, submission: Submission, waiting: Sequence[str]) -> dict[str, Any]:
        progress = self.read_progress(submission.name)
        # A process that the service has started takes the lease as soon as it has checked its settings.
        is_starting = submission.state == RUNNING and progress.driver == submission.last_driver
        position = waiting.index(submission.name) + 1 if submission.state == QUEUED else None
        if progress.trials and (position or is_starting):  # A sweep that was complete may have a larger budget now.
            progress = _extend(progress, _read_trials(submission.overrides))
        fields = {key: value for key, value in asdict(progress).items() if key != "driver"}
        return {
            "id": submission.id,
            "name": submission.name,
            "state": submission.state,
            "in_words": describe_state(submission, position, is_starting),
            "starting": is_starting,
            "stopping": submission.is_stopping and submission.state == RUNNING,
            "reason": submission.reason,
            "group": submission.group,
            "queue": position,
            "overrides": [*submission.overrides],
            "submitted": format_time(submission.submitted_s),
            "begun": format_time(submission.started_s),
            "ended": format_time(submission.ended_s),
            **fields,
            "report": has_report(self._folder.sweeps / submission.name),
        }

    def read_progress(self, name: str) -> Progress:
        """Read the progress of a sweep."""
        folder = self._folder.sweeps / name
        version = _read_version(folder)
        with self._lock:
            cached_version, cached_progress = self._cache.get(name, (None, Progress()))
        if version is not None and version == cached_version:
            return cached_progress
        progress = _read_progress(folder)
        with self._lock:
            self._cache[name] = (version, progress)
        return progress

    def show(self, submission: Submission) -> dict[str, Any]:
        """Describe one sweep for its page: its trials, curves and certified results, and the load of the machine."""
        try:
            data: SweepData | None = load_sweep_data(self._folder.sweeps / submission.name)
        except RltuneError:
            data = None
        return {
            "load": describe_load(submission),
            **(_describe_data(data) if data else {"has_data": False}),
        }


def has_report(folder: Path) -> bool:
    """Return whether a sweep has a report."""
    return (folder / FOLDER / PAGE).is_file()


def describe_state(submission: Submission, position: int | None, is_starting: bool) -> str:
    """Describe a sweep's state in words, for the list, the sweep's page and the commands.

    Args:
        submission: The sweep.
        position: Its position in the queue, from 1; None if it does not wait.
        is_starting: Whether its process runs and has not taken the lease yet.
    """
    if position:
        return f"number {position} in the queue"
    if submission.state == RUNNING and (submission.is_stopping or is_starting):
        return "stopping" if submission.is_stopping else "starting"
    if submission.state == INTERRUPTED and submission.reason:
        return f"{submission.state}, {first_line(submission.reason)}"
    return submission.state


def _read_version(folder: Path) -> tuple[float, ...] | None:
    """Return numbers that change with a ledger's file; None without a file, as for a ledger in PostgreSQL."""
    numbers: list[float] = []
    for path in (folder / LEDGER, folder / f"{LEDGER}-wal"):
        try:
            status = os.stat(path)
        except OSError:
            continue
        numbers += [status.st_mtime_ns, status.st_size]
    return tuple(numbers) or None


def _read_trials(overrides: Sequence[str]) -> int:
    """Read how many trials a sweep's overrides ask for; 0 if they do not say."""
    values = [word.partition("=")[2] for word in overrides if word.startswith("budget.trials=")]
    try:
        return int(float(values[-1]))
    except (IndexError, ValueError, OverflowError):  # There is none, or it cannot be read without Hydra.
        return 0


def _extend(progress: Progress, trials: int) -> Progress:
    """Measure the progress of a sweep that is resumed by the number of trials that it will have."""
    trials = max(trials, progress.trials)
    finished = 100 * progress.trials_ended if progress.percent == 100 else progress.percent * progress.trials
    return replace(progress, trials=trials, percent=min(99, finished // trials))


def _read_progress(folder: Path) -> Progress:
    try:
        with closing(open_ledger(folder)) as ledger:
            records, sweep, lease = ledger.trials.records(), ledger.sweep(), ledger.read_lease()
    except StudyError as error:  # A sweep that has not started yet has no settings.
        return Progress(unreadable=first_line(error.what) if (folder / SETTINGS).is_file() else None)
    try:
        text = (
            folder / "config.yaml"
        ).read_text()  # The settings of the last resume; the ledger has those of the start.
    except OSError:
        text = sweep.config or "{}"
    # OmegaConf would take 20 ms for each sweep. The text was written by a driver.
    settings = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506
    budget = settings.get("budget") or {}
    trials, env_steps = int(budget.get("trials") or len(records)), int(budget.get("env_steps") or 0)
    shares = [
        1.0 if record.state != "RUNNING" else min(1.0, record.env_steps / env_steps) if env_steps else 0.0
        for record in records
    ]
    all_steps = int(settings.get("replicates") or 1) * sum(record.env_steps for record in records)
    total = budget.get("total_env_steps")
    share = max(sum(shares) / max(1, trials), all_steps / total if total else 0.0)
    percent = 100 if sweep.status == "complete" else min(99, math.floor(100 * share))
    best = next((record.score for record in rank_records(records)), None)
    num_ended = sum(record.state != "RUNNING" for record in records)
    best_text = format_objective(Shown.of(settings.get("objective"))(best))
    return Progress(percent, num_ended, trials, best_text, all_steps, lease.driver_id)


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
    """Compute the picture of the trials' learning curves: lines in its units, and the values at its edges."""
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
                for steps, value in (line if len(line) > 1 else line * 2)  # A single report is drawn as a dot.
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
    """List the ticks of an axis: up to six round numbers between two values."""
    if low == high:
        return [low]
    size = 10.0 ** math.floor(math.log10((high - low) / 5))
    step = next(size * times for times in (1, 2, 5, 10) if size * times >= (high - low) / 5)
    return [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def describe_load(submission: Submission) -> dict[str, Any]:
    """Describe the load of the machine, and how much memory a sweep's processes use."""
    memory = psutil.virtual_memory()
    load: dict[str, Any] = {
        "cpu": f"{psutil.cpu_percent(CPU_INTERVAL_S):.0f}%",
        "memory": f"{memory.percent:.0f}% of {memory.total / 2**30:.0f} GB",
        "gpus": read_gpus(),
        "processes": None,
        "sweep_memory": None,
    }
    if submission.state == RUNNING and submission.process and is_running(submission.process):
        with contextlib.suppress(psutil.Error):
            driver = psutil.Process(int(submission.process["pid"]))
            processes = [driver, *driver.children(recursive=True)]
            load["processes"] = len(processes)
            load["sweep_memory"] = f"{sum(map(_read_memory, processes)) / 2**30:.1f} GB"
    return load


def read_gpus() -> list[str]:
    """Describe the use of each NVIDIA GPU of this machine; empty without the extra ``gpu``."""
    with open_nvml() as nvml:
        devices = list_devices(nvml) if nvml else {}
        states = [read_state(nvml, name, device) for name, device in devices.items()]
    return [str(state) for state in states if state]


def _read_memory(process: psutil.Process) -> int:
    """Return the memory of a process without the part that it shares with others, as with its parent."""
    try:
        memory = process.memory_info()
    except psutil.Error:
        return 0
    return int(memory.rss - getattr(memory, "shared", 0))


def format_time(seconds: float | None) -> str | None:
    """Format a moment as ISO 8601 in UTC."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
