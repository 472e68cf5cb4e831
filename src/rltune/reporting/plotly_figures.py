"""A sweep's figures for the page, as Plotly's own JSON: plain data, so that nothing of plotly need be imported.

Sizes follow the page; colours and fonts that all figures share are set here. ``pictures`` draws the same for paper.
Runs anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rltune.formatting import format_objective, format_params, format_value
from rltune.reporting.sweep_data import Findings, progress
from rltune.study.record import TrialRecord

Figure = dict[str, Any]
WINNER, WHOLE, STOPPED, FAILED, INK, LINES = "#d9480f", "#3b6fb6", "#a9b4c0", "#c92a2a", "#24313f", "#e4e8ec"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
STATES = {"COMPLETE": ("whole budget", WHOLE), "PRUNED": ("stopped early", STOPPED), "FAIL": ("failed", FAILED)}
MAX_TICKS = 5
NOT_SEARCHED = "-"  # where a trial does not have a parameter, by the parameter's condition


def look(entry: TrialRecord, winner: int | None) -> tuple[str, str]:
    """A trial's label in legends, and its colour."""
    if entry.number == winner:
        return "winner", WINNER
    return STATES.get(entry.state, ("to continue", INK))


def winner_last(found: Findings) -> list[TrialRecord]:
    """The trials in the order in which they are drawn: what matters most comes on top."""
    ranks = {"FAIL": 0, "PRUNED": 1, "RUNNING": 2, "COMPLETE": 3}
    return sorted(found.entries, key=lambda e: (e.number == found.winner_trial, ranks.get(e.state, 0), e.number))


def axis(title: str, **more: Any) -> dict[str, Any]:
    """An axis in the page's style."""
    return {
        "title": {"text": title, "standoff": 8},
        "automargin": True,
        "gridcolor": LINES,
        "zeroline": False,
        "linecolor": STOPPED,
        **more,
    }


def _layout(height: int, x: Mapping[str, Any], y: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "height": height,
        "autosize": True,
        "margin": {"l": 10, "r": 10, "t": 10, "b": 10},
        "font": {"family": FONT, "size": 13, "color": INK},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "hoverlabel": {"font": {"family": FONT, "size": 12}, "align": "left"},
        "hovermode": "closest",
        "showlegend": False,
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "xanchor": "left"},
        "xaxis": dict(x),
        "yaxis": dict(y),
        **more,
    }


def curves(found: Findings) -> Figure:
    """Each trial's objective over its environment steps, the rungs as dotted lines."""
    traces, named = [], set()
    for entry in winner_last(found):
        if not entry.reports:
            continue
        label, colour = look(entry, found.winner_trial)
        steps = list(entry.reports)
        heights = [value if math.isfinite(value) else None for value in entry.reports.values()]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines" if len(steps) > 1 else "markers",
                "x": steps,
                "y": heights,
                "name": label,
                "legendgroup": label,
                "showlegend": label not in named,
                "line": {"color": colour, "width": 3.5 if label == "winner" else 1.6},
                "marker": {"color": colour, "size": 6},
                "hovertemplate": f"trial {entry.number}, {label}<br>%{{x:,}} steps: %{{y:.4g}}"
                f"<br>{format_params(entry.params).replace(' ', '<br>')}<extra></extra>",
            }
        )
        named.add(label)
    marks = [
        {
            "type": "line",
            "x0": level,
            "x1": level,
            "yref": "paper",
            "y0": 0,
            "y1": 1,
            "line": {"color": STOPPED, "width": 1, "dash": "dot"},
        }
        for level in found.levels
    ]
    x, y = axis("environment steps", rangemode="tozero"), axis("episode return")
    return {"data": traces, "layout": _layout(430, x, y, showlegend=True, shapes=marks)}


def best_so_far(found: Findings) -> list[Figure]:
    """The best objective against environment steps of all trials, and against seconds."""
    moments = progress(found)
    made = []
    for title, xs in (
        ("environment steps, all trials", [moment.env_steps for moment in moments]),
        ("seconds since the first trial began", [round(moment.seconds, 2) for moment in moments]),
    ):
        trace = {
            "type": "scatter",
            "mode": "lines",
            "x": xs,
            "y": [moment.best for moment in moments],
            "line": {"color": WHOLE, "width": 2.5, "shape": "hv"},
            "hovertemplate": "%{x:,}: %{y:.4g}<extra></extra>",
        }
        made.append(
            {"data": [trace], "layout": _layout(300, axis(title, rangemode="tozero"), axis("best return so far"))}
        )
    return made


def intervals(rows: Sequence[Mapping[str, Any]], best: str | None, title: str) -> Figure:
    """Certified returns: IQM, 95% interval and each seed's mean, one row a configuration, the first on top.

    Args:
        rows: With name, iqm, low, high and per_seed.
        best: The name that is highlighted.
        title: The axis's.
    """
    data: list[dict[str, Any]] = []
    for row in rows:
        colour = WINNER if row["name"] == best else INK if row["name"] == "control" else WHOLE
        seeds = [one["mean"] for one in row["per_seed"]]
        base = {"type": "scatter", "mode": "markers", "showlegend": False}
        data.append(
            base
            | {
                "x": seeds,
                "y": [row["name"]] * len(seeds),
                "marker": {"color": colour, "size": 9, "opacity": 0.35},
                "hovertemplate": "one seed: %{x:.4g}<extra></extra>",
            }
        )
        data.append(
            base
            | {
                "x": [row["iqm"]],
                "y": [row["name"]],
                "marker": {"color": colour, "size": 12, "symbol": "diamond"},
                "error_x": {
                    "type": "data",
                    "symmetric": False,
                    "array": [row["high"] - row["iqm"]],
                    "arrayminus": [row["iqm"] - row["low"]],
                    "color": colour,
                    "thickness": 3,
                    "width": 7,
                },
                "hovertemplate": f"{row['name']}: IQM %{{x:.4g}}, {format_objective(row['low'])} to "
                f"{format_objective(row['high'])}<extra></extra>",
            }
        )
    y = axis("", autorange="reversed", type="category")
    return {"data": data, "layout": _layout(90 + 54 * len(rows), axis(title), y)}


def parallel(found: Findings) -> Figure:
    """Parallel coordinates: a line a trial through all its values to its best return; axes can be brushed."""
    entries = sorted((e for e in found.entries if e.best is not None), key=lambda e: e.best or 0.0)
    bests = [entry.best or 0.0 for entry in entries]
    dimensions = [_dimension(found, name, entries) for name in _varied(found, entries)]
    dimensions.append({"label": "best return", "values": bests})
    trace = {
        "type": "parcoords",
        "line": {
            "color": bests,
            "colorscale": [[0, "#dfe3e8"], [0.5, "#8fb0d9"], [1, WINNER]],
            "cmin": min(bests, default=0),
            "cmax": max(bests, default=1),
        },
        "dimensions": dimensions,
        "labelfont": {"size": 12, "color": INK},
        "tickfont": {"size": 11, "color": INK},
        "rangefont": {"size": 1, "color": "rgba(0,0,0,0)"},
        "labelangle": -18,
        "labelside": "top",
    }
    layout = _layout(430, {}, {}, margin={"l": 50, "r": 50, "t": 90, "b": 20})
    return {"data": [trace], "layout": layout, "min_width": 110 * len(dimensions)}


def _varied(found: Findings, entries: Sequence[TrialRecord]) -> list[str]:
    """Parameters that differ between trials."""
    return [
        one.name
        for one in found.searched.dimensions
        if len({str(entry.params.get(one.name)) for entry in entries if one.name in entry.params}) > 1
    ]


def _dimension(found: Findings, name: str, entries: Sequence[TrialRecord]) -> dict[str, Any]:
    """One axis of the parallel coordinates; logarithms and choices get ticks that show their values."""
    scale = scale_of(found, name)
    if scale == "choice":
        raw = [format_value(entry.params[name]) if name in entry.params else NOT_SEARCHED for entry in entries]
        known = sorted(set(raw), key=_as_number)
        return {
            "label": name,
            "values": [known.index(value) for value in raw],
            "tickvals": list(range(len(known))),
            "ticktext": known,
            "range": [-0.3, len(known) - 0.7],
        }
    place, mine = positions(scale), [entry.params[name] for entry in entries if name in entry.params]
    if scale == "linear" and len(mine) == len(entries):
        return {"label": name, "values": mine}
    low, high = place(min(mine)), place(max(mine))
    ticks = _ticks(scale, mine)
    if len(mine) < len(entries):  # trials without it, by its condition: below the axis' own values
        below = low - 0.2 * ((high - low) or 1.0)
        ticks = {"tickvals": [below, *ticks["tickvals"]], "ticktext": [NOT_SEARCHED, *ticks["ticktext"]]}
    else:
        below = low
    values = [place(entry.params[name]) if name in entry.params else below for entry in entries]
    return {"label": name, "values": values, "range": [below, high]} | ticks


def scale_of(found: Findings, name: str) -> str:
    """``linear``, ``log``, ``gap`` (the logarithm of 1 - x) or ``choice``."""
    kind = next(one.kind for one in found.searched.dimensions if one.name == name)
    known = {"loguniform": "log", "lograndint": "log", "pow2": "log", "one_minus_loguniform": "gap", "choice": "choice"}
    return known.get(kind, "linear")


def positions(scale: str) -> Any:
    """From a value to its place on an axis."""
    return {"log": math.log10, "gap": lambda value: -math.log10(1 - value)}.get(scale, lambda value: value)


def _ticks(scale: str, values: Sequence[Any]) -> dict[str, Any]:
    """Where a logarithmic axis is labelled, in places: at its values where they are few, else evenly."""
    place, known = positions(scale), sorted(set(values))
    if len(known) <= MAX_TICKS:
        return {"tickvals": [place(value) for value in known], "ticktext": [format_value(value) for value in known]}
    low, high = place(known[0]), place(known[-1])
    ticks = [low + (high - low) * part / 3 for part in range(4)]
    texts = [float(10**at if scale == "log" else 1 - 10**-at if scale == "gap" else at) for at in ticks]
    return {
        "tickvals": ticks,
        "ticktext": [format_value(text if scale == "gap" else float(f"{text:.2g}")) for text in texts],
    }


def _as_number(text: str) -> tuple[bool, float, str]:
    try:
        return False, float(text), text
    except ValueError:
        return True, 0.0, text


def slices(found: Findings) -> list[tuple[str, Figure]]:
    """The best return of each trial over each parameter alone."""
    entries = [entry for entry in winner_last(found) if entry.best is not None]
    return [(name, _slice(found, name, entries)) for name in _varied(found, entries)]


def _slice(found: Findings, name: str, entries: Sequence[TrialRecord]) -> Figure:
    mine = [entry for entry in entries if name in entry.params]
    scale = scale_of(found, name)
    looks = [look(entry, found.winner_trial) for entry in mine]
    xs: list[Any] = [entry.params[name] for entry in mine]
    x = axis(name)
    if scale == "choice":
        xs = [format_value(value) for value in xs]
        x |= {"type": "category", "categoryorder": "array", "categoryarray": sorted(set(xs), key=_as_number)}
    elif scale in ("log", "gap"):  # places, not a logarithmic axis: of 1 - x there is none
        x |= _ticks(scale, xs)
        xs = [positions(scale)(value) for value in xs]
    trace = {
        "type": "scatter",
        "mode": "markers",
        "x": xs,
        "y": [entry.best for entry in mine],
        "marker": {
            "color": [colour for _, colour in looks],
            "size": [13 if label == "winner" else 8 for label, _ in looks],
            "line": {"color": "#ffffff", "width": 1},
        },
        "cliponaxis": False,
        "text": [
            f"trial {e.number}, {label}<br>{name}={format_value(e.params[name])}"
            for e, (label, _) in zip(mine, looks, strict=True)
        ],
        "hovertemplate": "%{text}<br>best return %{y:.4g}<extra></extra>",
    }
    return {"data": [trace], "layout": _layout(250, x, axis("best return"))}


def shares(found: Mapping[str, float]) -> Figure:
    """Importance as bars, the largest on top."""
    trace = {
        "type": "bar",
        "orientation": "h",
        "x": list(found.values()),
        "y": list(found),
        "marker": {"color": WHOLE},
        "text": [f"{share:.0%}" for share in found.values()],
        "textposition": "auto",
        "hovertemplate": "%{y}: %{x:.1%}<extra></extra>",
    }
    y = axis("", autorange="reversed", type="category")
    return {"data": [trace], "layout": _layout(80 + 32 * len(found), axis("share", tickformat=".0%"), y)}


def spent(found: Findings) -> Figure:
    """Environment steps of each trial: trained, and not trained because it was stopped."""
    names = [str(entry.number) for entry in found.entries]
    saved = [max(0, found.env_steps - e.env_steps) if e.state == "PRUNED" else 0 for e in found.entries]
    bars = (
        (
            "trained",
            [entry.env_steps for entry in found.entries],
            [
                look(entry, found.winner_trial)[1] if entry.number == found.winner_trial else WHOLE
                for entry in found.entries
            ],
        ),
        ("saved by stopping", saved, "#dfe5ec"),
    )
    traces = [
        {
            "type": "bar",
            "x": names,
            "y": heights,
            "name": label,
            "marker": {"color": colours},
            "hovertemplate": f"trial %{{x}}: %{{y:,}} steps {label}<extra></extra>",
        }
        for label, heights, colours in bars
    ]
    x, y = axis("trial", type="category"), axis("environment steps")
    return {"data": traces, "layout": _layout(280, x, y, barmode="stack", bargap=0.25)}
