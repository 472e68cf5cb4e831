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
from rltune.envs.objective import Shown
from rltune.errors import RltuneError
from rltune.formatting import format_interval, format_objective, format_value, spell_command
from rltune.records import BASELINE
from rltune.reporting.sweep_data import SweepData
from rltune.study.outcome import count_states, explain_no_winner


def describe_verdict(data: SweepData) -> str:
    """Say in a sentence or two who won, by how much, and how sure that is."""
    number = count_states(data.trials)
    cut = {"interrupted": "Interrupted", "running": "Still running"}.get(data.status)
    ended = number["total"] - number["interrupted"]
    opening = f"{cut} after {ended} of {data.settings['budget']['trials']} trials. " if cut else ""
    if data.record.certification and data.record.certification.get("configurations"):
        verdict = opening + _describe_certification(data.record.certification, data.shown)
        budget = data.settings["budget"]["env_steps"]
        published = (data.settings.get("published") or {}).get("env_steps")  # older sweeps' settings have none
        if published and published > budget:
            verdict += f" The baseline's settings were published for {published:,} environment steps; here: {budget:,}."
        return verdict
    if not data.ranked:
        why = explain_no_winner(data.trials, is_running=data.status == "running")
        return f"{opening}{why[0].upper()}{why[1:]}."
    shown = data.shown
    best = data.record.winner or {"trial": data.ranked[0].number, "objective": data.ranked[0].score}
    who, evaluation = f"Trial {best['trial']}", best.get("evaluation")
    if evaluation:
        return (
            f"{opening}{who} is the best of {number['total']}: a mean {shown.name} of "
            f"{format_objective(shown(evaluation['mean']))} on {evaluation['episodes']} fresh episodes (95% interval "
            f"{format_interval(shown.turn(evaluation))}). It was not certified on fresh seeds, so training it "
            "again may end worse."
        )
    return (
        f"{opening}{who} has the best score of {number['total']} trials, {format_objective(shown(best['objective']))}. "
        "This is the search's own score, the luckiest of many: expect a worse one on fresh seeds."
    )


def _describe_certification(record: Mapping[str, Any], shown: Shown) -> str:
    """Say who won the certification, with ties and failed seeds; scores are shown under their own name."""
    by_name = {one["name"]: one for one in record["configurations"]}
    best, baseline = by_name[record["winner"]], by_name.get(BASELINE)
    num_seeds = len(best["per_seed"]) + len(best.get("failed_seeds", ()))
    scores = f"{_format_score(best, shown)} over {num_seeds} fresh seed{'s' * (num_seeds != 1)}"
    ties = [str(name) for name in record.get("ties") or ()]
    if best is baseline:
        text = "The published settings stand: nothing that the search found is better. "
        same = f"are the values of trial {baseline['trial']} and " if baseline.get("trial") is not None else ""
        text += f"They {same}reach {shown.name} {scores}."
    else:
        text = f"{str(best['name']).capitalize()} wins with {shown.name} {scores}"
        if baseline:
            text += f"; the baseline's is {_format_score(baseline, shown)}"
            if baseline.get("broken"):
                text += f", but it cannot win: {baseline['broken']}"
        text += "."
        if best.get("improvement") is not None:
            text += f" A run of it beats one of the baseline with probability {best['improvement']:.2f}."
    if ties:
        named = " and ".join([", ".join(ties[:-1]), ties[-1]] if len(ties) > 1 else ties)
        text += f" It is a tie with {named}: these runs do not tell them apart."
    for one in record["configurations"]:
        if failed := len(one.get("failed_seeds", ())):
            text += (
                f" {failed} of {failed + len(one['per_seed'])} seeds of {one['name']} failed, which counts against it."
            )
    return text


def _format_score(one: Mapping[str, Any], shown: Shown) -> str:
    """Format a configuration's IQM, with its interval where it has enough runs for one."""
    if not one["per_seed"]:
        return "unknown, all of its seeds failed"
    span = "" if one["low"] is None else f" (95% interval {format_interval(shown.turn(one))})"
    return format_objective(shown(one["iqm"])) + span


@dataclass(frozen=True)
class SearchedValue:
    """One searched parameter, as text: its range, its default, the winner's value, and whether that is another one."""

    name: str
    searched: str
    before: str
    won: str
    changed: bool


def compare_values(data: SweepData) -> list[SearchedValue]:
    """Compare the winner's values with the algorithm file's own, one row a searched parameter."""
    winning = data.record.winner.get("params") if data.record.winner else None
    if winning is None and data.ranked:
        winning = data.ranked[0].params
    space = data.space
    dimensions = {one.name: one for one in space.dimensions}
    rows = []
    for name in space.names:
        try:
            before = values_of(data.settings["algo"], (name,))[name]
        except (RltuneError, KeyError, TypeError):
            before = None
        won = (winning or {}).get(name)
        kind = dimensions.get(name)
        shown = f"{kind.kind} {', '.join(format_value(part) for part in kind.args)}" if kind else "fixed"
        if kind and kind.when:
            shown += f", {kind.condition}"
        known = winning is not None and name in winning  # what its condition left out is not
        changed = won != before if known or not (kind and kind.when) else False
        rows.append(SearchedValue(name, shown, format_value(before), format_value(won) if known else "-", changed))
    return rows


def suggest_commands(data: SweepData) -> list[tuple[str, str]]:
    """List what to type next: what it does, and the command."""
    algo, env = data.settings["algo"]["name"], data.settings["env"]["name"]
    typed = data.record.command or spell_command(f"run algo={algo} env={env}")
    known = [("Run this sweep again", typed)]
    winner = data.record.winner or {}
    params = winner.get("params") or (data.ranked[0].params if data.ranked else {})
    if params:
        fixed = " ".join(shlex.quote(f"space.{name}={_format_override(value)}") for name, value in params.items())
        alone = [word for word in typed.split(" ") if not word.startswith(("budget.trials=", "scheduler="))]
        command = f"{' '.join(alone)} {fixed} budget.trials=1 scheduler=none"
        known.append(("Train the winner's values alone", command))
    if data.record.winner:
        model = data.record.model  # by its version: the alias moves on
        uri = f"models:/{model['name']}/{model['version']}" if model else f"sweep:{data.name}"
        known.append(("Test the winner on fresh episodes", spell_command(f"evaluate policy={uri}")))
    if data.status in ("interrupted", "running") or any(one.state == "RUNNING" for one in data.trials):
        known.append(("Go on with this sweep", data.resume_command))
    return known


def _format_override(value: Any) -> str:
    """Format a value as an override takes it."""
    return json.dumps(value) if isinstance(value, list | dict | bool) or value is None else str(value)


def read_typed_command() -> str | None:
    """Return the sweep's command as it was typed in this process; None where a script started it."""
    script = Path(sys.argv[0])
    if script.parent.name != "commands":
        return None
    given = [redact_address(word) for word in sys.argv[1:] if not word.startswith("name=")]  # a name can be used once
    return " ".join([spell_command(script.stem), *map(shlex.quote, given)])
