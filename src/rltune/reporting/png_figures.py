"""Paint a sweep's figures as PNG files, for papers, chats and READMEs, where a page cannot go.

Paints Plotly's figures with matplotlib: as much of them as `plotly_figures` uses. Plotly's own export starts a
browser. ``optuna.visualization.matplotlib`` puts all slices into one row, knows no winner, writes the ticks of parallel
coordinates over each other, and changes pyplot's global style. Draws without a display or pyplot.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from plotly.colors import unlabel_rgb

from rltune.reporting.plotly_figures import INK, LINES, STOPPED

WIDTH_PX, DPI = 760, 110  # of the page's figures, and the image's
STYLE: Mapping[Any, Any] = {
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


def save_figures(drawn: Mapping[str, Sequence[go.Figure]], folder: Path) -> None:
    """Write each name's figures into one PNG file of that name, up to three in a row.

    Args:
        drawn: As `plotly_figures.draw_figures` makes them.
        folder: Where to; it must be there.
    """
    for name, figures in drawn.items():
        columns = min(3, len(figures))
        rows = math.ceil(len(figures) / columns)
        with rc_context(dict(STYLE) | {"font.size": 10 if columns < 3 else 8}):
            size = 8, 8 / WIDTH_PX * rows * figures[0].layout.height
            image = Figure(figsize=size, dpi=DPI, layout="constrained")
            FigureCanvasAgg(image)
            grid = image.subplots(rows, columns, sharey=columns > 1, squeeze=False).ravel()
            for axes in grid[len(figures) :]:
                axes.set_visible(False)
            for place, figure in enumerate(figures):
                _paint(figure, grid[place])
                if place % columns:
                    grid[place].set_ylabel("")
            image.savefig(folder / f"{name}.png")


def _paint(figure: go.Figure, axes: Axes) -> None:
    layout = figure.layout
    for axis, theirs in ((axes.xaxis, layout.xaxis), (axes.yaxis, layout.yaxis)):
        if theirs.categoryarray:  # the order must stand before the first value is seen
            axis.update_units(list(theirs.categoryarray))  # type: ignore[no-untyped-call]
    base: Any = 0.0
    for trace in figure.data:
        if trace.type == "scatter":
            _paint_scatter(trace, axes)
        elif trace.orientation == "h":
            ends = [trace.error_x.arrayminus, trace.error_x.array]
            axes.barh(trace.y, trace.x, color=trace.marker.color, xerr=ends, ecolor=trace.error_x.color, capsize=3)
        else:
            axes.bar(trace.x, trace.y, bottom=base, color=trace.marker.color, label=trace.name)
            base = base + np.asarray(trace.y)
    for line in layout.shapes:
        axes.axvline(line.x0, color=line.line.color, lw=line.line.width, ls=":" if line.line.dash else "-", zorder=1)
    box = {"fc": "white", "alpha": 0.7, "lw": 0, "pad": 1}
    place: Any = {"textcoords": "offset points", "ha": "right", "va": "center", "size": 7, "bbox": box}
    for note in layout.annotations:
        axes.annotate(note.text, (note.x, note.y), (note.xshift, 0), **place)
    _set_axis(axes, "x", layout.xaxis)
    _set_axis(axes, "y", layout.yaxis)
    if layout.showlegend:
        axes.legend(frameon=False)


def _paint_scatter(trace: go.Scatter, axes: Axes) -> None:
    if not len(trace.x) or trace.x[0] is None:  # nothing to mark, or a trace that carries a colour bar alone
        return
    marker, label = trace.marker, trace.name if trace.showlegend else None
    if "lines" in trace.mode:
        steps: Any = "steps-post" if trace.line.shape == "hv" else "default"
        colour = tuple(part / 255 for part in unlabel_rgb(c)) if (c := trace.line.color).startswith("rgb(") else c
        width = 0.75 * trace.line.width
        axes.plot(trace.x, trace.y, color=colour, lw=width, alpha=trace.opacity, drawstyle=steps, label=label)
        return
    if trace.error_x.array is not None:
        style: Any = {"ecolor": trace.error_x.color, "elinewidth": 2, "capsize": 4, "fmt": "none"}
        axes.errorbar(trace.x, trace.y, xerr=[trace.error_x.arrayminus, trace.error_x.array], **style)
    area, shape = np.square(0.75 * np.asarray(marker.size, float)), "D" if marker.symbol == "diamond" else "o"
    style = {"marker": shape, "alpha": marker.opacity, "label": label, "linewidths": 0, "zorder": 2}
    axes.scatter(trace.x, trace.y, area, marker.color, **style)


def _set_axis(axes: Axes, name: str, theirs: Any) -> None:
    axis, texts = (axes.xaxis if name == "x" else axes.yaxis), theirs.ticktext or ()
    axes.set(**{f"{name}label": theirs.title.text or ""})
    if theirs.type == "log":
        axes.set(**{f"{name}scale": "log"})
        axis.set_minor_locator(NullLocator())
    if texts:
        turned: Any = {"rotation": 20, "ha": "right"} if sum(map(len, texts)) > 60 else {}
        axis.set_ticks(range(len(texts)) if theirs.categoryarray else theirs.tickvals, texts, **turned)
    elif theirs.tickformat:
        axis.set_major_formatter(f"{{x:{theirs.tickformat}}}")
    if ends := theirs.range or (theirs.categoryarray and (-0.5, len(theirs.categoryarray) - 0.5)):
        axes.set(**{f"{name}lim": ends})
    axis.set_inverted(theirs.autorange == "reversed")
    axis.set_visible(theirs.visible is not False)
    if theirs.type == "category" or theirs.showgrid is False:
        axis.grid(visible=False)
