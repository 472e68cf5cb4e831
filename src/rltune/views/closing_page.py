"""Render the page that a sweep ends with: who won, what it cost, what to type next.

``console`` prints it. ``tables`` prints the certification's part of it for ``sweeps.show``.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from rltune.certification.result import MIN_RUNS, label
from rltune.envs.objective import Objective
from rltune.formatting import (
    classify_failure,
    first_line,
    format_count,
    format_duration,
    format_interval,
    format_number,
    format_objective,
    format_params,
    spell_command,
)
from rltune.ledger.outcome import Outcome
from rltune.records import SCORED_REPORTS, TRIALS, Direction, trial_dir_of
from rltune.views.sweep_view import SweepView, TrialSnapshot
from rltune.views.wording import describe_verdict

NUM_BEST = 5  # The table has the best trials, not all of them.


@dataclass(frozen=True)
class ClosingPage:
    """What the page shows.

    Attributes:
        view: The sweep as it has ended.
        outcome: How it ended.
        verdict: Who won, by how much, and how sure that is.
        tracking_uri: MLflow's address, without a login; None without tracking.
        resume_command: The command that resumes the sweep; None where nothing is left to do.
    """

    view: SweepView
    outcome: Outcome
    verdict: str
    tracking_uri: str | None = None
    resume_command: str | None = None

    @property
    def top(self) -> Sequence[TrialSnapshot]:
        """The best trials, those that can still win first."""
        return self.view.ranked[:NUM_BEST]

    @property
    def failed(self) -> Sequence[TrialSnapshot]:
        """The trials whose reasons are listed."""
        return [trial for trial in self.view.trials if trial.state == "FAIL"]


def make_closing_page(view: SweepView, outcome: Outcome, tracking_uri: str | None, resume: str | None) -> ClosingPage:
    """Make the closing page of a sweep; see `ClosingPage` for the arguments."""
    return ClosingPage(view, outcome, describe_verdict(view), tracking_uri, resume)


def render_closing_page(page: ClosingPage) -> Iterator[RenderableType]:
    """Render the page part by part; strings are single lines that must not be wrapped, because they are copied."""
    view, outcome = page.view, page.outcome
    yield from _render_outcome(page)
    if view.criteria.second:
        yield from render_front(view.criteria.second, view.front)
    if outcome.certified:
        yield from describe_certification(outcome.certified, view.objective)
    if page.top and (outcome.certified or (outcome.winner or {}).get("evaluation")):
        yield Text(explain_scores(bool(outcome.certified)))
    if outcome.model:
        yield from _describe_champion(outcome.model, outcome.name)
    yield from _render_failures(page)
    yield from _render_cost(outcome.cost)
    yield from _render_next(page)
    yield ""
    yield Text(page.verdict, style="bold")


def _render_outcome(page: ClosingPage) -> Iterator[RenderableType]:
    view, outcome, count = page.view, page.outcome, page.outcome.trials.get
    num_to_begin, reason = view.num_trials - len(view.trials), outcome.reason or ""
    num_broken = sum(bool(trial.broken) for trial in view.trials if trial.score is not None)
    trials = format_number(count("total", 0), "trial")
    yield ""
    yield Text(
        f"sweep {outcome.name}: {outcome.status}, {trials}: {count('complete', 0)} complete, "
        f"{count('pruned', 0)} stopped, {count('failed', 0)} failed"
        + (f", {count('interrupted')} interrupted" if count("interrupted") else "")
        + (f"; {num_to_begin} not begun" if num_to_begin else "")
        + (f": {reason}" if num_to_begin and reason.startswith("budget.") else "")
        + (f"; {num_broken} of them cannot win, for a constraint" if num_broken else "")
    )
    if not page.top:
        return
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("", "trial", "score", "env steps"):
        table.add_column(name, justify="right", no_wrap=True)
    # Trials with their whole budget stand first, whatever a stopped one reached.
    table.add_column("state", no_wrap=True)
    table.add_column("params", overflow="fold")
    for rank, trial in enumerate(page.top, start=1):
        is_winner = trial.number == (outcome.winner or {}).get("trial")
        score = format_objective(trial.score if trial.score is not None else trial.objective)
        state = trial.state_word + ", winner" * is_winner
        cells = str(rank), str(trial.number), score, format_count(trial.env_steps), state, format_params(trial.params)
        table.add_row(*cells, style="bold green" if is_winner else "")
    yield ""
    yield table


def render_front(second: str, front: Iterable[TrialSnapshot]) -> Iterator[RenderableType]:
    """Render the trials that no other one beats in both objectives.

    Args:
        second: What the second objective measures.
        front: The trials, the best score first.
    """
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("front", "score", second):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("params", overflow="fold")
    for trial in front:
        cells = f"trial {trial.number}", format_objective(trial.score), format_objective(trial.second)
        table.add_row(*cells, format_params(trial.params))
    yield ""
    yield table if table.row_count else "no trial had its whole budget and can win, so that the front is empty"
    yield f"front: the complete trials that no other one beats in both score and {second}"


def explain_scores(is_certified: bool) -> str:
    """Say why a trial's score and what its policy reaches differ: they are not measured on the same.

    Args:
        is_certified: Whether certification stands beside the score; else fresh episodes do.
    """
    other = "certified = retrained on fresh seeds" if is_certified else "fresh episodes = the trained policy"
    return (
        f"score = mean training return with exploration (last {SCORED_REPORTS} reports); {other}, acting greedily. "
        "The second is usually better."
    )


def _describe_champion(model: Mapping[str, Any], sweep: str) -> Iterator[RenderableType]:
    """Say whether the alias by which a champion is loaded now means this sweep's winner.

    Args:
        model: As `Outcome` has it.
        sweep: The sweep's name.
    """
    if model["champion"]:
        yield Text(f"champion  of {model['name']} is this sweep's winner, version {model['version']}: {model['why']}")
    else:
        yield Text(f"champion  of {model['name']} stays what it was: {model['why']}")
        yield f'          this sweep\'s winner is version {model["version"]}: rltune.load_policy("sweep:{sweep}")'


def describe_certification(certified: Mapping[str, Any], objective: Objective) -> Iterator[RenderableType]:
    """Render the certification's table, and what follows from it.

    Args:
        certified: `Certification.summary`.
        objective: What the scores measure.
    """
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    # Some columns wrap, so that the table fits into 80 columns.
    table.add_column("certified", min_width=len("certified"))
    for name in ("IQM", "95% interval", "search said", "beats baseline", "seeds"):
        wraps = name in ("search said", "beats baseline", "seeds")
        table.add_column(name, justify="right", no_wrap=not wraps, min_width=max(map(len, name.split())))
    table.add_column("", no_wrap=True)
    rows = certified["configurations"]
    failed, counted = [], ""
    for row in rows:
        odds = "-" if row["improvement"] is None else f"{row['improvement']:.0%}"
        seeds = str(row["seeds"]) + (f", {row['failed_seeds']} failed" if row["failed_seeds"] else "")
        if row["failed_seeds"]:
            count = f"{row['failed_seeds']} of {row['seeds'] + row['failed_seeds']}"
            failed.append(f"{label(row['name'], row['trial'])} ({count})")
            counted = format_objective(row["failed_score"])
        table.add_row(
            label(row["name"], row["trial"]),
            format_objective(row["iqm"] if row["seeds"] else None),
            format_interval(row),
            format_objective(row["search_score"]),
            odds,
            seeds,
            row["verdict"],
            style="bold green" if row["verdict"] == "winner" else "",
        )
    yield ""
    yield table
    num_seeds, best = len(certified["seeds"]), rows[0]
    yield "IQM: mean of the middle half of the runs"
    if any(row["low"] is not None for row in rows):
        yield f"95% interval: of the median of such runs, by {num_seeds} seeds"
    if best.get("raw_iqm") not in (None, best["iqm"]):
        chosen, free = format_objective(best["raw_iqm"]), format_objective(best["iqm"])
        yield f"{label(best['name'], best['trial'])} was chosen by an IQM of {chosen}; {free} is free of that luck"
    if num_seeds < MIN_RUNS:
        for row in rows:
            yield f"{label(row['name'], row['trial'])}: {', '.join(map(format_objective, row['scores']))}"
    ties = [row["name"] for row in rows if row["verdict"] == "tie"]
    if ties:
        yield f"tied with {certified['winner']}, their intervals overlap: {', '.join(ties)}"
    if failed:
        worst = "lowest" if objective.direction is Direction.MAX else "highest"
        yield f"a failed seed counts as the {worst} {objective.name} of all runs, {counted}: {', '.join(failed)}"
    if few := warn_of_few_seeds(num_seeds):
        yield few
    policy = certified.get("policy")
    if policy:
        yield Text(
            f"policy    mean {objective.name} {format_objective(policy['mean'])} (95% interval "
            f"{format_interval(policy)}) over {policy['episodes']} fresh episodes; {policy['name']} "
            f"retrained on seed {policy['seed']}"
        )


def warn_of_few_seeds(num_seeds: int) -> str | None:
    """Say that so few training seeds have no 95% interval (`rltune.statistics.median_interval`); None for enough."""
    if num_seeds >= MIN_RUNS:
        return None
    number = "one seed is" if num_seeds == 1 else f"{num_seeds} seeds are"
    return f"{number} too few for an interval, and to tell configurations apart: certify.seeds={MIN_RUNS} does both"


def _render_failures(page: ClosingPage) -> Iterator[RenderableType]:
    """Render one line for each kind of failure, in the words of the first of them."""
    grouped: dict[str, tuple[str, list[int]]] = {}
    for trial in page.failed:
        reason, log = first_line(trial.reason), trial.record.log
        described = f"{reason}; see {page.outcome.folder / log}" if log else reason
        grouped.setdefault(classify_failure(reason), (described, []))[1].append(trial.number)
    if grouped:
        yield ""
        yield "failed"
    for described, numbers in grouped.values():
        named = ", ".join(map(str, numbers[:8])) + (", ..." if len(numbers) > 8 else "")
        yield f"  {len(numbers)} x {described} (trial {named})"


def _render_cost(costs: Mapping[str, float]) -> Iterator[RenderableType]:
    cost = costs.get
    steps, saved, train_s = cost("env_steps", 0), cost("env_steps_saved", 0), cost("train_s", 0.0)
    wall_s = cost("wall_s", 0.0)
    yield ""
    yield Text(
        f"cost      {format_count(steps)} env steps in {format_duration(wall_s)}, of which "
        f"{format_duration(wall_s * cost('efficiency', 0.0))} were training "
        f"({format_number(cost('slots', 1), 'trial')} at a time; the rest is start-up and evaluation)"
    )
    if cost("certify_train_s"):
        certify_steps, certify_s = cost("certify_env_steps", 0), cost("certify_train_s", 0.0)
        yield Text(f"certified {format_count(certify_steps)} env steps, {format_duration(certify_s)} of training")
    if saved > 0:
        estimate = f", about {format_duration(saved * train_s / steps)} of training" if steps else ""
        share = f" ({saved / (steps + saved):.0%} of the whole)" if steps else ""
        yield Text(f"saved     {format_count(saved)} env steps{estimate}{share} by stopping weak trials early")


def _render_next(page: ClosingPage) -> Iterator[RenderableType]:
    """Name where things are and what to type next; only what exists is named, and of a failed sweep what went wrong."""
    outcome, folder = page.outcome, page.outcome.folder
    yield f"folder    {_shorten_path(folder)}"
    if (report := folder / "report" / "index.html").exists():
        yield f"report    {_shorten_path(report)}"
    if page.tracking_uri:
        yield f"mlflow    {page.tracking_uri}"
    yield ""
    yield "next"
    if page.resume_command:
        yield f"  continue this sweep   {_spell_command(page.resume_command)}"
    if outcome.status == "failed" and page.failed:
        file = _shorten_path(folder) / trial_dir_of(TRIALS, page.failed[0].number) / "failure.txt"
        yield f"  see what went wrong   less {file}"
        yield "  then                  correct it, and type the command again"
        return
    if page.tracking_uri and "://" in page.tracking_uri:
        yield f"  compare the trials    {_suggest_mlflow(page.tracking_uri)}"
    if folder.joinpath("study.db").exists():
        study = _shorten_path(folder) / "study.db"
        hint = "" if shutil.which("optuna-dashboard") else "   # pip install optuna-dashboard"
        yield f"  look at the study     optuna-dashboard sqlite:///{study}{hint}"
    if page.top:
        policy = outcome.model["uri"] if outcome.model else f"sweep:{outcome.name}"
        yield f"  test the winner       {_spell_command(spell_command(f'evaluate policy={policy}'))}"
        yield f'  use it in Python      import rltune; policy = rltune.load_policy("{policy}")'


def _shorten_path(path: Path) -> Path:
    """Return ``path`` as it is shortest to type from here."""
    try:
        return path.resolve().relative_to(Path.cwd())
    except (ValueError, OSError):
        return path


def _spell_command(command: str) -> str:
    """Spell a command's program so that it runs in a shell where no environment is active."""
    program, _, rest = command.partition(" ")
    folder = Path(sys.executable).parent
    if shutil.which(program) != str(folder / program) and (folder / program).exists():
        program = min(str(folder / program), os.path.relpath(folder / program), key=len)
    return f"{program} {rest}".rstrip()


def _suggest_mlflow(tracking_uri: str) -> str:
    if tracking_uri.startswith(("http://", "https://")):
        return f"open {tracking_uri} in a browser"
    if tracking_uri == f"sqlite:///{Path.cwd() / 'mlflow.db'}":  # MLflow's own default
        return _spell_command("mlflow ui")
    return _spell_command(f"mlflow ui --backend-store-uri {tracking_uri}")
