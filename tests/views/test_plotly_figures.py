"""What a reader sees in the figures."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from composing import compose
from ended import write_bounded, write_sweep, write_trials
from ledger import add_reports

from rltune.config.settings_file import format_settings, redact_config
from rltune.config.validation import parse_config
from rltune.ledger.storage import open_ledger
from rltune.views.plotly_figures import draw_figures
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
