"""Put in words what a sweep found and what to type next."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rltune.algorithms.arguments import values_of
from rltune.config.uris import redact_address
from rltune.errors import RltuneError
from rltune.formatting import format_interval, format_objective, format_value, spell_command
from rltune.ledger.outcome import explain_no_winner
from rltune.ledger.sweep_folder import make_resume_command
from rltune.records import BASELINE
from rltune.views.analysis import build_space
from rltune.views.sweep_view import SweepView


def describe_verdict(view: SweepView) -> str:
    """Describe in a sentence or two who won, by how much, and how sure that is."""
    objective, opening = view.objective.name, ""
    if begun := {"interrupted": "Interrupted", "running": "Still running"}.get(view.status):
        opening = f"{begun} after {view.num_ended} of {view.num_trials} trials. "
    if view.record.certification and view.certified:
        verdict = opening + _describe_certification(view.record.certification, objective)
        published = (view.settings.get("published") or {}).get("env_steps")
        if published and published > view.env_steps:
            steps = f"{published:,} environment steps; here: {view.env_steps:,}"
            verdict += f" The baseline's settings were published for {steps}."
        return verdict
    best = view.record.winner
    if best is None and view.best:
        best = {"trial": view.best.number, "objective": view.best.record.score}
    if best is None:
        why = explain_no_winner([trial.record for trial in view.trials], is_running=view.status == "running")
        return f"{opening}{why[0].upper()}{why[1:]}."
    if evaluation := best.get("evaluation"):
        return (
            f"{opening}Trial {best['trial']} is the best of {len(view.trials)}: a mean {objective} of "
            f"{format_objective(evaluation['mean'])} on {evaluation['episodes']} fresh episodes (95% interval "
            f"{format_interval(evaluation)}). It was not certified on fresh seeds, so training it "
            "again may end worse."
        )
    score = format_objective(best["objective"])
    return (
        f"{opening}Trial {best['trial']} has the best score of {len(view.trials)} trials, {score}. "
        "This is the search's own score, the luckiest of many: expect a worse one on fresh seeds."
    )


def _describe_certification(record: Mapping[str, Any], objective: str) -> str:
    """Describe who won the certification, with ties and failed seeds; ``objective`` names what scores measure."""
    by_name = {row["name"]: row for row in record["configurations"]}
    best, baseline = by_name[record["winner"]], by_name.get(BASELINE)
    num_seeds = len(best["per_seed"]) + len(best.get("failed_seeds", ()))
    scores = f"{_format_score(best)} over {num_seeds} fresh seed{'s' * (num_seeds != 1)}"
    ties = [str(name) for name in record.get("ties") or ()]
    if best is baseline:
        text = "The published settings stand: nothing that the search found is better. "
        same = f"are the values of trial {baseline['trial']} and " if baseline.get("trial") is not None else ""
        text += f"They {same}reach {objective} {scores}."
    else:
        text = f"{str(best['name']).capitalize()} wins with {objective} {scores}"
        if baseline:
            text += f"; the baseline's is {_format_score(baseline)}"
            if baseline.get("broken"):
                text += f", but it cannot win: {baseline['broken']}"
        text += "."
        if best.get("improvement") is not None:
            text += f" A run of it beats one of the baseline with probability {best['improvement']:.2f}."
    if ties:
        named = " and ".join([", ".join(ties[:-1]), ties[-1]] if len(ties) > 1 else ties)
        text += f" It is a tie with {named}: these runs do not tell them apart."
    for row in record["configurations"]:
        if failed := len(row.get("failed_seeds", ())):
            text += (
                f" {failed} of {failed + len(row['per_seed'])} seeds of {row['name']} failed, which counts against it."
            )
    return text


def _format_score(row: Mapping[str, Any]) -> str:
    """Format a configuration's IQM, with its interval where it has enough runs for one."""
    if not row["per_seed"]:
        return "unknown, all of its seeds failed"
    span = "" if row["low"] is None else f" (95% interval {format_interval(row)})"
    return format_objective(row["iqm"]) + span


@dataclass(frozen=True)
class SearchedValue:
    """One searched parameter, as text: its range, its default, the winner's value, and whether that is another one."""

    name: str
    searched: str
    before: str
    won: str
    has_changed: bool


def compare_values(view: SweepView) -> list[SearchedValue]:
    """Compare the winner's values with the algorithm file's own, one row for each searched parameter."""
    winning, space = _find_best_params(view), build_space(view)
    dimensions = {dimension.name: dimension for dimension in space.dimensions}
    rows = []
    for name in space.names:
        try:
            before = values_of(view.settings["algo"], (name,))[name]
        except (RltuneError, KeyError, TypeError):
            before = None
        dimension, value = dimensions.get(name), (winning or {}).get(name)
        searched = "fixed"
        if dimension:
            searched = f"{dimension.kind} {', '.join(format_value(part) for part in dimension.args)}"
            searched += f", {dimension.condition}" if dimension.when else ""
        has_value = winning is not None and name in winning  # A parameter whose condition is not met has none.
        has_changed = value != before if has_value or not (dimension and dimension.when) else False
        won = format_value(value) if has_value else "-"
        rows.append(SearchedValue(name, searched, format_value(before), won, has_changed))
    return rows


def _find_best_params(view: SweepView) -> Mapping[str, Any] | None:
    """Return the values of the winner, or of the best trial so far; None without either."""
    if view.record.winner:
        params: Mapping[str, Any] = view.record.winner["params"]
        return params
    return view.best.params if view.best else None


def suggest_commands(view: SweepView) -> list[tuple[str, str]]:
    """List what to type next: what it does, and the command."""
    algo, env = view.settings["algo"]["name"], view.settings["env"]["name"]
    typed = view.record.command or spell_command(f"run algo={algo} env={env}")
    commands = [("Run this sweep again", typed)]
    if params := _find_best_params(view):
        fixed = " ".join(shlex.quote(f"space.{name}={_format_override(value)}") for name, value in params.items())
        alone = [word for word in typed.split(" ") if not word.startswith(("budget.trials=", "scheduler="))]
        command = f"{' '.join(alone)} {fixed} budget.trials=1 scheduler=none"
        commands.append(("Train the winner's values alone", command))
    if view.record.winner:
        model = view.record.model  # The version is named, because the alias moves on.
        uri = f"models:/{model['name']}/{model['version']}" if model else f"sweep:{view.name}"
        commands.append(("Test the winner on fresh episodes", spell_command(f"evaluate policy={uri}")))
    if view.status in ("interrupted", "running") or view.num_ended < len(view.trials):
        commands.append(("Go on with this sweep", make_resume_command(view.folder, view.settings)))
    return commands


def _format_override(value: Any) -> str:
    """Format a value as an override takes it."""
    return json.dumps(value) if isinstance(value, list | dict | bool) or value is None else str(value)


def read_typed_command() -> str | None:
    """Return the sweep's command as it was typed in this process; None where a script started it."""
    script = Path(sys.argv[0])
    if script.parent.name != "cli":
        return None
    # The name is left out, because it can be used once.
    given = [redact_address(word) for word in sys.argv[1:] if not word.startswith("name=")]
    return " ".join([spell_command(script.stem), *map(shlex.quote, given)])
