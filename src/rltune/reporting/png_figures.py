"""A sweep's figures as PNG files, by matplotlib: for papers, chats and READMEs, where a page cannot go.

Draws without a display and without pyplot's global state. Runs anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rltune.formatting import format_value
from rltune.reporting import plotly_figures
from rltune.reporting.plotly_figures import INK, LINES, STOPPED, WHOLE, WINNER, look, winner_last
from rltune.reporting.sweep_data import Findings, importance, progress

DPI = 110


def save_all(found: Findings, folder: Path) -> list[Path]:
    """Write those that the sweep has something for.

    Args:
        found: The sweep.
        folder: Where to; it must be there.
    """
    drawn = {
        "curves.png": (curves, any(entry.reports for entry in found.entries)),
        "best.png": (best, bool(progress(found))),
        "certification.png": (certification, bool(found.certification)),
        "parallel.png": (parallel, len(found.judged) > 1),
        "slices.png": (slices, len(found.judged) > 1),
        "importance.png": (shares, bool(importance(found)[0])),
        "cost.png": (spent, bool(found.entries)),
    }
    paths = []
    for name, (draw, wanted) in drawn.items():
        if wanted:
            paths.append(folder / name)
            save(draw, found, paths[-1])
    return paths


def save(draw: Callable[[Any, Any], None], content: Any, path: Path) -> None:
    """Let a function draw on an empty figure and write it."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    style: Any = {
        "axes.edgecolor": STOPPED,
        "axes.labelcolor": INK,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": LINES,
        "text.color": INK,
        "xtick.color": INK,
        "ytick.color": INK,
    }
    with rc_context(style):
        figure = Figure(figsize=(8, 4.5), dpi=DPI, layout="constrained")
        FigureCanvasAgg(figure)
        draw(content, figure)
        figure.savefig(path)


def curves(found: Findings, figure: Any) -> None:
    """Learning curves with the rungs."""
    axes = figure.subplots()
    named: set[str] = set()
    for entry in winner_last(found):
        label, colour = look(entry, found.winner_trial)
        width = 2.8 if label == "winner" else 1.2
        legend = label if label not in named and entry.reports else None
        marker = "o" if len(entry.reports) == 1 else None
        axes.plot(
            list(entry.reports), list(entry.reports.values()), color=colour, lw=width, label=legend, marker=marker
        )
        named.add(label)
    for level in found.levels:
        axes.axvline(level, color=STOPPED, lw=0.8, ls=":")
    axes.set(xlabel="environment steps", ylabel="episode return", title=found.name)
    axes.legend(frameon=False)


def best(found: Findings, figure: Any) -> None:
    """The best so far against steps and seconds."""
    moments = progress(found)
    left, right = figure.subplots(1, 2, sharey=True)
    heights = [moment.best for moment in moments]
    left.step([moment.env_steps for moment in moments], heights, where="post", color=WHOLE)
    left.set(xlabel="environment steps, all trials", ylabel="best return so far")
    right.step([moment.seconds for moment in moments], heights, where="post", color=WHOLE)
    right.set(xlabel="seconds since the first trial began")


def certification(found: Findings, figure: Any) -> None:
    """Certified intervals with the control."""
    record = found.certification or {}
    intervals({"rows": record["configurations"], "best": record.get("winner"), "title": "certified return"}, figure)


def intervals(content: Mapping[str, Any], figure: Any) -> None:
    """Rows of IQM, 95% interval and single seeds; ``content`` has rows, best (a name) and title."""
    rows = content["rows"]
    figure.set_size_inches(8, 1.2 + 0.55 * len(rows))
    axes = figure.subplots()
    for place, row in enumerate(rows):
        colour = WINNER if row["name"] == content["best"] else INK if row["name"] == "control" else WHOLE
        means = [one["mean"] for one in row["per_seed"]]
        axes.scatter(means, [place] * len(means), color=colour, alpha=0.3, linewidths=0)
        error = [[row["iqm"] - row["low"]], [row["high"] - row["iqm"]]]
        axes.errorbar([row["iqm"]], [place], xerr=error, color=colour, fmt="D", capsize=4, lw=2)
    axes.set_yticks(range(len(rows)), [row["name"] for row in rows])
    axes.set(xlabel=content["title"], ylim=(len(rows) - 0.5, -0.5))
    axes.grid(visible=False, axis="y")


def parallel(found: Findings, figure: Any) -> None:
    """Parallel coordinates, each axis from its least to its greatest value."""
    trace = plotly_figures.parallel(found)["data"][0]
    axes = figure.subplots()
    columns, names = [], []
    for dimension in trace["dimensions"]:
        numbers = [value for value in dimension["values"] if value is not None]
        low, high = min(numbers), max(numbers)
        known = [low if value is None else value for value in dimension["values"]]
        columns.append([(value - low) / (high - low or 1) for value in known])
        texts = dimension.get("ticktext") or [format_value(low), format_value(high)]
        names.append(dimension["label"])
        for height, text, align in ((-0.03, texts[0], "top"), (1.03, texts[-1], "bottom")):
            axes.text(len(names) - 1, height, text, ha="center", va=align, fontsize=8)
    for trial, part in enumerate(columns[-1]):
        colour, width = (WINNER, 2.2) if part == max(columns[-1]) else (WHOLE, 1.0)
        axes.plot([column[trial] for column in columns], color=colour, lw=width, alpha=0.25 + 0.75 * part)
    axes.set_xticks(range(len(names)), names, rotation=25, ha="right")
    axes.set_yticks([])
    axes.set_ylim(-0.12, 1.12)
    axes.spines["left"].set_visible(False)


def slices(found: Findings, figure: Any) -> None:
    """The best return over each parameter alone."""
    parts = plotly_figures.slices(found)
    columns = 3 if len(parts) > 2 else max(1, len(parts))
    rows = math.ceil(len(parts) / columns) or 1
    figure.set_size_inches(8, 0.6 + 2.1 * rows)
    grid = figure.subplots(rows, columns, sharey=True, squeeze=False).ravel()
    for axes in grid[len(parts) :]:
        axes.set_visible(False)
    for axes, (name, part) in zip(grid, parts, strict=False):
        trace, x = part["data"][0], part["layout"]["xaxis"]
        marker = trace["marker"]
        places = [x["categoryarray"].index(at) for at in trace["x"]] if x.get("type") == "category" else trace["x"]
        axes.scatter(places, trace["y"], c=marker["color"], s=[3 * size for size in marker["size"]])
        if x.get("type") == "category":
            axes.set_xticks(range(len(x["categoryarray"])), x["categoryarray"])
        elif "tickvals" in x:
            axes.set_xticks(x["tickvals"], x["ticktext"])
        axes.set_xlabel(name)
        axes.tick_params(labelsize=8)


def shares(found: Findings, figure: Any) -> None:
    """Importance."""
    known, _ = importance(found)
    axes = figure.subplots()
    axes.barh(list(known), list(known.values()), color=WHOLE)
    axes.invert_yaxis()
    axes.set(xlabel="share")
    axes.grid(visible=False, axis="y")


def spent(found: Findings, figure: Any) -> None:
    """Environment steps of each trial, and what stopping saved."""
    trained, saved = plotly_figures.spent(found)["data"]
    axes = figure.subplots()
    axes.bar(trained["x"], trained["y"], color=trained["marker"]["color"], label="trained")
    axes.bar(saved["x"], saved["y"], bottom=trained["y"], color=saved["marker"]["color"], label=saved["name"])
    axes.set(xlabel="trial", ylabel="environment steps")
    axes.grid(visible=False, axis="x")
