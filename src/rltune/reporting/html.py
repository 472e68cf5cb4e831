"""A sweep's report: one HTML page that needs no network, and the same figures as PNG files.

``findings`` reads the sweep, ``figures`` and ``pictures`` draw, ``report.html`` is the page's frame. Also reports on
interrupted and uncertified sweeps. Runs anywhere.
"""

from __future__ import annotations

import importlib.resources
import json
import logging
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from rltune.certification.result import MIN_RUNS, label
from rltune.formatting import first_line, format_count, format_duration, format_objective, format_params
from rltune.reporting import plotly_figures, sweep_data
from rltune.reporting.closing_page import few_seeds
from rltune.reporting.plotly_figures import best_so_far
from rltune.reporting.png_figures import save_all
from rltune.reporting.sweep_data import Findings
from rltune.study.outcome import count_states
from rltune.study.study import Study

FOLDER, PAGE = "report", "index.html"
typed_command = sweep_data.typed_command
logger = logging.getLogger(__name__)


def write_report(sweep: Path, study: Study | None = None) -> Path:
    """Make the report of a sweep's folder, in place of an earlier one.

    Args:
        sweep: The sweep's folder.
        study: Its ledger, where it is open; opening one takes longer than the page.

    Returns:
        The folder ``report`` in it, with ``index.html`` and the PNG files.

    Raises:
        StudyError: It is no sweep's folder, or its ledger cannot be read.
    """
    found = sweep_data.read(sweep, study) if study else sweep_data.gather(sweep)
    folder = sweep / FOLDER
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.png"):
        old.unlink()
    (folder / PAGE).write_text(render_page(found), encoding="utf-8")
    save_all(found, folder)
    return folder


def try_report(sweep: Path, study: Study | None, tell: Callable[[str], None]) -> Path | None:
    """`write` for the end of a sweep, which no report is worth failing for.

    Args:
        sweep: The sweep's folder.
        study: Its ledger.
        tell: Told why there is no report.
    """
    try:
        return write_report(sweep, study)
    except Exception as error:
        logger.exception("no report")
        tell(f"no report could be made ({type(error).__name__}: {error}); python -m sweeps.report sweep={sweep.name}")
        return None


def render_page(found: Findings) -> str:
    """The whole page."""
    plots: list[dict[str, Any]] = []
    sections = "\n".join(_sections(found, plots))
    frame = Template(
        importlib.resources.files("rltune.reporting").joinpath("template.html").read_text(encoding="utf-8")
    )
    return frame.substitute(
        title=escape(found.name),
        subtitle=escape(_subtitle(found)),
        verdict=escape(sweep_data.verdict(found)),
        tiles=_tiles(found),
        sections=sections,
        plots=json.dumps(plots, allow_nan=False).replace("</", "<\\/"),
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        versions=escape(_versions(found)),
        # Its own closing tag inside a string would end the script.
        plotly=importlib.resources.files("plotly")
        .joinpath("package_data/plotly.min.js")
        .read_text(encoding="utf-8")
        .replace("</script", "<\\/script"),
    )


def _subtitle(found: Findings) -> str:
    settings, number = found.settings, count_states(found.entries)
    parts = [f"{settings['algo']['name'].upper()} on {settings['env']['id']}", found.status]
    parts.append(
        f"{number['total']} trials: {number['complete']} whole, {number['pruned']} stopped early, "
        f"{number['failed']} failed" + (f", {number['interrupted']} to continue" if number["interrupted"] else "")
    )
    return " · ".join(parts)


def _versions(found: Findings) -> str:
    known = " · ".join(f"{name} {version}" for name, version in (found.about.get("versions") or {}).items())
    commit = str(found.about.get("git_commit") or "")[:12]
    return known + (f" · commit {commit}" if commit else "")


def _tiles(found: Findings) -> str:
    """What it cost, as numbers."""
    cost = found.cost
    replicates = int(found.settings.get("replicates", 1))
    steps = cost.get("env_steps", replicates * sum(entry.env_steps for entry in found.entries))
    saved = cost.get("env_steps_saved", 0)
    whole = f"{saved / (steps + saved):.0%} of the whole" if steps + saved else "nothing trained"
    tiles = [(format_count(steps), "environment steps trained"), (format_count(saved), f"steps saved, {whole}")]
    if cost:
        certify_s = cost.get("certify_train_s", 0.0)
        beside = f", and {format_duration(certify_s)} for certification" if certify_s else ""
        tiles += [
            (format_duration(cost["train_s"]), f"of training in the search{beside}"),
            (format_duration(cost["wall_s"]), f"in all, on {cost['slots']:.0f} slots"),
            (f"{cost['efficiency']:.0%}", "efficiency: training over slots x time"),
        ]
    return "".join(f"<li><b>{escape(big)}</b><span>{escape(small)}</span></li>" for big, small in tiles)


# -- the sections, in the order in which a reader asks ----------------------------------------------------------------


def _sections(found: Findings, plots: list[dict[str, Any]]) -> Iterator[str]:
    if found.certification and found.certification.get("configurations"):
        yield _certification(found, plots)
    if any(entry.reports for entry in found.entries):
        rungs = (
            f" Dotted lines are the rungs at which weak trials are stopped: {_listed(found)}." if found.levels else ""
        )
        caption = f"Mean episode return of each trial as it trained.{rungs} Touch a line for its values."
        yield _section("Learning curves", _plot(plotly_figures.curves(found), plots), caption)
        both = "".join(_plot(figure, plots) for figure in best_so_far(found))
        caption = (
            "The highest return reported so far. Reports are placed in time as if each trial trained at an even speed "
            "between its beginning and its end."
        )
        yield _section("Best so far", f'<div class="pair">{both}</div>', caption)
    yield _values(found)
    if len(found.judged) > 1:
        yield from _parameters(found, plots)
    if found.entries:
        caption = "Environment steps of each trial. Pale: what stopping it early has saved."
        yield _section("Cost", _plot(plotly_figures.spent(found), plots), caption)
    yield _commands(found)
    yield _trials(found)


def _listed(found: Findings) -> str:
    return ", ".join(f"{level:,}" for level in found.levels) + " steps"


def _parameters(found: Findings, plots: list[dict[str, Any]]) -> Iterator[str]:
    shares, said = sweep_data.importance(found)
    yield _section("Importance", _plot(plotly_figures.shares(shares), plots) if shares else "", said)
    small = "".join(_plot(figure, plots) for _, figure in plotly_figures.slices(found))
    if small:
        caption = (
            "Each trial's best return over one parameter at a time. Orange: the winner. Blue: trained to the end. "
            "Grey: stopped early, so lower than it might have become."
        )
        yield _section("Slices", f'<div class="grid">{small}</div>', caption)
        caption = "A line is a trial; the more orange, the higher its best return. Drag along an axis to pick trials."
        yield _section("Parallel coordinates", _plot(plotly_figures.parallel(found), plots), caption)


def _certification(found: Findings, plots: list[dict[str, Any]]) -> str:
    record = found.certification or {}
    rows = record["configurations"]
    figure = plotly_figures.intervals(rows, record.get("winner"), "certified return")
    cells = [
        [
            label(row["name"], row["trial"]),
            format_objective(row["iqm"] if row["per_seed"] else None),
            "-"
            if len(row["per_seed"]) < MIN_RUNS
            else f"{format_objective(row['low'])} to {format_objective(row['high'])}",
            format_objective(row["mean"] if row["per_seed"] else None),
            "-" if row.get("improvement") is None else f"{row['improvement']:.2f}",
            format_objective(row.get("search_score")),
            format_objective(row.get("optimism")),
            str(len(row.get("failed_seeds", ()))),
        ]
        for row in rows
    ]
    heads = ["", "IQM", "95% interval", "mean", "beats control", "search said", "optimism", "failed seeds"]
    caption = (
        f"Each configuration retrained on {len(record['seeds'])} fresh seeds with the whole budget; each result played "
        f"{record['episodes']} episodes that no training saw. Diamond and bar: interquartile mean and its 95% "
        "stratified bootstrap interval (Agarwal et al. 2021). Pale dots: single seeds. Beats control: the "
        "probability that a run is better than one of the control. Optimism: what the search believed, minus what was "
        "certified, of trials that had the whole budget."
    )
    if any(row.get("failed_seeds") for row in rows):
        caption += (
            " A failed seed counts as the lowest return of all runs; a configuration of which more than a quarter "
            "failed ranks below those with fewer."
        )
    if few := few_seeds(len(record["seeds"])):
        caption += f" {few[0].upper()}{few[1:]}."
    best = next(cell[0] for cell, row in zip(cells, rows, strict=True) if row["name"] == record["winner"])
    return _section("Certification", _plot(figure, plots) + _table(heads, cells, best), caption)


def _values(found: Findings) -> str:
    rows = sweep_data.values(found)
    cells = [[row.name, row.won, row.before, row.searched] for row in rows]
    changed = {row.name for row in rows if row.changed and row.won != "-"}
    heads = ["", "winner", "default", "searched"]
    caption = "Default: the pair's tuned settings if there are any, else the algorithm's file's. Bold: another value."
    return _section("The winner's values", _table(heads, cells, bold=changed), caption)


def _commands(found: Findings) -> str:
    items = "".join(
        f"<dt>{escape(what)}</dt><dd><code>{escape(command)}</code></dd>"
        for what, command in sweep_data.commands(found)
    )
    commit = f" at commit {str(found.about['git_commit'])[:12]}" if found.about.get("git_commit") else ""
    caption = (
        f"Typed in the same folder{commit}, with the versions below. The same seed repeats a trial; which trials are "
        "stopped depends on which finish first."
    )
    return _section("Reproduce it", f"<dl>{items}</dl>", caption)


def _trials(found: Findings) -> str:
    order = sorted(found.entries, key=lambda entry: -(entry.best if entry.best is not None else float("-inf")))
    cells = [
        [
            str(entry.number),
            entry.state.lower(),
            format_objective(entry.best),
            format_count(entry.env_steps),
            format_params(entry.params),
            first_line(reason) if (reason := entry.attributes.get("stop_reason")) else "",
        ]
        for entry in order
    ]
    heads = ["trial", "state", "best", "env steps", "values", "why it ended"]
    table = _table(heads, cells, str(found.winner_trial))
    return f"<section><details><summary><h2>All {len(order)} trials</h2></summary>{table}</details></section>"


# -- pieces -----------------------------------------------------------------------------------------------------------


def _section(title: str, content: str, caption: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}<p class=caption>{escape(caption)}</p></section>"


def _plot(figure: dict[str, Any], plots: list[dict[str, Any]]) -> str:
    """A place for a figure, which is kept for the page's script."""
    plots.append({"data": figure["data"], "layout": figure["layout"]})
    wide = f"min-width:{figure['min_width']}px;" if "min_width" in figure else ""
    style = f"{wide}height:{figure['layout']['height']}px"
    return f'<div class=scroll><div class=plot id=plot{len(plots) - 1} style="{style}"></div></div>'


def _table(heads: list[str], rows: list[list[str]], best: str | None = None, bold: set[str] | None = None) -> str:
    """A table; the row whose first cell is ``best`` stands out, and the second cells of ``bold`` ones."""
    top = "".join(f"<th>{escape(head)}</th>" for head in heads)
    body = []
    for row in rows:
        cells = [escape(cell) for cell in row]
        if bold and row[0] in bold:
            cells[1] = f"<b>{cells[1]}</b>"
        mark = " class=best" if row[0] == best else ""
        body.append(f"<tr{mark}><th>{cells[0]}</th>" + "".join(f"<td>{cell}</td>" for cell in cells[1:]) + "</tr>")
    return f"<div class=scroll><table><thead><tr>{top}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
