"""How a sweep is drawn on a terminal and on any other stream."""

from __future__ import annotations

import io
import logging
import math
import re

import pytest

from rltune.ledger.sweep_folder import SWEEP_LOGGER
from rltune.views.console import Console
from rltune.views.page import Section
from rltune.views.sweep_view import Episodes
from tests.views.consoles import Terminal, screen


def list_progress(out: io.StringIO) -> list[str]:
    """The clocks of the lines that say how far the sweep is."""
    return [line[:7] for line in out.getvalue().splitlines() if line.startswith("[")]


def test_the_table_on_a_terminal(draw, golden):
    sweep = draw(Terminal(), trials=12)
    sweep.report(sweep.begin(), 100_000, 490.0)
    sweep.end(0, "COMPLETE")
    sweep.draw()
    for number in range(1, 4):
        sweep.begin({"lr": 10.0**-number, "layers": [256, 256]})
    sweep.draw()
    sweep.report(1, 45_000, 123.456)
    sweep.report(2, 20_000, math.nan)
    sweep.end(3, "FAIL", "the loss is not finite\nTraceback ...")
    sweep.draw(10.0, slots=3)
    sweep.console.note("MLflow does not answer")
    sweep.draw(5.0)
    golden("console", screen(sweep.out)[screen(sweep.out).rindex("\n2 running") :].lstrip())


def test_a_plain_stream_gets_one_line_every_fifteen_seconds(draw):
    sweep = draw()
    sweep.begin()
    sweep.draw()
    sweep.draw_steps(61, 400)
    assert list_progress(sweep.out) == ["[00:01]", "[00:16]", "[00:31]", "[00:46]", "[01:01]"], (
        "from the first steps on"
    )
    assert "\x1b" not in sweep.out.getvalue()


def test_a_plain_line_that_says_nothing_new_is_left_out(draw):
    sweep = draw()
    sweep.draw()
    for _ in range(400):
        sweep.draw(1.0, wait="waiting for 2 CPUs")
    assert list_progress(sweep.out) == ["[00:01]", "[05:01]"]


@pytest.mark.parametrize("is_watched", [False, True])
def test_episodes_are_shown_as_soon_as_they_are_played(draw, is_watched):
    sweep = draw(Terminal() if is_watched else None)
    sweep.draw()
    sweep.draw(0.1, episodes=Episodes("the best play", 0, 200))
    assert "0 of 200 episodes" in screen(sweep.out)


def test_the_log_has_all_lines_but_those_of_the_progress(draw, tmp_path):
    handler = logging.FileHandler(tmp_path / "sweep.log")
    logging.getLogger(SWEEP_LOGGER).addHandler(handler)
    sweep = draw()
    sweep.begin()
    sweep.draw()
    sweep.end(0, "PRUNED")
    sweep.draw(60.0)
    sweep.console.note("a note")
    logging.getLogger(SWEEP_LOGGER).removeHandler(handler)
    handler.close()
    logged = (tmp_path / "sweep.log").read_text().splitlines()
    printed = sweep.out.getvalue().splitlines()
    assert [line for line in printed if line not in logged] == [line for line in printed if line.startswith("[")] != []
    assert "a note" in logged


def test_lines_with_long_values_fit_eighty_columns(draw):
    sweep = draw(Terminal())
    sweep.begin({"lr": 0.00123, "rl_module.model_config.fcnet_hiddens": [256, 256], "x": "y" * 90})
    sweep.report(0, 45_000, 123.456)
    sweep.draw()
    sweep.end(0, "RUNNING")
    sweep.draw(2.0)
    lines = screen(sweep.out).splitlines()
    assert max(len(line.rstrip()) for line in lines if not line.startswith("sweep ")) == 80
    assert "…" in screen(sweep.out)


def test_a_file_gets_whole_lines(draw):
    sweep = draw()
    sweep.begin({"lr": 0.1, "layers": [64] * 30})
    sweep.draw()
    sweep.end(0, "PRUNED")
    sweep.draw()
    assert max(map(len, sweep.out.getvalue().splitlines())) > 100
    assert "…" not in sweep.out.getvalue()


def test_running_trials_beyond_the_terminals_lines_are_counted(draw):
    sweep = draw(Terminal(), trials=64)
    for _ in range(64):
        sweep.begin()
    sweep.draw()
    assert re.search(r"and \d\d more", screen(sweep.out))
    assert "\n   63" not in screen(sweep.out)


def test_closing_gives_the_terminal_its_cursor_back(draw):
    sweep = draw(Terminal())
    sweep.draw()
    assert "\x1b[?25l" in sweep.out.getvalue()
    sweep.console.close()
    sweep.console.close()
    assert sweep.out.getvalue().rindex("\x1b[?25h") > sweep.out.getvalue().rindex("\x1b[?25l")
    closed = sweep.out.getvalue()
    sweep.draw(60.0)
    assert sweep.out.getvalue() == closed, "it draws no more"


def test_an_older_view_is_not_drawn(draw):
    """As of a thread that has read it before the one that has drawn last."""
    sweep = draw()
    sweep.begin()
    older = sweep.draw()
    sweep.end(0, "PRUNED")
    newest = sweep.draw(1.0)
    for view in (older, newest):
        sweep.console.draw(view)
    assert sweep.out.getvalue().count("trial   0 stopped") == 1


@pytest.mark.parametrize(("name", "value", "stream"), [("TERM", "dumb", Terminal), ("FORCE_COLOR", "1", io.StringIO)])
def test_what_is_no_real_terminal_gets_plain_lines(draw, monkeypatch, name, value, stream):
    monkeypatch.setenv(name, value)
    sweep = draw(stream())
    sweep.draw()
    sweep.draw(16.0)
    assert list_progress(sweep.out) == ["[00:16]"]
    assert "\x1b[?25l" not in sweep.out.getvalue()


def test_a_stream_that_shows_progress_gets_it_apart(draw):
    """As a notebook's cell, where one line is replaced again and again."""
    lines = []

    class Cell(io.StringIO):
        def show_progress(self, text: str) -> None:
            lines.append(text)

    sweep = draw(Cell())
    sweep.draw()
    for _ in range(3):
        sweep.begin()
        sweep.draw(1.0)
    assert [line[:7] for line in lines] == ["[00:01]", "[00:02]", "[00:03]"]
    assert list_progress(sweep.out) == []


def test_passwords_are_hidden_and_brackets_are_kept(one_terminal, stream):
    console = Console(stream)
    console.note("no answer from https://ada:lovelace@mlflow.example: [bold]1e-3[/bold] :smile:")
    console.close([Section("next", "Next", facts=[("compare", "open https://ada:lovelace@mlflow.example")])])
    assert "lovelace" not in stream.getvalue()
    assert stream.getvalue().count("https://***@mlflow.example") == 2
    assert "[bold]1e-3[/bold] :smile:" in stream.getvalue()


def test_a_closed_pipe_does_not_reach_the_driver(draw):
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    sweep = draw(Broken())
    sweep.draw()
    sweep.begin()
    sweep.draw(20.0)
    sweep.console.note("a note")
    sweep.console.close([Section("next", "Next")])
