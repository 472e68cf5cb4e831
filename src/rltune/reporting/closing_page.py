"""How a sweep's numbers look to a person, and the page that a sweep ends with.

Pure: it formats what it is given and prints nothing. ``console`` shows it in the driver; ``sweeps.list`` and
``sweeps.show`` use the same spellings.
"""

from __future__ import annotations

import math
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from rltune.certification.result import MIN_RUNS, label
from rltune.formatting import first_line, format_count, format_duration, format_objective, format_params


@dataclass
class TrialView:
    """One trial as it is shown; ``objective`` is the latest report and ``best`` the highest so far."""

    number: int
    state: str = "RUNNING"
    params: Mapping[str, Any] = field(default_factory=dict)
    objective: float | None = None
    best: float | None = None
    env_steps: int = 0
    reason: str | None = None

    def see(self, objective: float | None) -> None:
        """Take a report in; a value that is missing or not finite leaves ``best`` as it was."""
        self.objective = objective
        if objective is not None and math.isfinite(objective):
            self.best = objective if self.best is None else max(self.best, objective)


@dataclass(frozen=True)
class Summary:
    """How a sweep ended, for ``Console.summary``; the mappings have the keys of ``summary.json``.

    Attributes:
        name: The sweep's name.
        status: One word, such as ``complete``, ``interrupted`` or ``failed``.
        counts: ``total``, ``complete``, ``pruned``, ``failed``, ``interrupted``; a missing one counts as 0.
        top: The best trials, best first; five are shown.
        cost: ``env_steps``, ``env_steps_saved``, ``train_s``, ``wall_s``, ``slots``, ``efficiency``.
        folder: The sweep's folder.
        tracking_uri: Where MLflow's store is; None when tracking is off.
        model_uri: The registered winner; None when nothing was registered.
        resume_command: What continues an interrupted sweep; None when there is nothing to continue.
        certified: `Certification.summary`; None when nothing was certified.
        winner: As `Outcome` has it; None without.
    """

    name: str
    status: str
    counts: Mapping[str, int]
    top: Sequence[TrialView]
    cost: Mapping[str, float]
    folder: Path
    tracking_uri: str | None = None
    model_uri: str | None = None
    resume_command: str | None = None
    certified: Mapping[str, Any] | None = None
    winner: Mapping[str, Any] | None = None


def closing_page(summary: Summary, failed: Iterable[TrialView]) -> Iterator[RenderableType]:
    """What a sweep ends with, part by part: strings are single lines that must not be wrapped.

    Args:
        summary: How the sweep ended.
        failed: The trials whose reasons are listed.
    """
    yield from _outcome(summary)
    if summary.certified:
        yield from certified(summary.certified)
    elif summary.winner:
        yield from won(summary.winner)
    yield from _failures(failed)
    yield from _cost(summary)
    yield from _next(summary)


def _outcome(summary: Summary) -> Iterator[RenderableType]:
    count = summary.counts.get
    yield ""
    yield Text(
        f"sweep {summary.name}: {summary.status}, {count('total', 0)} trials: {count('complete', 0)} done, "
        f"{count('pruned', 0)} stopped early, {count('failed', 0)} failed"
        + (f", {count('interrupted')} to continue" if count("interrupted") else "")
    )
    if not summary.top:
        yield "no trial reported a return, so there is no winner"
        return
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("", "trial", "objective", "env steps"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("params", overflow="fold")
    for rank, view in enumerate(summary.top[:5], start=1):
        shown = format_objective(view.best if view.best is not None else view.objective)
        cells = str(rank), str(view.number), shown, format_count(view.env_steps), format_params(view.params)
        table.add_row(*cells, style="bold green" if rank == 1 else "")
    yield ""
    yield table


def won(winner: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Who won without certification: not always the first by the search's own numbers.

    Args:
        winner: As `Outcome` has it.
    """
    played = winner.get("evaluation")
    how = (
        f"mean return {format_objective(played['mean'])} on {played['episodes']} fresh episodes ({_span(played)})"
        if played
        else f"by the search's own objective, {format_objective(winner['objective'])}"
    )
    yield ""
    yield Text(f"winner    {winner['name']}: {how}", style="bold green")


def certified(found: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Certification's table and how to read it.

    Args:
        found: `Certification.summary`.
    """
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("certified", min_width=len("certified"))  # what wraps does so that all fits into 80 columns
    for name in ("IQM", "95% interval", "search said", "optimism", "beats control", "seeds"):
        wraps = name in ("search said", "beats control", "seeds")
        table.add_column(name, justify="right", no_wrap=not wraps, min_width=max(map(len, name.split())))
    table.add_column("", no_wrap=True)
    failed, counted = [], ""
    for row in found["configurations"]:
        odds = "-" if row["improvement"] is None else f"{row['improvement']:.0%}"
        seeds = str(row["seeds"]) + (f", {row['failed_seeds']} failed" if row["failed_seeds"] else "")
        if row["failed_seeds"]:
            count = f"{row['failed_seeds']} of {row['seeds'] + row['failed_seeds']}"
            failed.append(f"{label(row['name'], row['trial'])} ({count})")
            counted = format_objective(row["failed_score"])
        table.add_row(
            label(row["name"], row["trial"]),
            format_objective(row["iqm"] if row["seeds"] else None),
            _span(row),
            format_objective(row["search_score"]),
            format_objective(row["optimism"]),
            odds,
            seeds,
            row["verdict"],
            style="bold green" if row["verdict"] == "winner" else "",
        )
    yield ""
    yield table
    ties = [row["name"] for row in found["configurations"] if row["verdict"] == "tie"]
    if ties:
        what = "intervals" if len(found["seeds"]) >= MIN_RUNS else "runs"
        yield f"tied with {found['winner']}, their {what} overlap: {', '.join(ties)}"
    if failed:
        yield f"a failed seed counts as the lowest return of all runs, {counted}: {', '.join(failed)}"
    if few := few_seeds(len(found["seeds"])):
        yield few
    policy = found.get("policy")
    if policy:
        yield Text(
            f"policy    {policy['name']} retrained on seed {policy['seed']}: {policy['episodes']} fresh episodes "
            f"have a mean return of {_span(policy)}, 95 times in a hundred"
        )


def few_seeds(num_seeds: int) -> str | None:
    """Say that so few training seeds have no 95% interval; None for enough.

    Of up to four runs, more than 2.5% of the resamples have the lowest run's score as their IQM, and as many the
    highest's: the percentiles are the runs themselves.
    """
    if num_seeds == 1:
        return "one seed has no interval, and no ties can be told by it: certify.seeds=5 has both"
    if num_seeds < MIN_RUNS:
        return f"{num_seeds} seeds are too few for an interval: certify.seeds=5 has one"
    if num_seeds < 5:
        return f"{num_seeds} seeds are too few for an interval: it spans lowest and highest. certify.seeds=5 has one"
    return None


def _span(row: Mapping[str, Any]) -> str:
    return (
        "-"
        if row.get("seeds", MIN_RUNS) < MIN_RUNS
        else f"{format_objective(row['low'])} to {format_objective(row['high'])}"
    )


def _failures(failed: Iterable[TrialView]) -> Iterator[RenderableType]:
    grouped: dict[str, list[int]] = {}
    for view in failed:
        grouped.setdefault(first_line(view.reason), []).append(view.number)
    if grouped:
        yield ""
        yield "failed"
    for reason, numbers in grouped.items():
        named = ", ".join(map(str, numbers[:8])) + (", ..." if len(numbers) > 8 else "")
        yield f"  {len(numbers)} x {reason} (trial {named})"


def _cost(summary: Summary) -> Iterator[RenderableType]:
    cost = summary.cost.get
    steps, saved, train_s = cost("env_steps", 0), cost("env_steps_saved", 0), cost("train_s", 0.0)
    yield ""
    yield Text(
        f"cost      {format_count(steps)} env steps, {format_duration(train_s)} of training in "
        f"{format_duration(cost('wall_s', 0.0))} on {cost('slots', 1):.0f} slots "
        f"(efficiency {cost('efficiency', 0.0):.2f})"
    )
    if cost("certify_train_s"):
        certify_steps, certify_s = cost("certify_env_steps", 0), cost("certify_train_s", 0.0)
        yield Text(f"certified {format_count(certify_steps)} env steps, {format_duration(certify_s)} of training")
    if saved > 0:
        estimate = f", about {format_duration(saved * train_s / steps)} of training" if steps else ""
        share = f" ({saved / (steps + saved):.0%} of the whole)" if steps else ""
        yield Text(f"saved     {format_count(saved)} env steps{estimate}{share} by stopping weak trials early")


def _next(summary: Summary) -> Iterator[RenderableType]:
    """Where things are and what to type next; only what exists is named."""
    study = _near(summary.folder) / "study.db"
    yield f"folder    {_near(summary.folder)}"
    if summary.folder.joinpath("study.db").exists():
        yield f"study     {study}"
    if summary.tracking_uri:
        yield f"mlflow    {summary.tracking_uri}"
    yield ""
    yield "next"
    if summary.resume_command:
        yield f"  continue this sweep   {_typed(summary.resume_command)}"
    if summary.tracking_uri and "://" in summary.tracking_uri:
        yield f"  compare the trials    {_look(summary.tracking_uri)}"
    if summary.folder.joinpath("study.db").exists():
        hint = "" if shutil.which("optuna-dashboard") else "   # pip install optuna-dashboard"
        yield f"  look at the study     optuna-dashboard sqlite:///{study}{hint}"
    if summary.top:
        policy = summary.model_uri or f"sweep:{summary.name}"
        yield f"  test the winner       {_typed(f'python -m sweeps.evaluate policy={policy}')}"
        yield f'  use it in Python      import rltune; policy = rltune.load_policy("{policy}")'


def _near(path: Path) -> Path:
    """``path`` as it is shortest to type from here."""
    try:
        return path.resolve().relative_to(Path.cwd())
    except (ValueError, OSError):
        return path


def _typed(command: str) -> str:
    """``command`` with its program spelled so that it runs in a shell where no environment is active."""
    program, _, rest = command.partition(" ")
    here = Path(sys.executable).parent
    if shutil.which(program) != str(here / program) and (here / program).exists():
        program = min(str(here / program), os.path.relpath(here / program), key=len)
    return f"{program} {rest}".rstrip()


def _look(tracking_uri: str) -> str:
    if tracking_uri.startswith(("http://", "https://")):
        return f"open {tracking_uri} in a browser"
    if tracking_uri == f"sqlite:///{Path.cwd() / 'mlflow.db'}":  # MLflow's own default
        return _typed("mlflow ui")
    return _typed(f"mlflow ui --backend-store-uri {tracking_uri}")
