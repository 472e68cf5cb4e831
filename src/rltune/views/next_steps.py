"""Spell the commands with which a user can continue, reproduce and use a sweep."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from rltune.algorithms.arguments import count_copies
from rltune.formatting import spell_command
from rltune.ledger.outcome import Outcome
from rltune.ledger.sweep_folder import make_resume_command, spell_output_dir
from rltune.records import TrialRecord
from rltune.tracking.mlflow_address import is_default_store
from rltune.trial.recent_episodes import spell_time_limit
from rltune.views.page import Section, describe_sweep
from rltune.views.sweep_view import SweepView


def describe_end(
    view: SweepView, outcome: Outcome, tracking_uri: str | None = None, resume: str | None = None
) -> list[Section]:
    """Describe a sweep that has ended, and suggest the next commands for the working directory.

    Args:
        outcome: How it has ended.
        tracking_uri: MLflow's address, without a login; None without tracking.
        resume: The command that resumes the sweep; None if nothing is left to do.
    """
    return [*describe_sweep(view, outcome, is_brief=True), _describe_next_steps(view, tracking_uri, resume)]


def _describe_next_steps(view: SweepView, tracking_uri: str | None, resume: str | None) -> Section:
    steps = [("continue this sweep", resume)] if resume else []
    sweep = f"{view.name}{spell_output_dir(view.folder.parent)}"
    failed = [trial for trial in view.trials if trial.state == "FAIL"]
    if view.status == "failed" and failed:
        logs = [view.folder / trial.record.log for trial in failed if trial.record.log]
        show = spell_command(f"show sweep={sweep}")
        again = view.record.command
        if any(trial.record.can_be_retried(view.env_steps) for trial in failed):
            again = spell_command(f"retry sweep={sweep}")
        elif again and all(_lacks_episodes(trial.record) for trial in failed):
            again = f"{again}{_spell_time_limit(view)}"
        steps.append(("see what went wrong", f"less {_shorten_path(logs[0])}" if logs else show))
        if again:
            steps.append(("correct it, then", again))
        return Section("next", "Next", facts=steps)
    if view.certification and (seeds := view.certification.suggest_seeds()):
        command = make_resume_command(view.folder, view.settings)
        steps.append(("test it on more seeds", f"{command} certify.seeds={seeds}"))
    if any(trial.has_ended for trial in view.trials):
        steps.append(("look at the study", spell_command(f"report sweep={sweep} dashboard=true")))
    if view.ranked:
        steps.append((f"test the {view.winner_word}", spell_command(f"evaluate policy=sweep:{sweep}")))
        steps.append(("use it in Python", _spell_loading(view, tracking_uri)))
    return Section("next", "Next", facts=steps)


def _lacks_episodes(trial: TrialRecord) -> bool:
    """Return whether a trial has failed for want of an episode that has ended, and not by code that has raised."""
    return trial.cause is None and trial.numbers.get("episodes") == 0


def _spell_time_limit(view: SweepView) -> str:
    """Spell a time limit as a further override for a sweep of which no episode has ended; empty if it has one."""
    env = view.settings["env"]
    limit = spell_time_limit(view.env_steps // count_copies(view.settings["algo"]), has_agents=bool(env["policies"]))
    return "" if limit.removeprefix("+env.kwargs.").partition("=")[0] in env["kwargs"] else f" {limit}"


def describe_reproduction(view: SweepView) -> Section:
    """Describe how to run a sweep again, from the working directory and the commit of the first run."""
    algo, env = view.settings["algo"]["name"], view.settings["env"]["name"]
    typed = view.record.command or spell_command(f"run algo={algo} env={env}")
    commands = [("Run this sweep again", typed)]
    if params := view.best_params:
        fixed = " ".join(shlex.quote(f"space.{name}={_format_override(value)}") for name, value in params.items())
        replaced = ("budget.trials=", "scheduler=", "certify=", "certify.")
        words = " ".join(word for word in typed.split(" ") if not word.startswith(replaced))
        alone = f"{words} {fixed} budget.trials=1 scheduler=none certify=off"
        commands.append((f"Train only the configuration of the {view.winner_word}", alone))
    if view.winner:
        # The sweep's checkpoint is used and not the registered model: a policy from MLflow counts as somebody else's,
        # and would need trust=true to import the environment's module.
        where = spell_output_dir(view.folder.parent)
        test = spell_command(f"evaluate policy=sweep:{view.name}{where}")
        commands.append((f"Test the {view.winner_word} on fresh episodes", test))
    if view.status in ("interrupted", "running") or view.num_ended < len(view.trials):
        commands.append(("Continue this sweep", make_resume_command(view.folder, view.settings)))
    commit = f" at commit {view.record.git_commit[:12]}" if view.record.git_commit else ""
    note = (
        f"Type these in the same folder{commit}, with the versions below. The same seed repeats a trial; which trials "
        "are stopped depends on which finish first."
    )
    return Section("commands", "Reproduce it", facts=commands, notes=[note])


def _format_override(value: Any) -> str:
    """Format a value as in a Hydra override."""
    return json.dumps(value) if isinstance(value, list | dict | bool) or value is None else str(value)


def _shorten_path(path: Path) -> Path:
    """Return a path relative to the working directory, if it is inside."""
    try:
        return path.resolve().relative_to(Path.cwd())
    except (ValueError, OSError):
        return path


def _spell_loading(view: SweepView, tracking_uri: str | None) -> str:
    """Spell the Python line that loads the winner: its registered model if the server is known, else the sweep's."""
    if not (view.record.model and tracking_uri):
        return f'import rltune; policy = rltune.load_policy("sweep:{view.name}")'
    start = "import rltune"
    if not is_default_store(tracking_uri):
        start = f'import mlflow, rltune; mlflow.set_tracking_uri("{tracking_uri}")'
    return f'{start}; policy = rltune.load_policy("{view.record.model["uri"]}")'
