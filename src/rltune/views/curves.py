"""The learning curves of a sweep as coordinates of a small vector image, for pages that run no plotting library."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rltune.formatting import format_count
from rltune.views.sweep_view import SweepView, TrialSnapshot

WIDTH, HEIGHT = 720, 220  # Of the image's area for curves, in its own units; a page scales it.
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
    """The curves of a sweep, the best one last, and the ends of the axes in words."""

    curves: tuple[Curve, ...]
    x_end: str
    y_low: str
    y_high: str
    label: str


def draw_curves(view: SweepView) -> Curves | None:
    """Compute the curves' coordinates from the reports of the trials; None before the first report."""
    best = view.winner_trial if view.record.winner else view.best.number if view.best else None
    reported = [trial for trial in view.trials if _read_points(trial)]
    drawn = [trial for trial in reported[-MAX_CURVES:] if trial.number != best]
    drawn += [trial for trial in reported if trial.number == best]
    if not drawn:
        return None
    points = {trial.number: _read_points(trial) for trial in drawn}
    steps = max(step for each in points.values() for step, _ in each)
    values = [value for each in points.values() for _, value in each]
    low, high = min(values), max(values)
    height = (high - low) or 1.0

    def place(step: int, value: float) -> tuple[float, float]:
        return round(WIDTH * step / max(steps, 1), 1), round(HEIGHT * (high - value) / height, 1)

    curves = []
    for trial in drawn:
        places = [place(*point) for point in points[trial.number]]
        text = " ".join(f"{x:g},{y:g}" for x, y in places)
        is_best = trial.number == best
        curves.append(Curve(trial.number, view.winner_word if is_best else trial.state_word, is_best, text, places[-1]))
    return Curves(tuple(curves), format_count(steps), f"{low:.4g}", f"{high:.4g}", view.label)


def _read_points(trial: TrialSnapshot) -> list[tuple[int, float]]:
    return [(step, value) for step, value in trial.curve.items() if math.isfinite(value)]
