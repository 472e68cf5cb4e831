"""Learning curves as coordinates."""

from __future__ import annotations

from pathlib import Path

from ended import write_sweep

from rltune.views.curves import HEIGHT, WIDTH, draw_curves
from rltune.views.sweep_view import load_view


def test_the_best_curve_reaches_the_corner_and_comes_last(tmp_path: Path) -> None:
    curves = draw_curves(load_view(write_sweep(tmp_path / "s", 4)))
    assert curves is not None
    assert [(curve.trial, curve.is_best) for curve in curves.curves] == [(0, False), (1, False), (2, False), (3, True)]
    assert curves.curves[-1].last == (WIDTH, 0.0)
    points = [tuple(map(float, pair.split(","))) for curve in curves.curves for pair in curve.points.split()]
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in points)
    assert 0.0 < curves.curves[0].last[0] < WIDTH, "a stopped trial's curve ends early"


def test_without_a_report_there_are_none(tmp_path: Path) -> None:
    assert draw_curves(load_view(write_sweep(tmp_path / "s", 0, None, "running"))) is None
