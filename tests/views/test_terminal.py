"""How sections are printed."""

from __future__ import annotations

import io
import sys
from contextlib import closing
from pathlib import Path

import pytest
from ended import make_certification, write_bounded, write_sweep
from rich.console import Console as RichConsole

from rltune.certification.description import COLUMNS
from rltune.formatting import TextTable
from rltune.ledger.storage import open_ledger
from rltune.views.console import Console
from rltune.views.page import Section
from rltune.views.terminal import open_console, print_sections
from tests.views.consoles import describe_ended, screen

MODEL = {
    "name": "cartpole-ppo",
    "version": "5",
    "uri": "models:/cartpole-ppo/5",
    "champion": True,
    "why": "a mean return of 195 is higher than the 190 of version 4 (sweep first)",
}


def test_the_end_of_a_certified_sweep(one_terminal, tmp_path, monkeypatch, golden):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("shutil.which", lambda program: str(Path(sys.executable).parent / program))
    folder = write_bounded(tmp_path / "s")
    (folder / "report").mkdir()
    (folder / "report" / "index.html").touch()
    record = make_certification(failed_seeds=(16,), trial=2)
    with closing(open_ledger(folder)) as ledger:
        for _ in range(2):
            number = ledger.trials.add({"lr": 0.1}, [1]).number
            ledger.trials.end(number, "FAIL", f"the pole broke at {number}")
        ledger.change_sweep(certification=record, model=MODEL, winner={"trial": 1, "objective": 90.0, "params": {}})
    out = io.StringIO()
    Console(out).close(describe_ended(folder, f"sqlite:///{tmp_path}/mlflow.db"))
    golden("closing_page", screen(out).replace(str(tmp_path), "<folder>"))


def test_a_log_that_a_page_shows_has_no_table(one_terminal, tmp_path):
    sections = describe_ended(write_sweep(tmp_path / "s", certified=make_certification()), None)
    titles = {section.title: bool(section.table) for section in sections}
    assert {*titles.values()} == {True, False}
    for has_tables in (True, False):
        out = io.StringIO()
        Console(out, has_tables=has_tables).close(sections)
        words = " ".join(screen(out).split())
        assert all((title in words) == (has_tables or not table) for title, table in titles.items())


@pytest.mark.parametrize("is_long", [False, True])
def test_only_what_is_copied_is_never_broken_over_lines(terminal, is_long):
    text = "/".join(["outputs"] * (20 if is_long else 3))
    notes = ["a sentence of many words " * 9]
    print_sections(open_console(terminal), [Section("s", "Title", facts=[("folder", text)], notes=notes)])
    lines = terminal.getvalue().splitlines()
    assert any(line.rstrip().endswith(text) for line in lines)
    assert sum("sentence" in line for line in lines) == 3


def test_a_table_fits_a_terminal_of_eighty_columns(terminal):
    wins = ("10 of 10, 9 needed", "+999.4", "1 of 10, up to 39%", "winner, better")
    row = ("trial 3", "-1,234", "-1,334 to -1,133", "-1,334", *wins)
    table = TextTable((*COLUMNS, "verdict"), (row,), 0)
    print_sections(open_console(terminal), [Section("certification", "Certified", table)])
    assert max(map(len, terminal.getvalue().splitlines())) <= 80


@pytest.mark.parametrize("width", [24, 30, 40, 60, 80, 120])
def test_no_number_of_a_table_is_broken_over_lines(width):
    row = ("trial 12", "complete, winner", "-292,321", "2.92e26", "lr=3.02e-4 gamma=0.9987 train_batch_size=[64,64]")
    reason = "stopped by the scheduler at 100,000 steps; see /outputs/a-long-name/trials/12/failure.txt"
    table = TextTable(("trial", "state", "score", "env steps", "values", "why"), ((*row, reason), (*row, "")), 0)
    out = RichConsole(file=io.StringIO(), width=width, highlight=False)
    print_sections(out, [Section("trials", "Trials", table)])
    lines = out.file.getvalue().splitlines()
    words = {word for line in lines for word in line.split()}
    assert {"12", "-292,321", "2.92e26", "100,000"} <= words
    assert {"lr=3.02e-4", "3.02e-4"} & words
    assert {"gamma=0.9987", "0.9987"} & words
    assert {"train_batch_size=[64,64]", "[64,64]"} & words or width <= len("train_batch_size=[64,64]")
    assert max(map(len, lines)) <= width


def test_a_sweep_of_ppo_has_a_table_at_eighty_columns():
    """The longest of its words, train_batch_size_per_learner=4096, may be broken before its number."""
    params = "lr=7.28e-4 gamma=0.982 train_batch_size_per_learner=4096 normalise=[observations,rewards]"
    rows = [("1", "complete, winner", "3.08e26", "4,096", params, "whole budget; from the algorithm's file")]
    out = RichConsole(file=io.StringIO(), width=80, highlight=False)
    headings = ("trial", "state", "score", "env steps", "values", "why it ended, or where it runs")
    print_sections(out, [Section("trials", "Trials", TextTable(headings, tuple(rows), 0))])
    heading, _, cells = out.file.getvalue().partition("4,096")
    assert "why" in heading
    assert "4096" in cells.split()
