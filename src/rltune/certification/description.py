"""Describe a certification as the table and the sentences that the terminal, the pages and MLflow show.

Which numbers of a configuration a person sees, and how they are called, is decided here alone. Runs anywhere.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean

from rltune.certification.result import MIN_RUNS, Certification, Configuration, find_failed_rank_score
from rltune.envs.objective import Objective
from rltune.envs.spec import EPISODE
from rltune.formatting import (
    TextTable,
    format_count,
    format_difference,
    format_interval,
    format_number,
    format_objective,
    format_wins,
)
from rltune.records import BASELINE, Direction
from rltune.statistics import bound_failure_rate, interquartile_mean, median_level

MAX_METRICS = 3  # A table has a column for at most so many metrics of the user's own.
TABLE_NAME = "certification"  # The file name, without its extension, of the tables in CSV and JSON.


def _format_failures(configuration: Configuration) -> str:
    num_failed, num_seeds = len(configuration.failed_seeds), configuration.num_seeds
    return f"{num_failed} of {num_seeds}, up to {bound_failure_rate(num_failed, num_seeds):.0%}"


COLUMNS: dict[str, Callable[[Configuration], str]] = {
    "certified": lambda row: row.label,
    "median": lambda row: format_objective(row.median),
    "its interval": lambda row: format_interval(vars(row)),
    "worst run": lambda row: format_objective(row.worst),
    "seeds won": lambda row: format_wins(row.num_wins, row.num_pairs, row.wins_needed, row.num_ties),
    "difference": lambda row: format_difference(row.difference),
    "failed": _format_failures,
}
"""What the table shows of each configuration, by the column's heading."""


TARGET_COLUMN: dict[str, Callable[[Configuration], str]] = {
    "steps to target": lambda row: "-" if row.target_steps is None else format_count(row.target_steps)
}
"""What it also shows if some runs have reached ``budget.target``."""


def make_table(certification: Certification) -> TextTable:
    """Make the table of a certification: one row for each configuration, with the verdict in the last column."""
    configurations, metrics = certification.configurations, certification.metrics[:MAX_METRICS]
    columns = COLUMNS | (TARGET_COLUMN if certification.has_target else {})
    rows = []
    for each in configurations:
        numbers = [_format_metric(each.metrics.get(name, {})) for name in metrics]
        rows.append((*(show(each) for show in columns.values()), *numbers, certification.verdict(each)))
    best = [each.name for each in configurations].index(certification.winner)
    headings = (*columns, *(name.removeprefix(EPISODE) for name in metrics), "verdict")
    return TextTable(headings, tuple(rows), best)


def _format_metric(bounded: Mapping[str, float | None], key: str = "median") -> str:
    """Format a metric with its interval if it has one."""
    value = format_objective(bounded.get(key))
    return value if bounded.get("low") is None else f"{value} ({format_interval(bounded)})"


def explain_table(certification: Certification, objective: Objective) -> list[str]:
    """Write the notes under the table: how it is ranked, and what it does not show.

    Args:
        certification: The certification.
        objective: What the scores measure.
    """
    configurations = certification.configurations
    notes = ["ranked by the mean of the middle half of the runs"]
    if certification.has_target:
        notes = [
            "ranked by the steps to budget.target, a median over the seeds, if most of the runs have held it "
            "and are as good on fresh episodes; then by the mean of the middle half of the runs"
        ]
    few = [each for each in configurations if each.num_seeds < MIN_RUNS]
    notes += [f"{each.label}: {', '.join([*_list_scores(each), *['failed'] * len(each.failed_seeds)])}" for each in few]
    if failed := [each for each in configurations if each.failed_seeds]:
        worst = "lowest" if objective.direction is Direction.MAX else "highest"
        counted = format_objective(failed[0].failed_score)
        counts = ", ".join(f"{each.label} ({len(each.failed_seeds)} of {each.num_seeds})" for each in failed)
        notes.append(
            f"a failed seed counts as the {worst} {objective.name} of any single episode of these runs, {counted}: "
            f"{counts}"
        )
    if len(certification.seeds) < MIN_RUNS:
        notes.append(f"fewer than {MIN_RUNS} seeds bound no median: use certify.seeds={MIN_RUNS}")
    if policy := certification.policy:
        interval = "" if policy.low is None else f" (95% interval {format_interval(vars(policy))})"
        notes.append(
            f"policy: mean {objective.name} {format_objective(policy.mean)}{interval} over "
            f"{format_number(policy.episodes, 'fresh episode')}; {policy.name} retrained on seed {policy.seed}"
        )
        for name, bounded in policy.metrics.items():
            where = format_number(int(bounded["episodes"] or 0), "episode")
            notes.append(f"policy: {name} {_format_metric(bounded, 'mean')}, in {where} of {policy.episodes}")
    return notes


def define_columns(certification: Certification) -> list[str]:
    """Define the columns of the table, and which conclusions their numbers allow."""
    notes = []
    if sizes := sorted({each.num_seeds for each in certification.configurations if each.low is not None}):
        levels = " or ".join(f"{median_level(size):.4g}% of cases by {size} seeds" for size in sizes)
        chosen = "; being chosen makes the winner's median a little too good, which its interval allows for"
        chosen = chosen if certification.num_compared else ""
        notes.append(f"its interval: holds the median of such runs in {levels}{chosen}")
    if certification.num_compared:
        notes.append(
            "seeds won: on how many seeds its run did better than the baseline's on the same seed and start states; "
            "better: so many that a configuration which does better at most every other time would win them in at most "
            f"one sweep of 20, however often it is looked at (below {MIN_RUNS} seeds there is no verdict; behind one "
            "that was chosen before it and is not better, it takes more); difference: the mean of these runs less the "
            "baseline's on the same seeds"
        )
    notes.append(
        "failed: runs that ended with an error, and the failure rate that so few runs cannot exclude (95%, of a "
        "configuration that they did not choose)"
    )
    if certification.metrics:
        notes.append(
            "metrics: the median of the runs' means over the episodes that have the number, and its interval; failed "
            "runs are left out"
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
        ranks = "nothing was compared with it"
        if num_compared := certification.num_compared:
            ranks = f"none of the other certified configurations ({num_compared}) ranks higher"
        text = f"The baseline{same} wins with {score}: {ranks}."
    else:
        text = f"{best.name.capitalize()} wins with {score}"
        if baseline:
            text += f"; the baseline's is {_format_median(baseline)}"
            text += f", but it cannot win: {baseline.broken}" if baseline.broken else ""
            text += _explain_rank(certification, best, baseline, objective.direction)
        text += f".{_compare_with_baseline(best)}"
    if best.target_steps is not None:
        text += f" It held budget.target after {best.target_steps:,.0f} environment steps (the median)"
        theirs = baseline.target_steps if baseline and baseline is not best else None
        text += "." if theirs is None else f", and the baseline after {theirs:,.0f}."
    if 1 < best.num_seeds < MIN_RUNS:
        text += f" Its runs reached {', '.join(_list_scores(best))}."
    elif best.num_seeds > 1:
        text += f" Train it once and expect about {format_objective(best.median)}"
        worst = f"; the worst of the {best.num_seeds} runs reached {format_objective(best.worst)}"
        text += "." if best.failed_seeds else f"{worst}."
    for each in certification.configurations:
        if failed := len(each.failed_seeds):
            text += f" {failed} of {each.num_seeds} seeds of {each.name} failed, which counts against it."
    return text


def _list_scores(configuration: Configuration) -> list[str]:
    return [format_objective(run.mean) for run in configuration.per_seed]


def _explain_rank(
    certification: Certification, best: Configuration, baseline: Configuration, direction: Direction
) -> str:
    """Give the numbers by which the winner ranks above the baseline where their medians do not show it."""
    keys = {(each.broken, each.excess_failures, each.target_steps) for each in (best, baseline)}
    if len(keys) > 1 or best.median is None or baseline.median is None:
        return ""
    if direction.is_better(best.median, baseline.median):
        return ""
    failed = find_failed_rank_score(certification.configurations, direction)
    ours, theirs = (each.list_rank_scores(failed) for each in (best, baseline))
    rule, middles = (
        "the mean of the middle half of the runs",
        [float(interquartile_mean(each)) for each in (ours, theirs)],
    )
    if middles[0] == middles[1]:
        rule, middles = "the mean of the runs", [fmean(ours), fmean(theirs)]
    where = " on the episodes that choose" if any(run.choice_returns for run in best.per_seed) else ""
    return f", and {rule}{where} decides: {' against '.join(map(format_objective, middles))}"


def _compare_with_baseline(best: Configuration) -> str:
    """Compare the winner with the baseline in words: on how many seeds it did better, and what that shows."""
    if not best.num_pairs:
        return ""
    wins = f"it did better than the baseline on {best.num_wins} of {format_number(best.num_pairs, 'seed')}"
    wins += f" and as well on {best.num_ties}" if best.num_ties else ""
    if best.difference is not None:
        wins += f" (the means of these runs differ by {format_objective(best.difference)})"
    if best.better:
        return f" It is better: {wins}. Trained again on another seed, it does better more often than not."
    if best.wins_needed is None:
        behind = ", and one that was chosen before it is not" if best.num_pairs >= MIN_RUNS else ""
        return f" So few seeds cannot show that it is better: {wins}{behind}."
    return f" It is not shown to be better: {wins}, and {best.wins_needed} are needed."


def _format_median(configuration: Configuration) -> str:
    """Format a configuration's median, with its interval if it has enough runs for one."""
    if not configuration.per_seed:
        return "unknown, all of its seeds failed"
    if configuration.low is None:
        return format_objective(configuration.median)
    interval = f"{median_level(configuration.num_seeds):.4g}% interval {format_interval(vars(configuration))}"
    return f"{format_objective(configuration.median)} ({interval})"


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
