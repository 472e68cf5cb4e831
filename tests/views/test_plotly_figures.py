"""What a reader sees in the figures."""

from __future__ import annotations

import re
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from composing import compose
from ended import Trial, make_certification, write_bounded, write_sweep, write_trials
from ledger import add_reports

from rltune.config.settings_file import format_settings, redact_config
from rltune.config.validation import parse_config
from rltune.ledger.storage import open_ledger
from rltune.views.plotly_figures import DARK, draw_figures
from rltune.views.sweep_view import load_view

pytestmark = pytest.mark.slow  # Optuna and Plotly draw every page anew


def test_a_reader_tells_winner_stopped_and_failed_trials_apart(tmp_path: Path) -> None:
    folder = write_trials(
        tmp_path / "s", [("COMPLETE", 1e-3, [1.0, 2.0]), ("PRUNED", 2e-3, [3.0]), ("FAIL", 3e-3, [4.0])]
    )
    with closing(open_ledger(folder)) as ledger:
        ledger.change_sweep(winner={"trial": 0, "objective": 2.0, "params": {"lr": 1e-3}})
    drawn = draw_figures(load_view(folder))
    curves = {trace.name: trace.line.color for trace in drawn["curves"][0].data}
    assert list(curves) == ["failed", "stopped", "winner"]  # the winner is drawn last, on top
    assert len(set(curves.values())) == 3


SPACES = {
    "lr": ("[loguniform,1e-4,1e-2]", [1e-4, 1e-3, 1e-2]),
    "env.rewards.scale": ("[loguniform,0.01,1]", [0.01, 0.1, 1.0]),
    "minibatch_size": ("[pow2,32,128]", [32, 64, 128]),
    "fcnet_hiddens": ("[choice,[64,64],[256,256]]", [[64, 64], [256, 256], [64, 64]]),
}


@pytest.mark.parametrize(("name", "space", "values"), [(n, *rest) for n, rest in SPACES.items()], ids=SPACES)
def test_a_slice_has_each_trials_score_by_a_parameter(tmp_path: Path, name: str, space: str, values: list[Any]) -> None:
    folder = write_sweep(tmp_path / "s", 0)
    settings = format_settings(
        redact_config(parse_config(compose("run", "~tuned", "~space", f"+space.{name}={space}")))
    )
    with closing(open_ledger(folder)) as ledger:
        ledger.change_sweep(config=settings)
        for number, value in enumerate(values):
            ledger.trials.add({name: value}, [number], train_s=1.0)
            add_reports(ledger, number, {200: float(number)})
            ledger.trials.end(number, "COMPLETE", "")
    (figure,) = draw_figures(load_view(folder))["slices"]
    assert figure.layout.xaxis.title.text == name
    assert sorted(figure.data[0].y) == [0.0, 1.0, 2.0]


def test_nearly_equal_scores_are_drawn_as_equal(tmp_path: Path) -> None:
    trials: list[Trial] = [("COMPLETE", 1e-3, [499.5, 500.0]), ("COMPLETE", 3e-3, [500.5, 500.0])]
    drawn = draw_figures(load_view(write_trials(tmp_path / "near", trials)))
    for figure in drawn["curves"] + drawn["slices"]:
        low, high = figure.layout.yaxis.range
        assert high - low >= 50
    apart = draw_figures(load_view(write_sweep(tmp_path / "apart", 4)))
    assert apart["curves"][0].layout.yaxis.range is None


def test_names_and_values_of_parallel_axes_stand_apart(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "s", 0, None, "complete", "+space.minibatch_size=[pow2,32,1024]")
    with closing(open_ledger(folder)) as ledger:
        for number in range(6):
            params = {"minibatch_size": 2 ** (5 + number), "lr": 10 ** (-4 + number / 2.5)}
            ledger.trials.add(params, [number], train_s=1.0, drawn=params)
            add_reports(ledger, number, {200: float(number)})
            ledger.trials.end(number, "COMPLETE", "")
    (figure,) = draw_figures(load_view(folder))["parallel"]
    axes = {number: [note for note in figure.layout.annotations if note.x == number] for number in range(3)}
    assert list(figure.layout.xaxis.ticktext) == ["score", "lr", "minibatch_size"]
    assert [axes[number][0].text for number in (1, 2)] == ["0.0001", "32"], "each name above its own values"
    for notes in axes.values():
        places = [note.y for note in notes]
        assert min(high - low for low, high in pairwise(places)) > 0.04


def test_each_colour_of_a_figure_has_one_for_the_dark(tmp_path: Path) -> None:
    drawn = draw_figures(load_view(write_sweep(tmp_path / "s", 12, make_certification())))
    texts = [figure.to_plotly_json() for figures in drawn.values() for figure in figures]
    named = {
        colour
        for text in texts
        for colour in re.findall("#[0-9a-f]{6}", repr({**text, "layout": {**text["layout"], "template": None}}).lower())
    }
    assert named <= set(DARK)


def test_the_front_is_a_stair_over_the_trials_that_none_beats(tmp_path: Path) -> None:
    drawn = draw_figures(load_view(write_bounded(tmp_path / "s")))
    line, *groups = drawn["front"][0].data
    assert (line.mode, list(line.x), list(line.y)) == ("lines", [40.0, 50.0], [80.0, 90.0])
    assert [shape.x0 for shape in drawn["front"][0].layout.shapes] == [60.0], "the bound"
    points = {group.name: list(zip(group.x, group.y, strict=True)) for group in groups}
    assert points == {"complete": [(50.0, 90.0), (40.0, 80.0)], "breaks a constraint": [(80.0, 70.0), (75.25, 100.0)]}
    (broken,) = (group for group in groups if group.name == "breaks a constraint")
    assert "train_s=80, not < 60" in broken.text[0]
    assert "front" not in draw_figures(load_view(write_sweep(tmp_path / "other", 2)))
