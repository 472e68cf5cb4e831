"""The curves and scores of a sweep's trials as coordinates of vector images, for pages without a plotting library.

All images have the same units, `WIDTH` and `HEIGHT`, and y downwards; a page scales them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rltune.envs.spec import EPISODE
from rltune.formatting import format_count, format_objective, format_value
from rltune.search.dimensions import Dimension
from rltune.views.analysis import build_space
from rltune.views.sweep_view import SweepView, TrialSnapshot

WIDTH, HEIGHT = 720, 220  # Of an image's area for curves or dots.
MAX_POINTS = WIDTH  # A longer curve is thinned, since more points cannot be told apart and are sent every few seconds.
MAX_CURVES = 100  # At most so many trials are drawn, the newest, and the best in any case.


@dataclass(frozen=True)
class Curve:
    """The curve of one trial.

    Attributes:
        trial: The trial's number.
        state: Its state in words; ``winner`` or ``best so far`` for one trial.
        is_best: Whether it is the winner, or the best trial so far.
        points: ``x,y`` of each report, separated by spaces, with y downwards.
        last: x and y of the last report.
    """

    trial: int
    state: str
    is_best: bool
    points: str
    last: tuple[float, float]


@dataclass(frozen=True)
class Curves:
    """The curves of the score or of one metric, the best trial's last, and the ends of the axes in words."""

    curves: tuple[Curve, ...]
    x_end: str
    y_low: str
    y_high: str
    label: str


@dataclass(frozen=True)
class Dot:
    """The score of one trial at its value of one parameter.

    Attributes:
        trial: The trial's number.
        state: Its state in words; ``winner`` or ``best so far`` for one trial.
        is_best: Whether it is the winner, or the best trial so far.
        place: x and y.
        text: Value and score in words.
    """

    trial: int
    state: str
    is_best: bool
    place: tuple[float, float]
    text: str


@dataclass(frozen=True)
class Slice:
    """The scores of the trials by their values of one parameter, the best trial last, and the ends of its axis."""

    name: str
    low: str
    high: str
    dots: tuple[Dot, ...]


def draw_curves(view: SweepView) -> tuple[Curves, ...]:
    """Compute the curves' coordinates from the reports of the trials: of the score first, then of each own metric.

    Before the first report that has a number, there are none of it.
    """
    images = [_draw_curves(view, view.label, {trial.number: trial.curve for trial in view.trials})]
    images += [_draw_curves(view, name.removeprefix(EPISODE), each) for name, each in view.metric_curves.items()]
    return tuple(image for image in images if image)


def _draw_curves(view: SweepView, label: str, curves: Mapping[int, Mapping[int, float]]) -> Curves | None:
    """Draw the curves of one number, which are given by trial and environment steps; None without a finite value."""
    points = {
        number: [(step, value) for step, value in curve.items() if math.isfinite(value)]
        for number, curve in curves.items()
    }
    drawn, best = _select_trials(view, [trial for trial in view.trials if points.get(trial.number)])
    if not drawn:
        return None
    steps = max(step for trial in drawn for step, _ in points[trial.number])
    values = [value for trial in drawn for _, value in points[trial.number]]
    low, high = min(values), max(values)

    def place(step: int, value: float) -> tuple[float, float]:
        return round(WIDTH * step / max(steps, 1), 1), round(HEIGHT * _find_share(value, high, low), 1)

    images = []
    for trial in drawn:
        places = [place(*point) for point in _thin(points[trial.number])]
        text = " ".join(f"{x:g},{y:g}" for x, y in places)
        is_best = trial.number == best
        images.append(Curve(trial.number, view.winner_word if is_best else trial.state_word, is_best, text, places[-1]))
    return Curves(tuple(images), format_count(steps), format_objective(low), format_objective(high), label)


def _thin(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return at most about `MAX_POINTS` of a curve's points: the lowest and the highest of each part, and the last."""
    size = 2 * math.ceil(len(points) / MAX_POINTS)
    parts = [points[start : start + size] for start in range(0, len(points), size)] if size > 2 else []
    ends = [{find(part, key=lambda point: point[1]) for find in (min, max)} for part in parts]
    return sorted({point for each in ends for point in each} | {points[-1]}) if parts else [*points]


def draw_slices(view: SweepView) -> tuple[Slice, ...]:
    """Compute the places of the trials' scores along each searched parameter that differs between them."""
    scored = [trial for trial in view.trials if trial.score is not None and math.isfinite(trial.score)]
    drawn, best = _select_trials(view, scored)
    scores = [float(trial.score or 0.0) for trial in drawn]
    slices = []
    for dimension in build_space(view).dimensions if drawn else ():
        having = [(trial, score) for trial, score in zip(drawn, scores, strict=True) if dimension.name in trial.params]
        values = [trial.params[dimension.name] for trial, _ in having]
        places = _place_values(dimension, values)
        if len({*places}) < 2:
            continue
        dots = tuple(
            Dot(
                trial.number,
                view.winner_word if trial.number == best else trial.state_word,
                trial.number == best,
                (round(WIDTH * place, 1), round(HEIGHT * _find_share(score, max(scores), min(scores)), 1)),
                f"{dimension.name}={format_value(value)}, {view.label} {format_objective(score)}",
            )
            for (trial, score), value, place in zip(having, values, places, strict=True)
        )
        low, high = (format_value(values[places.index(end)]) for end in (min(places), max(places)))
        slices.append(Slice(dimension.name, low, high, dots))
    return tuple(slices)


def _place_values(dimension: Dimension, values: Sequence[Any]) -> list[float]:
    """Place values between 0 and 1 on the scale on which they are searched; others than numbers, by their order."""
    is_number = all(
        (isinstance(value, int) and not isinstance(value, bool)) or (isinstance(value, float) and math.isfinite(value))
        for value in values
    )
    if not is_number or dimension.kind == "choice":
        options = [*dimension.list_values(), *values] if dimension.kind == "choice" else [*values]
        distinct = [value for place, value in enumerate(options) if value not in options[:place] and value in values]
        quantities = [float(distinct.index(value)) for value in values]
    elif dimension.kind == "one_minus_loguniform" and max(values) < 1:
        quantities = [-math.log(1.0 - value) for value in values]
    else:
        is_log = min(values, default=0) > 0 and ("log" in dimension.kind or dimension.kind == "pow2")
        quantities = [math.log(value) if is_log else float(value) for value in values]
    low, high = min(quantities, default=0.0), max(quantities, default=0.0)
    return [_find_share(quantity, low, high) for quantity in quantities]


def _find_share(value: float, start: float, end: float) -> float:
    """Return how far a value lies between two ends, from 0 to 1, also where their difference would be infinite."""
    return (value / 2 - start / 2) / (end / 2 - start / 2 or 1.0)


def _select_trials(view: SweepView, trials: Sequence[TrialSnapshot]) -> tuple[list[TrialSnapshot], int | None]:
    """Select the trials that are drawn, with the best one last, and return its number."""
    best = view.winner_trial if view.winner else view.best.number if view.best else None
    drawn = [trial for trial in trials[-MAX_CURVES:] if trial.number != best]
    return drawn + [trial for trial in trials if trial.number == best], best
