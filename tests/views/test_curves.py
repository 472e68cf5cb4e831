"""Learning curves and scores by value as coordinates."""

from __future__ import annotations

import math
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ended import write_measured, write_sweep
from ledger import add_reports

from rltune.ledger.storage import open_ledger
from rltune.records import Report
from rltune.views.curves import HEIGHT, WIDTH, draw_curves, draw_slices
from rltune.views.sweep_view import load_view


def test_the_best_curve_reaches_the_corner_and_comes_last(tmp_path: Path) -> None:
    (curves,) = draw_curves(load_view(write_sweep(tmp_path / "s", 4)))
    assert [(curve.trial, curve.is_best) for curve in curves.curves] == [(0, False), (1, False), (2, False), (3, True)]
    assert curves.curves[-1].last == (WIDTH, 0.0)
    points = [tuple(map(float, pair.split(","))) for curve in curves.curves for pair in curve.points.split()]
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in points)
    assert 0.0 < curves.curves[0].last[0] < WIDTH, "a stopped trial's curve ends early"


def test_without_a_report_there_are_none(tmp_path: Path) -> None:
    assert draw_curves(load_view(write_sweep(tmp_path / "s", 0, None, "running"))) == ()


def test_each_own_metric_has_curves_beside_the_scores(tmp_path: Path) -> None:
    score, success, energy = draw_curves(load_view(write_measured(tmp_path / "s", 4)))
    assert [image.label for image in (score, success, energy)] == ["return", "is_success", "a/energy"]
    assert [curve.trial for curve in success.curves] == [0, 1, 2, 3]
    assert (success.y_low, success.y_high, success.x_end) == ("0.002", "0.04", "1,000")
    assert success.curves[-1].is_best
    assert success.curves[-1].last == (WIDTH, 0.0)
    assert [(curve.trial, curve.is_best) for curve in energy.curves] == [(0, False), (1, False), (2, False)]
    assert (energy.y_low, energy.y_high) == ("38", "40")


def test_scores_lie_along_the_scale_of_each_parameter(tmp_path: Path) -> None:
    (by_lr,) = draw_slices(load_view(write_sweep(tmp_path / "s", 3)))
    assert (by_lr.name, by_lr.low, by_lr.high) == ("lr", "1e-4", "0.01")
    assert [(dot.trial, dot.place) for dot in by_lr.dots] == [
        (0, (0.0, HEIGHT)), (1, (WIDTH / 2, HEIGHT / 2)), (2, (WIDTH, 0.0)),
    ]  # fmt: skip
    assert by_lr.dots[-1].is_best


def test_values_of_any_kind_have_a_place(tmp_path: Path) -> None:
    """Also those of a trial that lacks a parameter, and one that is the same in all trials is left out."""
    words = (
        "+space.net=[choice,[64,64],null,relu]", "+space.batch=[pow2,64,256]",
        "+space.gamma=[one_minus_loguniform,0.001,0.1]",
    )  # fmt: skip
    folder = write_sweep(tmp_path / "s", 0, None, "complete", *words)
    given: list[dict[str, Any]] = [
        {"lr": 1e-3, "net": "relu", "batch": 64, "gamma": 0.9},
        {"lr": 1e-3, "net": [64, 64], "batch": 128, "gamma": 0.99},
        {"lr": 1e-3, "net": None, "batch": 256, "gamma": 0.999},
        {"lr": 1e-3},
    ]
    with closing(open_ledger(folder)) as ledger:
        for number, params in enumerate(given):
            ledger.trials.add(params, [number])
            add_reports(ledger, number, {1000: float(number)})
            ledger.trials.end(number, "COMPLETE", "")
    slices = {each.name: [dot.place[0] / WIDTH for dot in each.dots] for each in draw_slices(load_view(folder))}
    assert slices == {"net": [1.0, 0.0, 0.5], "batch": [0.0, 0.5, 1.0], "gamma": [0.0, 0.5, 1.0]}


@pytest.mark.parametrize("scores", [(1.7e308, -1.7e308), (5.0, 5.0), (-1e-300, -2e-300), (0.0, 1e308)])
@pytest.mark.parametrize(
    "rates", [(math.inf, 1e-3), (math.nan, 1e-3), (-math.inf, math.inf), (-1.7e308, 1.7e308), (0, 1e-3)]
)
def test_every_curve_and_dot_has_a_place_in_its_image(
    tmp_path: Path, scores: tuple[float, float], rates: tuple[float, float]
) -> None:
    folder = write_sweep(tmp_path / "s", 0, None, "running")
    with closing(open_ledger(folder)) as ledger:
        for number, (score, rate) in enumerate(zip(scores, rates, strict=True)):
            ledger.trials.add({"lr": rate}, [number])
            add_reports(ledger, number, dict.fromkeys((800, 1000), score))
            ledger.trials.end(number, "COMPLETE", "")
    view = load_view(folder)
    (curves,) = draw_curves(view)
    assert [len(curve.points.split()) for curve in curves.curves] == [2, 2]
    places = [tuple(map(float, pair.split(","))) for curve in curves.curves for pair in curve.points.split()]
    places += [dot.place for each in draw_slices(view) for dot in each.dots]
    assert len(places) == 6
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in places)


def test_a_long_curve_keeps_its_ends_and_its_peaks(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "s", 0, None, "running")
    reports = {step: 0.001 * step for step in range(1, 5001)} | {2500: 90.0, 2600: -90.0}
    with closing(open_ledger(folder)) as ledger:
        trial = ledger.trials.add({"lr": 1e-3}, [0])
        ledger.trials.add_report(Report(trial.number, 5000, 5.0, {"score": 5.0}))
        trial = replace(ledger.trials.record(0), reports=reports)
    view = load_view(folder)
    (curves,) = draw_curves(replace(view, trials=(replace(view.trials[0], record=trial),)))
    places = [tuple(map(float, pair.split(","))) for pair in curves.curves[0].points.split()]
    assert WIDTH / 2 < len(places) <= WIDTH + 2
    assert {y for _, y in places} >= {0.0, float(HEIGHT)}
    assert [x for x, _ in places] == sorted(x for x, _ in places)
    assert curves.curves[0].last == places[-1]
    assert places[-1][0] == WIDTH
