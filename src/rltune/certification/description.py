"""Describe a certification: the table and the sentences that the terminal, the pages and MLflow show.

Which numbers of a configuration a person sees, and how they are called, is decided here alone. Runs anywhere.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

from rltune.certification.result import MIN_RUNS, Certification, Configuration
from rltune.envs.objective import Objective
from rltune.formatting import TextTable, format_interval, format_number, format_objective
from rltune.records import BASELINE, Direction

TABLE_NAME = "certification"  # Of the files with the table's numbers.


def _format_seeds(configuration: Configuration) -> str:
    failed = len(configuration.failed_seeds)
    return str(len(configuration.per_seed)) + (f", {failed} failed" if failed else "")


COLUMNS: dict[str, Callable[[Configuration], str]] = {
    "certified": lambda row: row.label,
    "IQM": lambda row: format_objective(row.iqm if row.per_seed else None),
    "95% interval": lambda row: format_interval(vars(row)),
    "search said": lambda row: format_objective(row.search_score),
    "beats baseline": lambda row: "-" if row.improvement is None else f"{row.improvement:.0%}",
    "seeds": _format_seeds,
}
"""What the table shows of each configuration, by the column's heading."""


def make_table(certification: Certification) -> TextTable:
    """Make the table of a certification: a row for each configuration, and at its end what was decided about it."""
    configurations = certification.configurations
    rows = tuple((*(show(each) for show in COLUMNS.values()), certification.verdict(each)) for each in configurations)
    best = [each.name for each in configurations].index(certification.winner)
    return TextTable((*COLUMNS, "verdict"), rows, best)


def explain_table(certification: Certification, objective: Objective) -> list[str]:
    """Explain the columns of the table, and what follows from its numbers.

    Args:
        certification: The certification.
        objective: What the scores measure.
    """
    configurations, best = certification.configurations, certification.best()
    num_seeds = len(certification.seeds)
    notes = ["IQM: mean of the middle half of the runs"]
    if any(each.low is not None for each in configurations):
        notes.append(f"95% interval: of the median of such runs, by {num_seeds} seeds")
    if best.raw_iqm not in (None, best.iqm):
        chosen, corrected = format_objective(best.raw_iqm), format_objective(best.iqm)
        notes.append(f"{best.label} was chosen by an IQM of {chosen}; {corrected} is free of that luck")
    if num_seeds < MIN_RUNS:
        notes += [f"{each.label}: {', '.join(map(format_objective, each.scores))}" for each in configurations]
    if certification.ties:
        notes.append(f"tied with {certification.winner}, their intervals overlap: {', '.join(certification.ties)}")
    if failed := [each for each in configurations if each.failed_seeds]:
        worst = "lowest" if objective.direction is Direction.MAX else "highest"
        counted = format_objective(failed[0].failed_score)
        counts = ", ".join(f"{each.label} ({len(each.failed_seeds)} of {each.num_seeds})" for each in failed)
        notes.append(f"a failed seed counts as the {worst} {objective.name} of all runs, {counted}: {counts}")
    if num_seeds < MIN_RUNS:
        few = "one seed is" if num_seeds == 1 else f"{num_seeds} seeds are"
        notes.append(
            f"{few} too few for an interval, and to tell configurations apart: certify.seeds={MIN_RUNS} does both"
        )
    if policy := certification.policy:
        notes.append(
            f"policy: mean {objective.name} {format_objective(policy.mean)} (95% interval "
            f"{format_interval(vars(policy))}) over {policy.episodes} fresh episodes; {policy.name} retrained on seed "
            f"{policy.seed}"
        )
    return notes


def describe_result(certification: Certification, objective: Objective) -> str:
    """Describe in a few sentences who won the certification, with ties and failed seeds.

    Args:
        certification: The certification.
        objective: What the scores measure.
    """
    by_name = {each.name: each for each in certification.configurations}
    best, baseline = by_name[certification.winner], by_name.get(BASELINE)
    scores = f"{_format_score(best)} over {format_number(best.num_seeds, 'fresh seed')}"
    if best is baseline:
        same = "" if baseline.trial is None else f"are the values of trial {baseline.trial} and "
        text = (
            "The published settings stand: nothing that the search found is better. "
            f"They {same}reach {objective.name} {scores}."
        )
    else:
        text = f"{best.name.capitalize()} wins with {objective.name} {scores}"
        if baseline:
            text += f"; the baseline's is {_format_score(baseline)}"
            text += f", but it cannot win: {baseline.broken}" if baseline.broken else ""
        text += "."
        if best.improvement is not None:
            text += f" A run of it beats one of the baseline with probability {best.improvement:.2f}."
    if ties := certification.ties:
        named = " and ".join([", ".join(ties[:-1]), ties[-1]] if len(ties) > 1 else ties)
        text += f" It is a tie with {named}: these runs do not tell them apart."
    for each in certification.configurations:
        if failed := len(each.failed_seeds):
            text += f" {failed} of {each.num_seeds} seeds of {each.name} failed, which counts against it."
    return text


def _format_score(configuration: Configuration) -> str:
    """Format a configuration's IQM, with its interval if it has enough runs for one."""
    if not configuration.per_seed:
        return "unknown, all of its seeds failed"
    interval = "" if configuration.low is None else f" (95% interval {format_interval(vars(configuration))})"
    return format_objective(configuration.iqm) + interval


def write_table(certification: Certification, folder: Path) -> list[Path]:
    """Write the numbers of all configurations as CSV, and as the JSON that MLflow shows as a table.

    Args:
        certification: The certification.
        folder: Where to write, the sweep's folder.

    Returns:
        Both files.
    """
    rows = certification.table()
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    paths = [folder / f"{TABLE_NAME}.csv", folder / f"{TABLE_NAME}.json"]
    paths[0].write_text(text.getvalue())
    paths[1].write_text(json.dumps({"columns": list(rows[0]), "data": [list(row.values()) for row in rows]}))
    return paths
