"""Draw a sweep's figures with Plotly and ``optuna.visualization``, all in one style.

``html`` puts them on its page. Importing this takes a third of a second: import it inside a function.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import optuna
import plotly.graph_objects as go
from optuna import visualization

from rltune.envs.spec import EPISODE
from rltune.formatting import format_interval, format_params, format_value
from rltune.records import BASELINE
from rltune.views.analysis import (
    build_optuna_study,
    build_space,
    list_rungs,
    list_varied_axes,
)
from rltune.views.importance import Importance
from rltune.views.sweep_view import INTERRUPTED, WAITING, SweepView, TrialSnapshot

WINNER, WHOLE, STOPPED, FAILED, INK, LINES = "#23703a", "#3b6fb6", "#a9b4c0", "#c92a2a", "#24313f", "#e4e8ec"
GROUND = "#ffffff"
WEAK, HALF, STRONG = "#c6d3e6", "#6d92c6", "#123a75"  # From early to late trials, and from bad to good scores.
SCALE = [[0.0, WEAK], [0.5, HALF], [1.0, STRONG]]
DARK = {  # What a page in dark mode draws instead.
    **{WINNER: "#6cc287", WHOLE: "#85b2ee", STOPPED: "#55636f", FAILED: "#f08a83", INK: "#dfe6ee", LINES: "#2f3b47"},
    **{GROUND: "#1d252e", WEAK: "#2b3d55", HALF: "#5f8cc6", STRONG: "#cfe2fb"},
}
MAX_NAMED_VALUES = 6  # If a parameter has so few values, each is named on its axis.
CURVES_HEIGHT, METRICS_HEIGHT = 430, 260  # In pixels, of the scores' curves and of those of each own metric.
LABEL_HEIGHT = 0.05  # Of a value beside a parallel axis, as a share of the axis.
FLAT = 0.02  # If scores differ by less than this share, their axis spans more than them: the difference is noise.
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
STATES = {  # Trials are drawn in this order of states, so that more important ones cover the others.
    "FAIL": FAILED,
    "PRUNED": STOPPED,
    INTERRUPTED: INK,
    WAITING: INK,
    "RUNNING": INK,
    "COMPLETE": WHOLE,
}
AXIS = {
    "automargin": True,
    "gridcolor": LINES,
    "zeroline": False,
    "showline": True,
    "linecolor": STOPPED,
    "title": {"standoff": 8},
    "exponentformat": "e",
    "minexponent": 5,
}
THEME = go.layout.Template(
    layout={
        "margin": {"l": 10, "r": 10, "t": 10, "b": 10},
        "font": {"family": FONT, "size": 13, "color": INK},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "hoverlabel": {"font": {"family": FONT, "size": 12}, "align": "left"},
        "hovermode": "closest",
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "xanchor": "left"},
        "xaxis": AXIS,
        "yaxis": AXIS,
    }
)


def draw_figures(view: SweepView, importance: Importance | None = None) -> dict[str, list[go.Figure]]:
    """Draw all figures for which the sweep has data; figures of the same name are shown side by side.

    Args:
        importance: What its scores depend on; drawn where a parameter stands out.
    """
    winner, order = view.winner_trial, list(STATES)
    trials = sorted(view.trials, key=lambda trial: (trial.number == winner, order.index(trial.state), trial.number))
    tried = [trial for trial in trials if trial.score is not None]
    drawn: dict[str, list[go.Figure]] = {}
    if any(trial.curve for trial in trials):
        scores = {trial.number: trial.curve for trial in trials}
        drawn["curves"] = [draw_curves(view, trials, scores, f"mean {view.label}")]
    if metrics := view.metric_curves:
        # They stand below the scores' curves, whose legend is theirs, too.
        drawn["metrics"] = [
            draw_curves(view, trials, curves, f"mean {name.removeprefix(EPISODE)}").update_layout(
                height=METRICS_HEIGHT, showlegend=False
            )
            for name, curves in metrics.items()
        ]
    if certification := view.certification:
        rows = certification.summary()["configurations"]
        drawn["certification"] = [draw_intervals(rows, certification.winner, f"certified {view.label}")]
    if importance and importance.outstanding:
        drawn["importance"] = [draw_importance(importance)]
    space = build_space(view)
    study = build_optuna_study(space, tried, view.criteria.direction)
    if len(view.ranked) > 1 and (axes := list_varied_axes(space, study)):
        drawn["slices"] = [draw_slice(study, axis) for axis in axes]
        drawn["parallel"] = [draw_parallel(study, axes)]
    if any(trial.second is not None for trial in tried):
        drawn["front"] = [draw_front(view, tried)]
    return drawn


def style_figure(figure: go.Figure, height: int, **layout: Any) -> go.Figure:
    """Apply the common style and a height in pixels to a Plotly figure."""
    return figure.update_layout(template=THEME, height=height, **{"title": None, "showlegend": False} | layout)


def choose_range(scores: Iterable[float]) -> list[float] | None:
    """Choose the range of an axis of scores that are nearly equal; None leaves it to Plotly."""
    finite = [score for score in scores if np.isfinite(score)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    middle, size = (low + high) / 2, max(abs(low), abs(high))
    if not finite or high - low > FLAT * size:
        return None
    half = 0.1 * size or 1.0
    return [middle - half, middle + half]


def choose_style(view: SweepView, trial: TrialSnapshot) -> tuple[str, str]:
    """Choose the legend label and the colour of a trial."""
    return (view.winner_word, WINNER) if trial.number == view.winner_trial else (trial.state_word, STATES[trial.state])


def draw_curves(
    view: SweepView,
    trials: Sequence[TrialSnapshot],
    curves: Mapping[int, Mapping[int, float]],
    title: str,
) -> go.Figure:
    """Draw the curve of each trial in one number; dotted vertical lines are the scheduler's rungs.

    Optuna's own figure of the curves has one style for all: who won and who was stopped could not be seen.

    Args:
        view: The sweep.
        trials: Its trials, the last on top.
        curves: The values by trial and environment steps.
        title: Of the vertical axis.
    """
    figure, named = go.Figure(), set()
    for trial in trials:
        if not (curve := curves.get(trial.number)):
            continue
        label, colour = choose_style(view, trial)
        figure.add_scatter(
            x=list(curve),
            y=[value if np.isfinite(value) else np.nan for value in curve.values()],
            mode="lines" if len(curve) > 1 else "markers",
            name=label,
            legendgroup=label,
            showlegend=label not in named,
            line={"color": colour, "width": 3.5 if colour == WINNER else 1.6},
            marker={"color": colour, "size": 6},
            hovertemplate=f"trial {trial.number}, {label}<br>%{{x:,}} steps: %{{y:.4g}}"
            f"<br>{format_params(trial.params).replace(' ', '<br>')}<extra></extra>",
        )
        named.add(label)
    for level in list_rungs(view):
        figure.add_vline(level, line={"color": STOPPED, "width": 1, "dash": "dot"})
    x = {"title_text": "environment steps", "rangemode": "tozero", "tickformat": "~s"}
    y = {"title_text": title, "range": choose_range(value for each in curves.values() for value in each.values())}
    return style_figure(figure, CURVES_HEIGHT, showlegend=True, xaxis=x, yaxis=y)


def draw_intervals(rows: Sequence[Mapping[str, Any]], best: str | None, title: str) -> go.Figure:
    """Draw certified returns, one row per configuration, the first on top: median, its interval and each seed's score.

    Args:
        rows: With name, median (None without a run), low, high (None without an interval) and scores.
        best: The name that is highlighted.
        title: The axis's.
    """
    figure = go.Figure()
    for row in rows:
        name, median = row["name"], row["median"]
        low, high = (median, median) if row["low"] is None else (row["low"], row["high"])
        colour = WINNER if name == best else INK if name == BASELINE else WHOLE
        figure.add_scatter(
            x=row["scores"],
            y=[name] * len(row["scores"]),
            mode="markers",
            marker={"color": colour, "size": 9, "opacity": 0.35},
            hovertemplate="one seed: %{x:.4g}<extra></extra>",
        )
        if median is None:
            continue
        bar = {"array": [high - median], "arrayminus": [median - low], "thickness": 3, "width": 7}
        figure.add_scatter(
            x=[median],
            y=[name],
            mode="markers",
            marker={"color": colour, "size": 12, "symbol": "diamond"},
            error_x={"symmetric": False, "color": colour, **bar},
            hovertemplate=f"{name}: median %{{x:.4g}}, interval {format_interval(row)}<extra></extra>",
        )
    names = [row["name"] for row in rows]
    y = {"autorange": "reversed", "type": "category", "categoryorder": "array", "categoryarray": names}
    return style_figure(figure, 90 + 54 * len(rows), xaxis_title_text=title, yaxis=y)


def draw_importance(importance: Importance) -> go.Figure:
    """Draw parameter importances as bars; grey ones, which end before the dotted line, may be due to chance."""
    names, increases = list(importance.increases), list(importance.increases.values())
    bars = go.Bar(
        x=increases,
        y=names,
        orientation="h",
        marker_color=[WHOLE if name in importance.outstanding else STOPPED for name in names],
        hovertemplate="%{y}: %{x:.0%}<extra></extra>",
    )
    y = {"autorange": "reversed", "type": "category", "categoryorder": "array", "categoryarray": names}
    x = {"title_text": "increase of the squared error without this parameter", "tickformat": ".0%"}
    figure = go.Figure(bars).add_vline(importance.chance, line={"color": INK, "width": 1, "dash": "dot"})
    return style_figure(figure, 80 + 32 * len(names), xaxis=x, yaxis=y)


def draw_slice(study: optuna.Study, axis: str) -> go.Figure:
    """Draw each trial's score over one parameter with Optuna; the colour of later trials is stronger."""
    figure = visualization.plot_slice(study, params=[axis], target_name="score")
    figure.update_traces(marker={"showscale": False, "colorscale": SCALE, "line": {"color": STOPPED, "width": 0.5}})
    y = {"range": choose_range(score for trace in figure.data for score in trace.y)}
    return style_figure(figure, 250, yaxis=y, xaxis=_choose_ticks(figure))


def _choose_ticks(figure: go.Figure) -> dict[str, Any]:
    """Choose the values that are named below a slice: all if they are few, and none that would cover its neighbour."""
    values = list(dict.fromkeys(value for trace in figure.data for value in trace.x if value is not None))
    ticks: dict[str, Any] = {"tickfont_size": 11, "tickangle": 0, "nticks": 6}
    if any(isinstance(value, str) for value in values):
        texts = [_tidy_value(str(value)).replace(",", ",<br>") for value in values]
        return ticks | {"tickvals": values, "ticktext": texts}
    if len(values) <= MAX_NAMED_VALUES:
        return ticks | {"tickvals": values, "ticktext": [format_value(value) for value in values]}
    if figure.layout.xaxis.type == "log":
        ticks["dtick"] = "D2" if max(values) < 100 * min(values) else 1
    return ticks


def draw_parallel(study: optuna.Study, axes: list[str]) -> go.Figure:
    """Draw each trial as a line through its score and its parameters with Optuna (parallel coordinates)."""
    figure = visualization.plot_parallel_coordinate(study, params=axes, target_name="score")
    figure.data = [trace for trace in figure.data if trace.mode == "lines"]  # Without the scale of the colours.
    worst = 1.0 if study.direction is optuna.study.StudyDirection.MINIMIZE else 0.0
    for trace in figure.data:
        goodness = abs(trace.y[0] - worst)
        colour = WEAK if goodness < 1 / 2 else HALF if goodness < 9 / 10 else STRONG
        trace.update(line={"color": colour, "width": 2.2 if colour == STRONG else 1.4}, opacity=0.8)
    figure.update_shapes(line_color=STOPPED)
    names = {"ticktext": ["score", *sorted(axes)], "side": "top", "tickangle": -20, "showline": False}
    figure.layout.annotations = [
        {
            **note.to_plotly_json(),
            "text": _tidy_value(note.text),
            "font": {"size": 11, "color": INK},
            "bgcolor": GROUND,
        }
        for note in _select_apart(figure.layout.annotations)
    ]
    layout = {"plot_bgcolor": "rgba(0,0,0,0)", "margin": {"l": 60, "t": 80, "r": 130}}
    return style_figure(figure, 430, xaxis=names, **layout)


def _select_apart(notes: Sequence[Any]) -> list[Any]:
    """Select the values beside parallel axes that do not overlap: the ends of an axis, and those between with room."""
    selected = []
    for place in dict.fromkeys(note.x for note in notes):
        on_axis = sorted((note for note in notes if note.x == place), key=lambda note: note.y)
        kept = [on_axis[0]]
        for note in on_axis[1:-1]:
            if note.y - kept[-1].y > LABEL_HEIGHT < on_axis[-1].y - note.y:
                kept.append(note)
        if on_axis[-1].y - kept[-1].y > LABEL_HEIGHT:
            kept.append(on_axis[-1])
        selected += kept
    return selected


def _tidy_value(text: str) -> str:
    """Write a value as the tables do: 1e-08 as 1e-8, 1.02e+03 as 1.02e3, and a list without quotes."""
    return re.sub(r"(?<=\d)e(-?)\+?0*(?=\d)", r"e\1", re.sub("[\"']", "", text).replace(", ", ","))


def draw_front(view: SweepView, tried: Sequence[TrialSnapshot]) -> go.Figure:
    """Draw each trial's score over its second objective, and the Pareto front as a step line."""
    figure, second, front = go.Figure(), view.criteria.second, view.front
    line = {"color": INK, "width": 1.5, "shape": "hv"}
    stair = front[::-1]
    points = [trial.second for trial in stair], [trial.score for trial in stair]
    figure.add_scatter(x=points[0], y=points[1], mode="lines", line=line, name="front", showlegend=True)
    for bound in (constraint for constraint in view.criteria.constraints if constraint.name == second):
        figure.add_vline(bound.limit, line={"color": FAILED, "width": 1, "dash": "dot"})
    on_front = {trial.number for trial in front}
    groups: dict[str, list[TrialSnapshot]] = {}
    for trial in tried:
        if trial.second is not None:
            label = "breaks a constraint" if trial.broken else choose_style(view, trial)[0]
            groups.setdefault(label, []).append(trial)
    for label, group in groups.items():
        why = [f"<br>{check}" for trial in group for check in trial.record.broken[:1]] or [""] * len(group)
        figure.add_scatter(
            x=[trial.second for trial in group],
            y=[trial.score for trial in group],
            mode="markers",
            name=label,
            showlegend=True,
            marker={
                "color": FAILED if group[0].broken else choose_style(view, group[0])[1],
                "size": [13 if trial.number in on_front else 8 for trial in group],
                "opacity": 0.5 if label in ("stopped", "running", "interrupted") else 1.0,
                "symbol": "diamond" if group[0].broken else "circle",
            },
            text=[
                f"trial {trial.number}, {label}{note}<br>{format_params(trial.params).replace(' ', '<br>')}"
                for trial, note in zip(group, why, strict=True)
            ],
            hovertemplate=f"%{{text}}<br>score %{{y:.4g}}, {second} %{{x:.4g}}<extra></extra>",
        )
    return style_figure(figure, 380, showlegend=True, xaxis_title_text=second, yaxis_title_text="score")
