"""Write a sweep's report: one HTML page that needs no network, and the same figures as PNG files.

``sweep_data`` reads the sweep, ``plotly_figures`` and ``png_figures`` draw, ``template.html`` is the page's frame. Also
reports on interrupted and uncertified sweeps.
"""

from __future__ import annotations

import importlib.resources
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from rltune.certification.result import label
from rltune.formatting import (
    format_count,
    format_duration,
    format_interval,
    format_objective,
    format_params,
    format_value,
    spell_command,
)
from rltune.reporting.closing_page import warn_of_few_seeds
from rltune.reporting.importance.what_mattered import WhatMattered, find_what_mattered
from rltune.reporting.sweep_data import SweepData, load_sweep_data, read_sweep_data
from rltune.reporting.wording import compare_values, describe_verdict, suggest_commands
from rltune.study.ledger import Ledger
from rltune.study.outcome import count_states
from rltune.study.ranking import order_records

FOLDER, PAGE = "report", "index.html"
PLOTLY = "plotly.min.js"
LONG_S = 600.0  # a sweep from which on its efficiency says something
Figure = Any  # plotly's, which is not imported before there is something to draw
Figures = Mapping[str, Sequence[Figure]]
logger = logging.getLogger(__name__)


def write_report(sweep: Path, ledger: Ledger | None = None, storage: str | None = None) -> Path:
    """Write the report of a sweep into its folder, in place of an earlier one.

    Args:
        sweep: The sweep's folder.
        ledger: If it is open already.
        storage: Where it is opened otherwise, as for `rltune.study.storage.open_ledger`.

    Returns:
        The folder ``report`` in it, with ``index.html`` and the PNG files.

    Raises:
        StudyError: It is no sweep's folder, or its ledger cannot be read.
    """
    from rltune.reporting.plotly_figures import draw_figures
    from rltune.reporting.png_figures import save_figures  # a typing error on the command line need not wait for them

    data = read_sweep_data(sweep, ledger) if ledger else load_sweep_data(sweep, storage)
    folder = sweep / FOLDER
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.png"):
        old.unlink()
    mattered = find_what_mattered(data)
    drawn = draw_figures(data, mattered.shares)
    save_page(folder, render_page(data, drawn, mattered))
    save_figures(drawn, folder)
    return folder


def save_page(folder: Path, page: str) -> None:
    """Write the page in one step: who reads it meanwhile has the earlier one whole."""
    draft = folder / f".{PAGE}"
    draft.write_text(page, encoding="utf-8")
    draft.replace(folder / PAGE)


def _read_plotly() -> str:
    """Read Plotly's script without importing Plotly."""
    return importlib.resources.files("plotly").joinpath("package_data", PLOTLY).read_text(encoding="utf-8")


def try_report(sweep: Path, ledger: Ledger | None, note: Callable[[str], None]) -> Path | None:
    """Do as `write_report`, but only note what goes wrong: a sweep must not fail for its report.

    Args:
        sweep: The sweep's folder.
        ledger: The sweep's.
        note: Takes the reason, in one line, if there is no report.
    """
    try:
        return write_report(sweep, ledger)
    except Exception as error:
        logger.exception("no report")
        how = spell_command(f"report sweep={sweep.name}")
        note(f"no report could be made ({type(error).__name__}: {error}); {how}")
        return None


def render_page(data: SweepData, drawn: Figures, mattered: WhatMattered) -> str:
    """Render the whole page as HTML.

    Args:
        data: The sweep.
        drawn: Its figures, as `plotly_figures.draw_figures` makes them.
        mattered: What mattered.
    """
    # Its own closing tag would end the script.
    script = _read_plotly().replace("</script", "<\\/script")
    plots: list[Figure] = []
    sections = "\n".join(_sections(data, drawn, mattered, plots))
    frame = Template(
        importlib.resources.files("rltune.reporting").joinpath("template.html").read_text(encoding="utf-8")
    )
    return frame.substitute(
        title=escape(data.name),
        subtitle=escape(_subtitle(data)),
        verdict=escape(describe_verdict(data)),
        tiles=_tiles(data),
        sections=sections,
        # <!--<script> or </script> in a value would swallow the page or end the script. Plotly (7.1) escapes, too.
        plots=f"[{','.join(str(figure.to_json()) for figure in plots)}]".replace("<", "\\u003c"),
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        versions=escape(_versions(data)),
        plotly=f"<script>{script}</script>",
    )


def _subtitle(data: SweepData) -> str:
    settings, number = data.settings, count_states(data.trials)
    parts = [f"{settings['algo']['name'].upper()} on {settings['env']['id']}", data.status]
    left = "running" if data.status == "running" else "interrupted"
    states = {"complete": "complete", "pruned": "stopped", "failed": "failed", "interrupted": left}
    told = [f"{number[key]} {word}" for key, word in states.items() if number[key] or key != "interrupted"]
    parts.append(f"{number['total']} trials: {', '.join(told)}")
    return " · ".join(parts)


def _versions(data: SweepData) -> str:
    known = " · ".join(f"{name} {version}" for name, version in (data.record.versions or {}).items())
    commit = (data.record.git_commit or "")[:12]
    return known + (f" · commit {commit}" if commit else "")


def _tiles(data: SweepData) -> str:
    """Render what the sweep cost, as numbers."""
    cost = data.cost
    replicates = int(data.settings.get("replicates", 1))
    steps = cost.get("env_steps", replicates * sum(trial.env_steps for trial in data.trials))
    saved = cost.get("env_steps_saved", 0)
    whole = f"{saved / (steps + saved):.0%} of the whole" if steps + saved else "nothing trained"
    tiles = [(format_count(steps), "environment steps trained"), (format_count(saved), f"steps saved, {whole}")]
    if cost:
        certify_s = cost.get("certify_train_s", 0.0)
        beside = f", and {format_duration(certify_s)} for certification" if certify_s else ""
        tiles += [
            (format_duration(cost["train_s"]), f"of training in the search{beside}"),
            (format_duration(cost["wall_s"]), f"in all, on {cost['slots']:.3g} slots"),
        ]
        if cost["wall_s"] >= LONG_S:  # of a short sweep the start is most
            tiles.append((f"{cost['efficiency']:.0%}", "efficiency: how much of the slots' time was training"))
    return "".join(f"<li><b>{escape(big)}</b><span>{escape(small)}</span></li>" for big, small in tiles)


# -- the sections, in the order in which a reader asks ----------------------------------------------------------------


def _sections(data: SweepData, drawn: Figures, mattered: WhatMattered, plots: list[Figure]) -> Iterator[str]:
    """Render section by section, and collect their figures for the page's script.

    Args:
        data: The sweep.
        drawn: Its figures.
        mattered: What mattered.
        plots: The figures are appended here, in the page's order.
    """

    def place_all(name: str, wide: int = 0) -> str:
        return "".join(_place_figure(figure, plots, wide) for figure in drawn.get(name, ()))

    if "certification" in drawn:
        yield _certification(data, place_all("certification"))
    if "curves" in drawn:
        rungs = f" Dotted lines are the rungs at which weak trials are stopped: {_listed(data)}." if data.rungs else ""
        caption = f"Mean {data.shown.label} of each trial's episodes as it trained.{rungs} Touch a line for its values."
        yield _section("Learning curves", place_all("curves"), caption)
    if "best" in drawn:
        which = "all reports" if data.criteria.scored is None else "the last three reports"
        caption = f"The best score so far: the mean of {which} of a trial."
        yield _section("Best so far", f'<div class="pair">{place_all("best")}</div>', caption)
    if "front" in drawn:
        yield _section("Two objectives", place_all("front"), _describe_front(data))
    yield _values(data)
    if data.trials:
        yield from _mattered(data, mattered, place_all("importance"))
        yield from _by_parameter(drawn, place_all)
        caption = "Environment steps of each trial. Pale: what stopping it has saved."
        yield _section("Cost", place_all("cost"), caption)
    yield _commands(data)
    yield _trials(data)


def _describe_front(data: SweepData) -> str:
    second, best = data.criteria.second, "small" if data.criteria.direction == "min" else "large"
    named = ", ".join(f"trial {trial.number}" for trial in data.front) or "none yet"
    return (
        f"Each trial's score over its {second}, which is to be {best}. Stair: the Pareto front, the complete trials "
        f"that no other one beats in both: {named}. Pale: trials that were stopped, with the {second} that is expected "
        "of the whole budget."
    )


def _listed(data: SweepData) -> str:
    return ", ".join(f"{level:,}" for level in data.rungs) + " steps"


def _mattered(data: SweepData, mattered: WhatMattered, plot: str) -> Iterator[str]:
    yield _section("What mattered", plot, mattered.words)
    if mattered.moves:
        told = [move for move in mattered.moves if move.fall.low or move.fall.high]
        cells = [
            [
                move.name,
                format_value(move.before),
                format_value(move.after),
                format_objective(move.fall.mean),
                format_interval({"low": move.fall.low, "high": move.fall.high}),
                "yes" if move.fall.low > 0 else "not shown",
            ]
            for move in told
        ]
        worse = f"{data.shown.name} rises by" if data.shown.is_cost else "score falls by"
        heads = ["", "winner", "instead", worse, "95% interval", "worse?"]
        caption = (
            "The winner with one value changed: by a tenth of what was searched, as near to that as there are values, "
            "or to another choice; of these the change that costs most. Predicted for the whole budget from all "
            "trials. Not shown: the interval holds 0, and the other value may be as good."
        )
        if silent := [move.name for move in mattered.moves if move not in told]:
            caption += f" No effect was found of {', '.join(silent)}."
        yield _section("How sensitive the winner is", _table(heads, cells) if told else "", caption)


def _by_parameter(drawn: Figures, place_all: Callable[..., str]) -> Iterator[str]:
    if "slices" not in drawn:
        caption = "There are none before two trials have returns and differ in a parameter."
        yield _section("Slices and parallel coordinates", "", caption)
        return
    caption = (
        "Each trial's score over one parameter at a time. Orange: the winner. Blue: trained to the end. "
        "Grey: stopped, so lower than it might have become. Red: failed."
    )
    yield _section("Slices", f'<div class="grid">{place_all("slices")}</div>', caption)
    caption = "A line is a trial; the darker, the better its score. None: the trial did not have the parameter."
    yield _section("Parallel coordinates", place_all("parallel", 110 * (1 + len(drawn["slices"]))), caption)


def _certification(data: SweepData, plot: str) -> str:
    record = data.record.certification or {}
    rows = [data.shown.turn(row) for row in record["configurations"]]
    cells = [
        [
            label(row["name"], row["trial"]),
            format_objective(row["iqm"] if row["per_seed"] else None),
            format_interval(row),
            format_objective(row["mean"] if row["per_seed"] else None),
            "-" if row.get("improvement") is None else f"{row['improvement']:.2f}",
            format_objective(row.get("search_score")),
            str(len(row.get("failed_seeds", ()))),
        ]
        for row in rows
    ]
    heads = ["", "IQM", "95% interval", "mean", "beats baseline", "search said", "failed seeds"]
    caption = (
        f"Each configuration retrained on {len(record['seeds'])} fresh seeds with the whole budget; each result played "
        f"{record['episodes']} episodes that no training saw. Baseline: the pair's tuned settings, or the algorithm's "
        "own where there are none. Diamond: interquartile mean (IQM), that of the middle half of the runs, which one "
        "lucky or unlucky seed does not move; the winner's is free of the luck of being chosen. Bar: 95% interval of "
        "the runs' median, from five seeds on. Pale dots: single seeds. Beats baseline: the probability that a run is "
        "better than one of the baseline. Search said: the trial's score, of episodes that it explored in."
    )
    if any(row.get("optimism") is not None for row in rows):
        heads.insert(-1, "optimism")
        for cell, row in zip(cells, rows, strict=True):
            cell.insert(-1, format_objective(row.get("optimism")))
        caption += " Optimism: what the search said, minus the IQM, of a trial that had the whole budget."
    if any(row.get("failed_seeds") for row in rows):
        caption += (
            f" A failed seed counts as the {'highest' if data.shown.is_cost else 'lowest'} result of all runs; a "
            "configuration of which more than a quarter failed ranks below those with fewer."
        )
    if data.criteria.scored is None:
        caption += " All of these are means of a run's reports as it trained: the area under its learning curve."
    if few := warn_of_few_seeds(len(record["seeds"])):
        caption += f" {few[0].upper()}{few[1:]}."
    best = next(cell[0] for cell, row in zip(cells, rows, strict=True) if row["name"] == record["winner"])
    return _section("Certification", plot + _table(heads, cells, best), caption)


def _values(data: SweepData) -> str:
    rows = compare_values(data)
    cells = [[row.name, row.won, row.before, row.searched] for row in rows]
    changed = {row.name for row in rows if row.changed and row.won != "-"}
    heads = ["", "winner", "default", "searched"]
    caption = "Default: the pair's tuned settings if there are any, else the algorithm's file's. Bold: another value."
    return _section("The winner's values", _table(heads, cells, bold=changed), caption)


def _commands(data: SweepData) -> str:
    items = "".join(
        f"<dt>{escape(what)}</dt><dd><code>{escape(command)}</code></dd>" for what, command in suggest_commands(data)
    )
    commit = f" at commit {data.record.git_commit[:12]}" if data.record.git_commit else ""
    caption = (
        f"Typed in the same folder{commit}, with the versions below. The same seed repeats a trial; which trials are "
        "stopped depends on which finish first."
    )
    return _section("Reproduce it", f"<dl>{items}</dl>", caption)


def _trials(data: SweepData) -> str:
    cells = [
        [
            str(trial.number),
            data.state_of(trial),
            format_objective(data.shown(trial.score)),
            format_count(trial.env_steps),
            format_params(trial.params),
            data.explain_end(trial),
        ]
        for trial in order_records(data.trials)
    ]
    heads = ["trial", "state", "score", "env steps", "values", "why it ended"]
    table = _table(heads, cells, str(data.winner_trial))
    return f"<section><details><summary><h2>All {len(data.trials)} trials</h2></summary>{table}</details></section>"


# -- pieces -----------------------------------------------------------------------------------------------------------


def _section(title: str, content: str, caption: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}<p class=caption>{escape(caption)}</p></section>"


def _place_figure(figure: Figure, plots: list[Figure], wide: int) -> str:
    """Append a figure to ``plots``, and render the place for it: at least ``wide`` pixels wide."""
    plots.append(figure)
    style = f"min-width:{wide}px;height:{figure.layout.height}px"
    return f'<div class=scroll><div class=plot id=plot{len(plots) - 1} style="{style}"></div></div>'


def _table(heads: list[str], rows: list[list[str]], best: str | None = None, bold: set[str] | None = None) -> str:
    """Render a table; the row whose first cell is ``best`` stands out, and the second cells of ``bold`` ones."""
    top = "".join(f"<th>{escape(head)}</th>" for head in heads)
    body = []
    for row in rows:
        cells = [escape(cell) for cell in row]
        if bold and row[0] in bold:
            cells[1] = f"<b>{cells[1]}</b>"
        mark = " class=best" if row[0] == best else ""
        body.append(f"<tr{mark}><th>{cells[0]}</th>" + "".join(f"<td>{cell}</td>" for cell in cells[1:]) + "</tr>")
    return f"<div class=scroll><table><thead><tr>{top}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
