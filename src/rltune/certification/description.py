"""Describe a certification as the table and the sentences that the terminal, the pages and MLflow show.

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
from rltune.formatting import TextTable, format_difference, format_interval, format_number, format_objective
from rltune.records import BASELINE, Direction
from rltune.statistics import find_level

TABLE_NAME = "certification"  # The file name, without its extension, of the tables in CSV and JSON.


def _format_seeds(configuration: Configuration) -> str:
    failed = len(configuration.failed_seeds)
    return str(len(configuration.per_seed)) + (f", {failed} failed" if failed else "")


COLUMNS: dict[str, Callable[[Configuration], str]] = {
    "certified": lambda row: row.label,
    "median": lambda row: format_objective(row.median),
    "95% interval": lambda row: format_interval(vars(row)),
    "worst run": lambda row: format_objective(row.worst),
    "difference to baseline": lambda row: format_difference(row.difference and row.difference._asdict()),
    "seeds": _format_seeds,
}
"""What the table shows of each configuration, by the column's heading."""


def make_table(certification: Certification) -> TextTable:
    """Make the table of a certification: one row for each configuration, with the verdict in the last column."""
    configurations = certification.configurations
    rows = tuple((*(show(each) for show in COLUMNS.values()), certification.verdict(each)) for each in configurations)
    best = [each.name for each in configurations].index(certification.winner)
    return TextTable((*COLUMNS, "verdict"), rows, best)


def explain_table(certification: Certification, objective: Objective) -> list[str]:
    """Write the notes under the table: what its columns mean, and which conclusions its numbers allow.

    Args:
        certification: The certification.
        objective: What the scores measure.
    """
    configurations, num_seeds = certification.configurations, len(certification.seeds)
    notes = ["ranked by the mean of the middle half of the runs"]
    if any(each.low is not None for each in configurations):
        notes.append(
            f"95% interval: of the median of such runs, by {num_seeds} seeds; being chosen makes the winner's median a "
            "little too good, which its interval allows for"
        )
    if certification.num_compared:
        notes.append(
            f"difference: of the mean of all runs, with its {_spell_level(certification)} interval; better: if this "
            "interval excludes 0, which happens by chance in at most one sweep of 20"
        )
    if num_seeds < MIN_RUNS:
        notes += [f"{each.label}: {', '.join(map(format_objective, each.scores))}" for each in configurations]
    if failed := [each for each in configurations if each.failed_seeds]:
        worst = "lowest" if objective.direction is Direction.MAX else "highest"
        counted = format_objective(failed[0].failed_score)
        counts = ", ".join(f"{each.label} ({len(each.failed_seeds)} of {each.num_seeds})" for each in failed)
        notes.append(f"a failed seed counts as the {worst} {objective.name} of all runs, {counted}: {counts}")
    if num_seeds < MIN_RUNS:
        few = "one seed is" if num_seeds == 1 else f"{num_seeds} seeds are"
        notes.append(f"{few} too few to bound a median: use certify.seeds={MIN_RUNS}")
    if policy := certification.policy:
        notes.append(
            f"policy: mean {objective.name} {format_objective(policy.mean)} (95% interval "
            f"{format_interval(vars(policy))}) over {policy.episodes} fresh episodes; {policy.name} retrained on seed "
            f"{policy.seed}"
        )
    return notes


def describe_result(certification: Certification, objective: Objective) -> str:
    """Describe the winner in a few sentences: its score, its comparison with the baseline, and how it was trained.

    Args:
        certification: The certification.
        objective: What the scores measure.
    """
    best = certification.best()
    baseline = next((each for each in certification.configurations if each.name == BASELINE), None)
    score = f"a median {objective.name} of {_format_median(best)} over {format_number(best.num_seeds, 'fresh seed')}"
    if best is baseline:
        same = "" if baseline.trial is None else f" (the values of trial {baseline.trial})"
        text = f"The baseline{same} wins with {score}: no other configuration ranks higher."
    else:
        text = f"{best.name.capitalize()} wins with {score}"
        if baseline:
            text += f"; the baseline's is {_format_median(baseline)}"
            text += f", but it cannot win: {baseline.broken}" if baseline.broken else ""
        text += f".{_compare_with_baseline(best, certification, objective)}"
    if best.num_seeds > 1:
        expected, worst = format_objective(best.median), format_objective(best.worst)
        text += f" Train it once and expect about {expected}; the worst of the {best.num_seeds} runs reached {worst}."
    for each in certification.configurations:
        if failed := len(each.failed_seeds):
            text += f" {failed} of {each.num_seeds} seeds of {each.name} failed, which counts against it."
    return text


def _compare_with_baseline(best: Configuration, certification: Certification, objective: Objective) -> str:
    """Compare the winner with the baseline in words: by how much they differ, and how certain that is."""
    if best.difference is None:
        return ""
    difference, is_few = best.difference, best.num_seeds < MIN_RUNS
    means = f"the means differ by {format_objective(difference.mean)}"
    if difference.low is not None:
        interval = format_interval(difference._asdict())
        means += f" ({_spell_level(certification)} interval {interval})"
    seeds = format_number(best.num_seeds, "seed")
    if best.better:
        chance = f" With {seeds}, one sweep in 20 says so even if nothing is better." if is_few else ""
        return f" It is better than the baseline: {means}.{chance}"
    # The baseline can be significantly better than the winner only if it breaks a constraint and therefore cannot win.
    if difference.is_worse(objective.direction):
        return f" It is worse than the baseline: {means}."
    few = " So few seeds show only large differences." if is_few else ""
    return f" It cannot be told apart from the baseline with {seeds}: {means}.{few}"


def _spell_level(certification: Certification) -> str:
    """Format the confidence level of the differences: ``95%``, or higher if several configurations are compared."""
    return f"{find_level(certification.num_compared):.3g}%"


def _format_median(configuration: Configuration) -> str:
    """Format a configuration's median, with its interval if it has enough runs for one."""
    if not configuration.per_seed:
        return "unknown, all of its seeds failed"
    interval = "" if configuration.low is None else f" (95% interval {format_interval(vars(configuration))})"
    return format_objective(configuration.median) + interval


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
