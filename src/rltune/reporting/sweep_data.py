"""What a sweep found, read from its ledger and put in the terms of its report. Draws nothing.

``plotly_figures`` draws it, ``report`` writes it. Everything comes from the sweep's folder, so that a report
can be made again at any time, also of an interrupted sweep. Runs anywhere.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from rltune.algorithms.arguments import build_search_space, values_of
from rltune.certification.result import MIN_RUNS
from rltune.config.settings_file import read_settings
from rltune.config.uris import redact_address
from rltune.errors import RltuneError
from rltune.formatting import format_objective, format_value
from rltune.search.schedulers import build_stopping_rule
from rltune.search.space import Space
from rltune.study.outcome import count_states
from rltune.study.record import TrialRecord
from rltune.study.storage import open_study
from rltune.study.study import Study


@dataclass(frozen=True)
class Findings:
    """A sweep as its report shows it.

    Attributes:
        name: The sweep's.
        status: complete, stopped, interrupted, failed or running.
        settings: The composed config.
        entries: All trials in order.
        levels: The rungs, in environment steps.
        winner: As ``summary.json`` has it; None without one.
        certification: The record of the ledger; None without one.
        cost: As ``summary.json`` has it; empty while the sweep has none.
        model: The registered model; None without one.
        about: Further study attributes: versions, git_commit, command, began.
    """

    name: str
    status: str
    settings: Mapping[str, Any]
    entries: Sequence[TrialRecord]
    levels: Sequence[int]
    winner: Mapping[str, Any] | None
    certification: Mapping[str, Any] | None
    cost: Mapping[str, float]
    model: Mapping[str, Any] | None
    about: Mapping[str, Any]

    @property
    def env_steps(self) -> int:
        """A trial's whole budget."""
        return int(self.settings["budget"]["env_steps"])

    @property
    def judged(self) -> list[TrialRecord]:
        """Trials with a return that may win, the best first."""
        able = [entry for entry in self.entries if entry.best is not None and entry.state != "FAIL"]
        return sorted(able, key=lambda entry: -(entry.best or 0.0))

    @property
    def winner_trial(self) -> int | None:
        """The winner's number; None without one and where the control won."""
        return self.winner.get("trial") if self.winner else None

    @property
    def searched(self) -> Space:
        """The space."""
        return build_search_space(self.settings["algo"], self.settings["space"])


def gather(folder: Path) -> Findings:
    """Read a sweep's folder.

    Raises:
        StudyError: It is no sweep's folder, or its ledger cannot be read.
    """
    study = open_study(folder)
    try:
        return read(folder, study)
    finally:
        study.close()


def read(folder: Path, study: Study) -> Findings:
    """As `gather`, by a ledger that is open already."""
    settings: Any = OmegaConf.to_container(read_settings(folder))
    summary = folder / "summary.json"
    ended = json.loads(summary.read_text()) if summary.is_file() else {}
    return Findings(
        name=folder.name,
        status=str(study.attribute("status", "running")),
        settings=settings,
        entries=study.entries(),
        levels=_levels(settings),
        winner=study.attribute("winner") or ended.get("winner"),
        certification=study.attribute("certification"),
        cost=ended.get("cost") or {},
        model=study.attribute("champion") or ended.get("model"),
        about={key: study.attribute(key) for key in ("versions", "git_commit", "command", "began")},
    )


def _levels(settings: Mapping[str, Any]) -> list[int]:
    """The rungs; none for a scheduler that has none."""
    try:
        found = build_stopping_rule(
            settings["scheduler"]["kind"], settings["scheduler"].get("args") or {}, settings["budget"]["env_steps"]
        )
    except RltuneError:
        return []
    return [int(level) for level in getattr(found, "levels", ())]


# -- words ------------------------------------------------------------------------------------------------------------


def verdict(found: Findings) -> str:
    """What came out, in a sentence or two."""
    number = count_states(found.entries)
    cut = {"interrupted": "Interrupted", "running": "Still running"}.get(found.status)
    ended = number["total"] - number["interrupted"]
    opening = f"{cut} after {ended} of {found.settings['budget']['trials']} trials. " if cut else ""
    if found.certification and found.certification.get("configurations"):
        return opening + _certified(found.certification)
    if not found.judged:
        return f"{opening}No trial reported a return, so there is no winner."
    best = found.winner or {"trial": found.judged[0].number, "objective": found.judged[0].best}
    who, evaluation = f"Trial {best['trial']}", best.get("evaluation")
    if evaluation:
        return (
            f"{opening}{who} is the best of {number['total']}: a mean return of {format_objective(evaluation['mean'])} "
            f"on {evaluation['episodes']} fresh episodes {interval(evaluation)}. It was not certified on fresh seeds, "
            "so training it again may end lower."
        )
    return (
        f"{opening}{who} has the best return of {number['total']} trials, {format_objective(best['objective'])}. This "
        "is the search's own score, the luckiest of many: expect less on fresh seeds."
    )


def _certified(record: Mapping[str, Any]) -> str:
    by_name = {one["name"]: one for one in record["configurations"]}
    best, control = by_name[record["winner"]], by_name.get("control")
    num_seeds = len(best["per_seed"]) + len(best.get("failed_seeds", ()))
    said = f"{_score(best)} over {num_seeds} fresh seed{'s' * (num_seeds != 1)}"
    ties = [str(name) for name in record.get("ties") or ()]
    if best is control and control.get("trial") is not None:
        text = (
            "The settings that were there before stand: nothing that the search found is better. "
            f"They are the values of trial {control['trial']} and return {said}."
        )
    elif best is control:
        text = f"No trial beats the control: the settings that were there before return {said}."
    else:
        text = f"{str(best['name']).capitalize()} wins with a return of {said}"
        if control:
            text += f"; the control's is {_score(control)}"
        text += "."
        if best.get("improvement") is not None:
            text += f" A run of it beats one of the control with probability {best['improvement']:.2f}."
    if ties:
        named = " and ".join([", ".join(ties[:-1]), ties[-1]] if len(ties) > 1 else ties)
        text += f" It is a tie with {named}: these runs do not tell them apart."
    for one in record["configurations"]:
        if failed := len(one.get("failed_seeds", ())):
            text += (
                f" {failed} of {failed + len(one['per_seed'])} seeds of {one['name']} failed, which counts against it."
            )
    return text


def _score(one: Mapping[str, Any]) -> str:
    """A configuration's IQM, with the interval of enough runs."""
    if not one["per_seed"]:
        return "unknown, all of its seeds failed"
    return format_objective(one["iqm"]) + (f" {interval(one)}" if len(one["per_seed"]) >= MIN_RUNS else "")


def interval(one: Mapping[str, Any]) -> str:
    """A 95% interval in brackets."""
    return f"(95% interval {format_objective(one['low'])} to {format_objective(one['high'])})"


@dataclass(frozen=True)
class Value:
    """One searched parameter: what it was, what it could be, what won."""

    name: str
    searched: str
    before: str
    won: str
    changed: bool


def values(found: Findings) -> list[Value]:
    """The winner's values against the algorithm file's own."""
    winning = found.winner.get("params") if found.winner else None
    if winning is None and found.judged:
        winning = found.judged[0].params
    searched = found.searched
    dimensions = {one.name: one for one in searched.dimensions}
    rows = []
    for name in searched.names:
        try:
            before = values_of(found.settings["algo"], (name,))[name]
        except (RltuneError, KeyError, TypeError):
            before = None
        won = (winning or {}).get(name)
        kind = dimensions.get(name)
        shown = f"{kind.kind} {', '.join(format_value(part) for part in kind.args)}" if kind else "fixed"
        if kind and kind.when:
            shown += f", {kind.condition}"
        known = winning is not None and name in winning  # what its condition left out is not
        changed = won != before if known or not (kind and kind.when) else False
        rows.append(Value(name, shown, format_value(before), format_value(won) if known else "-", changed))
    return rows


def commands(found: Findings) -> list[tuple[str, str]]:
    """What to type next: what it does, and the command."""
    algo, env = found.settings["algo"]["name"], found.settings["env"]["name"]
    typed = found.about.get("command") or f"python -m sweeps.run algo={algo} env={env}"
    known = [("Run this sweep again", typed)]
    winner = found.winner or {}
    params = winner.get("params") or (found.judged[0].params if found.judged else {})
    if params:
        fixed = " ".join(shlex.quote(f"space.{name}={_plain(value)}") for name, value in params.items())
        alone = [word for word in typed.split(" ") if not word.startswith(("budget.trials=", "scheduler="))]
        command = f"{' '.join(alone)} {fixed} budget.trials=1 scheduler=none"
        known.append(("Train the winner's values alone", command))
    if found.winner:
        uri = (found.model or {}).get("uri") or f"sweep:{found.name}"
        known.append(("Test the winner on fresh episodes", f"python -m sweeps.evaluate policy={uri}"))
    if found.status in ("interrupted", "running"):
        known.append(("Go on with this sweep", f"python -m sweeps.resume sweep={found.name}"))
    return known


def _plain(value: Any) -> str:
    """A value as an override takes it."""
    return json.dumps(value) if isinstance(value, list | dict | bool) or value is None else str(value)


def typed_command() -> str | None:
    """The sweep's command as it was typed in this process; None where a script started it."""
    script = Path(sys.argv[0])
    if script.parent.name != "sweeps":
        return None
    given = [redact_address(word) for word in sys.argv[1:] if not word.startswith("name=")]  # a name can be used once
    return shlex.join(["python", "-m", f"sweeps.{script.stem}", *given])
