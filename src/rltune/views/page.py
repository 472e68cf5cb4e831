"""Describe a sweep as a list of sections, which terminal, report and the service's page show in the same words.

`rltune.views.terminal` prints sections, and ``templates/section.html`` renders them as HTML. Neither adds words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rltune.algorithms.arguments import name_arguments, values_of
from rltune.certification.description import MAX_METRICS, define_columns, describe_result, explain_table, make_table
from rltune.envs.changes import is_measured_apart
from rltune.envs.searched import is_of_env
from rltune.envs.spec import EPISODE
from rltune.errors import RltuneError, spell
from rltune.formatting import (
    TextTable,
    classify_failure,
    first_line,
    format_count,
    format_duration,
    format_interval,
    format_number,
    format_objective,
    format_params,
    format_value,
    spell_command,
)
from rltune.ledger.outcome import Outcome, explain_no_winner
from rltune.ledger.sweep_folder import spell_output_dir
from rltune.policies.acting import describe_acting
from rltune.records import BASELINE, Direction
from rltune.search.dimensions import Dimension
from rltune.tracking.mlflow_address import make_server_command
from rltune.trial.metrics import EPISODES_WITH, RECENT, RESTARTS
from rltune.views.analysis import build_space
from rltune.views.sweep_view import ORIGINS, SweepView, TrialSnapshot

MAX_TRIALS = 10  # At the end of a sweep, at most this many trials are listed; `rltune show` lists all.
MAX_NAMED = 8  # A line about failures names at most this many trials.


@dataclass(frozen=True)
class Section:
    """A titled part of a sweep's description: a table, facts to copy, and sentences.

    Attributes:
        name: The name by which a template places it.
        title: The heading.
        table: The table; None without one.
        facts: Pairs of a label and a text that users copy, such as a path or a command.
        notes: Sentences.
    """

    name: str
    title: str
    table: TextTable | None = None
    facts: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()

    def list_lines(self) -> list[str]:
        """Return the section's text, line by line, without its table."""
        width = max((len(label) for label, _ in self.facts), default=0)
        return [self.title, *(f"  {label:<{width}}  {text}" for label, text in self.facts), *self.notes]


def describe_sweep(
    view: SweepView, outcome: Outcome | None = None, *, is_wide: bool = False, is_brief: bool = False
) -> list[Section]:
    """Describe a sweep as sections: status, trials, certification, failures, cost, results and verdict.

    Args:
        outcome: How it has ended; None if it has not, or if that cannot be read.
        is_wide: Whether there is room for a column of each parameter that differs between the trials.
        is_brief: Whether it closes a sweep: it has at most `MAX_TRIALS` trials, the values of the winner alone, and no
            definitions of columns, since ``rltune show`` has the rest.

    Returns:
        The sections in the order in which a terminal shows them, without those that have nothing to say.
    """
    status = f"{view.name}: {view.status}, {describe_counts(view)}"
    if outcome and (reason := outcome.reason or "").startswith("budget.") and view.num_trials > len(view.trials):
        status += f": {reason}"
    sections = [Section("status", status), *_describe_trials(view, is_wide, is_brief)]
    if certification := view.certification:
        notes = [f"baseline: {describe_baseline(view)}", *explain_table(certification, view.objective)]
        notes += [] if is_brief else define_columns(certification)
        sections.append(Section("certification", "Certified on fresh seeds", make_table(certification), notes=notes))
    sections += [
        *_describe_failures(view),
        *_describe_repairs(view),
        *_describe_cost(view, outcome),
        *_describe_files(view),
    ]
    return [*sections, *_describe_verdict(view, is_brief)]


def describe_counts(view: SweepView) -> str:
    """Count a sweep's trials by state, in words."""
    counts, num_to_begin = view.counts, view.num_trials - len(view.trials)
    num_broken = sum(bool(trial.broken) for trial in view.trials if trial.score is not None)
    return (
        f"{format_number(counts['total'], 'trial')}: {counts['complete']} complete, {counts['pruned']} stopped, "
        f"{counts['failed']} failed"
        + "".join(f", {counts[state]} {state}" for state in ("running", "interrupted") if counts[state])
        + (f"; {num_broken} of them cannot win, for a constraint" if num_broken else "")
        + (f"; {num_to_begin} not begun" if num_to_begin else "")
    )


def _describe_trials(view: SweepView, is_wide: bool, is_brief: bool) -> Iterator[Section]:
    if not view.trials:
        return
    criteria, front = view.criteria, {trial.number for trial in view.front}
    second = [criteria.second] if criteria.second else []
    metrics = [name for name in view.metrics if name != criteria.second][:MAX_METRICS]
    score = "score" if criteria.direction is Direction.MAX else view.label
    columns, notes, facts = [] if is_brief else ["values"], [], []
    if is_wide:
        columns, common = _split_params(view)
        notes += [f"the same in all trials: {format_params(common)}"] if common else []
    headings = (
        "trial",
        "state",
        score,
        *second,
        *(name.removeprefix(EPISODE) for name in metrics),
        "env steps",
        *columns,
        "why it ended, or where it runs",
    )
    rows, best = [], None
    for index, trial in enumerate(view.ordered[: MAX_TRIALS if is_brief else None]):
        state = trial.state_word
        if trial.number == view.winner_trial:
            best, state = index, f"{state}, {view.winner_word}"
        row = [str(trial.number), state, format_objective(trial.score)]
        row += [format_objective(trial.second) + " *" * (trial.number in front)] if second else []
        row += [_format_metric(trial, name) for name in metrics]
        values = [format_params(trial.params)] * len(columns)
        if is_wide:
            values = [format_value(trial.params[name]) if name in trial.params else "-" for name in columns]
        rows.append((*row, format_count(trial.env_steps), *values, trial.explanation))
    if is_brief:
        num_more = len(view.trials) - len(rows)
        label = f"{num_more} more, with values and definitions" if num_more else "with values and definitions"
        facts = [(label, spell_command(f"show sweep={view.name}{spell_output_dir(view.folder.parent)}"))]
    if second:
        notes.append(f"* on the Pareto front: no other complete trial beats it in both score and {criteria.second}")
    yield Section("trials", "Trials, complete ones first", TextTable(headings, tuple(rows), best), facts, notes)


def _split_params(view: SweepView) -> tuple[list[str], dict[str, Any]]:
    """Return the names of the parameters that differ between the trials, and the values of those that do not."""
    names = list(dict.fromkeys(name for trial in view.trials for name in trial.params))
    first = view.trials[0].params
    common = {
        name: first[name]
        for name in names
        if len(view.trials) > 1
        and all(name in each.params and each.params[name] == first[name] for each in view.trials)
    }
    return [name for name in names if name not in common], common


def _format_metric(trial: TrialSnapshot, name: str) -> str:
    """Format a metric of a trial's newest report, with the number of episodes that have it if some lack it."""
    numbers = trial.record.numbers
    count, total = numbers.get(EPISODES_WITH + name.removeprefix(EPISODE)), numbers.get(RECENT)
    some = f" (in {count:.0f} of {total:.0f})" if count is not None and total and 0 < count < total else ""
    return format_objective(numbers.get(name)) + some


def _describe_failures(view: SweepView) -> Iterator[Section]:
    """Group failed trials by the kind of failure, and describe each kind by its first trial's error."""
    grouped: dict[str, tuple[str, list[str]]] = {}
    for trial in view.trials:
        if trial.state == "FAIL":
            reason, log = first_line(trial.reason), trial.record.log
            described = f"{reason}; see {view.folder / log}" if log else reason
            grouped.setdefault(classify_failure(reason), (described, []))[1].append(str(trial.number))
    facts = []
    for described, numbers in grouped.values():
        more = ", ..." if len(numbers) > MAX_NAMED else ""
        facts.append((f"trial {', '.join(numbers[:MAX_NAMED])}{more}", f"{len(numbers)} x {described}"))
    if facts:
        yield Section("failures", "Failed", facts=facts)


def _describe_repairs(view: SweepView) -> Iterator[Section]:
    """Describe the trials that have made failed copies of their environment again, and how often."""
    counts = {trial.number: int(trial.record.numbers.get(RESTARTS, 0)) for trial in view.trials}
    if not any(counts.values()):
        return
    facts = [(f"trial {number}", f"{count} x") for number, count in counts.items() if count]
    notes = [f"{len(facts) - MAX_NAMED} more"] if len(facts) > MAX_NAMED else []
    notes.append(
        "failed copies of the environment that were made again (env.restarts); their episodes count in no score"
    )
    yield Section("repairs", "Repairs", facts=facts[:MAX_NAMED], notes=notes)


def _describe_cost(view: SweepView, outcome: Outcome | None) -> Iterator[Section]:
    """Describe a sweep's environment steps; once it has ended, also its wall and training time.

    Seconds of training are summed over the trials, also over those that trained at the same time.
    """
    if not outcome or not outcome.cost:
        if view.sampled_env_steps:
            yield Section("cost", "Cost", notes=[f"{format_count(view.sampled_env_steps)} env steps of training"])
        return
    cost = outcome.cost.get
    steps, train_s, saved = cost("env_steps", 0), cost("train_s", 0.0), cost("env_steps_saved", 0)
    certify_steps, certify_s = cost("certify_env_steps", 0), cost("certify_train_s", 0.0)
    wall, training = format_duration(cost("wall_s", 0.0)), format_duration(round(train_s) + round(certify_s))
    notes = [
        f"{format_count(steps + certify_steps)} env steps in {wall}, {format_number(cost('slots', 1), 'trial')} at a "
        f"time ({cost('efficiency', 0.0):.0%} of it training, the rest start-up and evaluation)",
        f"{training} of training, summed over trials",
    ]
    if certify_s:
        parts = (("search", steps, train_s), ("certification", certify_steps, certify_s))
        notes[-1] += ": " + ", ".join(
            f"{format_duration(part_s)} of the {part}'s {format_count(part_steps)} env steps"
            for part, part_steps, part_s in parts
        )
    if saved > 0:
        seconds = f", about {format_duration(saved * train_s / steps)} of training" if steps else ""
        share = f" ({saved / (steps + saved):.0%} of the search's)" if steps else ""
        notes.append(f"saved by stopping weak trials early: {format_count(saved)} env steps{seconds}{share}")
    yield Section("cost", "Cost", notes=notes)


def _describe_files(view: SweepView) -> Iterator[Section]:
    """List the paths of the results, and say whether the winner became the model's champion."""
    report, notes = view.folder / "report" / "index.html", []
    facts = [("report", str(report)) if report.exists() else ("folder", str(view.folder))]
    if model := view.record.model:
        facts.append(("model", model["uri"]))
        champion = "became" if model["champion"] else "did not become"
        notes.append(f"this version {champion} the champion of {model['name']}: {model['why']}")
    if view.charts:
        if command := make_server_command(view.record.mlflow):
            facts.append(("MLflow", command))
        facts.append(("charts", view.charts))
    yield Section("files", "Results", facts=facts, notes=notes)


def _describe_verdict(view: SweepView, is_brief: bool) -> Iterator[Section]:
    if view.trials:
        has_fresh = view.certification or (view.winner or {}).get("evaluation")
        notes = [_explain_scores(view)] if has_fresh else []
        facts = [("values", format_params(view.best_params))] if is_brief and view.best_params else []
        yield Section("verdict", describe_verdict(view), facts=facts, notes=notes)


def _explain_scores(view: SweepView) -> str:
    """Explain why a trial's score and its policy's return on other episodes differ."""
    other = "certified = retrained on fresh seeds" if view.certification else "fresh episodes = the trained policy"
    if played := (view.settings.get("score") or {}).get("episodes"):
        score = f"the {format_number(played, 'greedy episode')} of a report, the same at each report"
    else:
        score = f"mean {view.objective.name} of training, with exploration (last twentieth of the steps)"
    return f"score = {score}; {other}, acting greedily unless sampling does better"


def _explain_data(settings: Mapping[str, Any]) -> str:
    """Say on which data the winner was chosen and on which it was measured; empty if all is of one environment."""
    chosen, measured = ((settings.get(group) or {}).get("env") or {} for group in ("score", "certify"))
    if is_measured_apart(settings.get("env") or {}, chosen, measured):
        chose = f"score.env={spell(chosen)} chose it" if chosen else "the training's environment chose it"
        return f" Its results are of certify.env={spell(measured)}, which decided nothing: {chose}."
    if chosen:
        return f" It was measured on the data that chose it, score.env={spell(chosen)}: certify.env names no other."
    return ""


def describe_verdict(view: SweepView) -> str:
    """Describe in a few sentences which configuration won, by how much and how certainly, and who proposed it."""
    winner = view.winner or ({"origin": view.best.record.origin} if view.best else {})
    origin = None if winner.get("name") == BASELINE else ORIGINS.get(str(winner.get("origin")))
    verdict = _describe_winner(view) + (f" Its values come from {origin}." if origin else "")
    acting = winner.get("acting")
    verdict += _explain_data(view.settings) if view.certification or winner.get("evaluation") else ""
    return verdict + (f" Its policy {describe_acting(acting)}." if acting else "")


def _describe_winner(view: SweepView) -> str:
    opening = ""
    if begun := {"interrupted": "Interrupted", "running": "Still running"}.get(view.status):
        opening = f"{begun} after {view.num_ended} of {view.num_trials} trials. "
    if view.certification:
        verdict = opening + describe_result(view.certification, view.objective)
        published = (view.settings.get("published") or {}).get("env_steps")
        if published and published > view.env_steps:
            steps = f"{published:,} environment steps; here: {view.env_steps:,}"
            verdict += f" The baseline's settings were published for {steps}."
        return verdict
    best = view.winner
    if best is None and view.best:
        best = {"trial": view.best.number, "objective": view.best.record.score}
    if best is None:
        why = explain_no_winner([trial.record for trial in view.trials], is_running=view.status == "running")
        return f"{opening}{why[0].upper()}{why[1:]}."
    if evaluation := best.get("evaluation"):
        interval = (
            ""
            if evaluation["low"] is None
            else f" Over very many episodes, its mean lies in {format_interval(evaluation)} (95% interval, which "
            "allows for one failure that these did not show)."
        )
        episodes = format_number(evaluation["episodes"], "fresh episode")
        if evaluation["episodes"] == 1 < view.settings["certify"]["champion_episodes"]:
            episodes += ", to which all others were equal"
        return (
            f"{opening}Trial {best['trial']} is the best of {len(view.trials)}: a mean {view.objective.name} of "
            f"{format_objective(evaluation['mean'])} on {episodes}.{interval} It was "
            "not certified on fresh seeds, so training it again may end worse."
        )
    score = format_objective(best["objective"])
    many = "best so far" if opening else "luckiest of many"
    return (
        f"{opening}Trial {best['trial']} has the best score of {format_number(len(view.trials), 'trial')}, {score}. "
        f"This is the search's own score, the {many}: expect a worse one on fresh seeds."
    )


def describe_baseline(view: SweepView) -> str:
    """Describe where the baseline's values come from: a config file, and what the command line sets or fixes."""
    algo = view.settings["algo"]["name"]
    words = [word.strip("'\"").lstrip("+~") for word in (view.record.command or "").split()]
    groups = {key: value for key, _, value in (word.partition("=") for word in words)}
    source = f"the values of conf/algo/{algo}.yaml"
    if groups.get("tuned"):
        source = f"the values of conf/tuned/{groups['tuned']}.yaml"
    elif (view.settings.get("published") or {}).get("env_steps"):
        env = groups.get("env") or (None if "env.name" in groups else view.settings["env"]["name"])
        source = f"the values of conf/tuned/{algo}_{env}.yaml" if env else "the tuned settings"
    if changes := [word for word in words if word.startswith(("algo.", "experiment=", "recipe="))]:
        source += f", with {' '.join(changes)}"
    space = build_space(view)
    if any(map(is_of_env, space.names)):
        source += ", with the environment's settings"
    if fixed := space.fixed:
        source += f", with {', '.join(f'{name}={format_value(value)}' for name, value in fixed.items())} fixed"
    return source


def describe_values(view: SweepView) -> Section:
    """Compare the winner's parameters with the algorithm's defaults, one row per parameter."""
    winning, space = view.best_params, build_space(view)
    arguments = name_arguments(view.settings["algo"], view.settings["env"])
    dimensions, rows = {dimension.name: dimension for dimension in space.dimensions}, []
    for name in space.names:
        try:
            default = format_value(values_of(arguments, (name,))[name])
        except (RltuneError, KeyError, TypeError):
            default = format_value(None)
        searched = describe_range(dimensions[name]) if name in dimensions else "fixed"
        # A conditional parameter has no value if its condition is not met.
        rows.append((name, format_value(winning[name]) if name in winning else "-", default, searched))
    notes = [f"default: {describe_baseline(view)}"]
    table = TextTable(("parameter", view.winner_word, "default", "searched"), tuple(rows))
    return Section("values", f"The values of the {view.winner_word}", table, notes=notes)


def describe_range(dimension: Dimension) -> str:
    """Describe what a parameter is searched in, and in which trials."""
    searched = f"{dimension.kind} {', '.join(map(format_value, dimension.args))}"
    searched = " or ".join([*map(format_value, dimension.before), searched, *map(format_value, dimension.after)])
    return searched + (f", {dimension.condition}" if dimension.when else "")


def list_searched(view: SweepView) -> list[tuple[str, str, str]]:
    """List the searched parameters: their names, what they are searched in, and the winner's values, if it has them."""
    best = view.best_params
    return [
        (each.name, describe_range(each), format_value(best[each.name]) if each.name in best else "")
        for each in build_space(view).dimensions
    ]
