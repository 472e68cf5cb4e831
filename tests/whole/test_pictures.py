"""The pictures of README and docs/: made by one script, and of today's columns."""

from __future__ import annotations

import html
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from ended import make_certification, write_sweep
from PIL import Image

from rltune.views.page import describe_sweep
from rltune.views.sweep_view import load_view
from tests.whole.test_readme import load_script

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]


def read_columns(picture: str) -> list[str]:
    """The headings of the tables that a picture shows, as the script has stored them in it."""
    with Image.open(ROOT / "docs" / picture) as image:
        return str(image.info["columns"]).split("|")


def read_terminal(picture: str) -> str:
    """The text of a terminal's picture."""
    texts = re.findall(r">([^<>]+)</text>", picture)
    return " ".join(html.unescape(text) for text in texts).replace("\xa0", " ")


def write_timed_sweep(folder: Path) -> Path:
    """A sweep whose trials took a second each, one by one."""
    write_sweep(folder, 12)
    with closing(sqlite3.connect(folder / "ledger.db")) as ledger, ledger:
        ledger.execute("UPDATE sweep_trials SET began_s = number, ended_s = number + 0.9")
        began = "SELECT began_s FROM sweep_trials WHERE sweep_trials.id = reports.trial_id"
        ledger.execute(f"UPDATE reports SET time_s = ({began}) + nominal_steps / 2000.0")
    return folder


def test_the_live_tables_picture_is_drawn_from_a_ledger(tmp_path: Path) -> None:
    picture = load_script("make_pictures").draw_live_table(write_timed_sweep(tmp_path / "s"), share=0.5)
    shown = read_terminal(picture)
    counts = re.search(r"(?:\d+ [a-z]+, )*\d+ [a-z]+ of 24", shown)  # a state that no trial is in is left out
    assert counts, shown
    assert 1 <= sum(int(count) for count in re.findall(r"\d+", counts[0].removesuffix(" of 24"))) < 12
    assert re.search(r"trial +\d+ stopped", shown)
    assert re.findall(r"url\(\W?http", picture) == []  # no font from a server


def test_the_terminals_picture_has_the_columns_of_today(tmp_path: Path) -> None:
    # At this share of the time a trial is at work.
    today = load_script("make_pictures").draw_live_table(write_timed_sweep(tmp_path / "s"), share=0.53)
    shown = (ROOT / "docs" / "live-table.svg").read_text()
    headings = [
        re.findall(r"\btrial +progress +[a-z ]+ params\b", read_terminal(picture)) for picture in (today, shown)
    ]
    columns, columns_shown = ([heading.split() for heading in each] for each in headings)
    assert columns == columns_shown
    assert len(columns) == 1


def test_pages_show_the_pictures_of_the_script_and_no_others() -> None:
    made = set(load_script("make_pictures").PICTURES)
    named = {name for page in PAGES for name in re.findall(r"\((?:docs/)?([\w-]+\.(?:png|svg))\)", page.read_text())}
    assert named == made
    assert {path.name for pattern in ("*.png", "*.svg") for path in (ROOT / "docs").glob(pattern)} == made


@pytest.mark.parametrize("picture", ["report.png", "report-dark.png", "service-sweep.png"])
def test_a_sweeps_picture_has_the_columns_of_today(picture: str, tmp_path: Path) -> None:
    view = load_view(write_sweep(tmp_path / "s", 12, make_certification()))
    tables = {section.name: section.table for section in describe_sweep(view, is_wide=True) if section.table}
    shown, today = read_columns(picture), tables["trials"].headings
    values = today.index("lr")  # Between the others there is a column for each value that differs.
    start = shown.index("trial")
    assert tuple(shown[start : start + values]) == today[:values]
    assert shown[shown.index(today[-1]) - 1] not in today, "the values end before the last column"
    if "certified" in shown:
        assert set(tables["certification"].headings) <= set(shown)


def test_the_list_of_sweeps_has_the_columns_of_today() -> None:
    template = (ROOT / "src" / "rltune" / "service" / "templates" / "list.html").read_text()
    assert read_columns("service-list.png") == re.findall(r'<th scope="col"[^>]*>([^<]+)', template)
