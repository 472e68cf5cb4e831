"""The report's page: what it shows of sweeps of every kind, that it stands alone, and that a real browser draws it."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from ended import (
    Trial,
    make_certification,
    write_bounded,
    write_cost_sweep,
    write_measured,
    write_sweep,
    write_trials,
)
from ledger import add_reports

from rltune.ledger.lease import take_lease
from rltune.ledger.storage import open_ledger
from rltune.views.html import PAGE, try_report, write_report
from tests.service.browser import open_browser

pytestmark = pytest.mark.slow  # Optuna and Plotly draw every page anew.


def page_of(folder: Path) -> str:
    """The page that a sweep's report is."""
    return (write_report(folder) / PAGE).read_text()


def figures_of(page: str) -> list[dict[str, Any]]:
    """What the page gives its script to draw."""
    return list(json.loads(re.findall(r'id="plots">(.*?)</script>', page, re.DOTALL)[0]))


def sections_of(page: str) -> dict[str, int]:
    """How many figures each section of the page has, by the section's id."""
    parts = re.findall(r'<section id="(\w+)">(.*?)</section>', page, re.DOTALL)
    return {name: part.count('class="plot"') for name, part in parts}


def rows_of(page: str, section: str) -> list[list[str]]:
    """The cells of a section's table."""
    body = re.findall(rf'<section id="{section}">.*?<tbody>(.*?)</tbody>', page, re.DOTALL)[0]
    return [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr.*?</tr>", body)]


def test_a_certified_sweep_has_a_row_for_each_configuration(tmp_path: Path) -> None:
    page = page_of(write_sweep(tmp_path / "s", 4, make_certification()))
    assert rows_of(page, "certification") == [
        ["trial 3", "99", "97 to 101", "97", "5 of 5, 5 needed", "+18", "0 of 5, up to 45%", "winner, better"],
        ["baseline", "81", "79 to 83", "79", "-", "-", "0 of 5, up to 45%", ""],
    ]
    assert re.findall(r'class="best"><th scope="row"[^>]*>([^<]+)', page) == ["trial 3"]
    assert sections_of(page) == {
        **{"certification": 1, "curves": 1, "values": 0, "importance": 0},
        **{"slices": 1, "parallel": 1, "cost": 0, "files": 0, "commands": 0, "trials": 0},
    }


def test_a_cost_is_shown_as_the_person_knows_it(tmp_path: Path) -> None:
    """Inside it is searched for as a negative; trial 3 spends least."""
    page = page_of(write_cost_sweep(tmp_path / "s"))
    assert rows_of(page, "trials")[0][:3] == ["3", "complete", "24"]
    values = [value for figure in figures_of(page) for trace in figure["data"] for value in _find_values(trace)]
    assert {24.0, 72.0, 99.0} <= set(values)
    assert min(value for value in values if isinstance(value, float | int)) > -24


def _find_values(trace: dict[str, Any]) -> list[Any]:
    """The values of a figure's axes; an array may be packed."""
    columns = [trace.get(axis) for axis in ("x", "y")] + [one.get("values") for one in trace.get("dimensions", ())]
    return [value for values in columns if isinstance(values, list) for value in values]


def test_failed_seeds_are_counted(tmp_path: Path) -> None:
    record = make_certification(per_seed=(), failed_seeds=(11, 12, 13, 14, 15), trial=2)
    (_, row) = rows_of(page_of(write_sweep(tmp_path / "s", 3, record)), "certification")
    assert row[:3] == ["trial 2 = baseline", "-", "-"]
    assert row[6] == "5 of 5, up to 100%"


def test_what_stands_out_from_chance_is_drawn(tmp_path: Path) -> None:
    page = page_of(write_sweep(tmp_path / "s", 40))
    assert sections_of(page)["importance"] == 1
    (bars,) = [trace for figure in figures_of(page) for trace in figure["data"] if trace.get("orientation") == "h"]
    assert bars["y"] == ["lr"]


@pytest.mark.parametrize(("trials", "status"), [(0, "interrupted"), (1, "interrupted"), (2, "running")])
def test_a_sweep_that_hardly_began_has_a_report_too(tmp_path: Path, trials: int, status: str) -> None:
    page = page_of(write_sweep(tmp_path / "s", trials, status=status))
    assert f'<span id="status">{status}</span>' in page
    assert len(rows_of(page, "trials") if trials else []) == trials
    assert "sweeps.resume sweep=s" in page


def test_a_report_is_written_in_the_middle_of_a_sweep(tmp_path: Path) -> None:
    """From another process, while the driver holds the sweep and its ledger, and writes on."""
    folder = write_sweep(tmp_path / "s", 2, status="running")

    with closing(open_ledger(folder)) as ledger, take_lease(ledger):
        number = ledger.trials.add({"lr": 1e-3}, [1]).number
        add_reports(ledger, number, {200: 1.0})
        command = [sys.executable, "-m", "sweeps.report", "sweep=s", f"output_dir={tmp_path}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
        assert (done.returncode, done.stdout.strip()) == (0, str(folder / "report" / PAGE)), done.stderr
        page = (folder / "report" / PAGE).read_text()
        assert '<span id="status">running</span>' in page
        assert [row[1:4] for row in rows_of(page, "trials") if row[0] == "2"] == [["running", "1", "200"]]
        add_reports(ledger, number, {400: 7.0})
        assert [row[1:4] for row in rows_of(page_of(folder), "trials") if row[0] == "2"] == [["running", "7", "400"]]
        assert ledger.sweep().status == "running"


FEW = {"curves": 1}
ALL = {**FEW, "slices": 1, "parallel": 1}
AWKWARD: dict[str, tuple[list[Trial], dict[str, int]]] = {
    "one trial": ([("COMPLETE", 1e-3, [1.0, 2.0])], FEW),
    "nothing but failures": ([("FAIL", 1e-3, []), ("FAIL", 2e-3, [])], {}),
    "nan and infinity": ([("PRUNED", 1e-3, [math.nan, math.inf])] * 12, {"curves": 1}),
    "one value": ([("COMPLETE", 1e-3, [1.0 * n]) for n in range(12)], FEW),
    "one return": ([("COMPLETE", 1e-3 * n, [5.0]) for n in range(1, 10)] * 2, ALL),
    "all stopped": ([("PRUNED", 1e-3, [1.0, math.nan]), ("PRUNED", 2e-3, [3.0])], ALL),
    "outside the space": ([("COMPLETE", 0.5, [1.0]), ("COMPLETE", 1e-5, [2.0])], FEW),
}


@pytest.mark.parametrize(("trials", "drawn"), AWKWARD.values(), ids=AWKWARD)
def test_what_cannot_be_drawn_is_left_out(tmp_path: Path, trials: list[Trial], drawn: dict[str, int]) -> None:
    page = page_of(write_trials(tmp_path / "s", trials))
    assert {name: count for name, count in sections_of(page).items() if count} == drawn
    assert len(figures_of(page)) == sum(drawn.values())


def test_a_report_that_fails_is_a_note_and_no_error(tmp_path: Path) -> None:
    notes: list[str] = []
    assert try_report(tmp_path / "nothing", None, notes.append) is None
    assert len(notes) == 1


SWALLOWS = "<!--<script>"  # After this a browser reads on to the end of the page.


def write_swallowing_sweep(folder: Path) -> Path:
    """A sweep whose name and two of whose values would end its page."""
    write_sweep(folder, 4, make_certification())
    settings = (folder / "config.yaml").read_text().replace("id: CartPole-v1", "id: </script><b>x")
    with closing(open_ledger(folder)) as ledger:
        ledger.change_sweep(config=settings)
    with closing(open_ledger(folder)) as ledger:
        for place, value in enumerate((SWALLOWS, "</script>", SWALLOWS, "relu")):
            number = ledger.trials.add({"lr": 1e-3 * (place + 1), "activation": value}, [7]).number
            add_reports(ledger, number, {200: float(place), 1000: 2.0 * place})
            ledger.trials.end(number, "COMPLETE", "")
    return folder


def test_a_value_that_looks_like_markup_stays_text(tmp_path: Path) -> None:
    page = page_of(write_swallowing_sweep(tmp_path / "s"))
    (plots,) = re.findall(r'id="plots">(.*?)</script>', page, re.DOTALL)
    assert "<" not in plots
    assert SWALLOWS in json.dumps(json.loads(plots))
    assert "<b>x" not in page


def test_a_browser_draws_every_figure_without_errors_or_requests(tmp_path: Path) -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not chromium:
        pytest.skip("no Chromium on this machine: apt install chromium")
    folder = write_report(write_swallowing_sweep(tmp_path / "s"))
    flags = ("--headless", "--no-sandbox", "--disable-background-networking", "--enable-logging=stderr", "--dump-dom")
    flags = (*flags, f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1280,900")
    page = (folder / PAGE).as_uri()
    done = subprocess.run([chromium, *flags, page], capture_output=True, text=True, timeout=120, check=False)
    # The page's policy forbids every request, and a browser names a forbidden one in its console.
    assert "default-src 'none'" in done.stdout
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line and "WebGL" not in line] == []
    wanted = len(figures_of(done.stdout))
    assert 'data-drawn="yes"' in done.stdout
    drawn = [tag for tag in re.findall(r"<[^>]*js-plotly-plot[^>]*>", done.stdout) if re.search(r'id="plot\d+"', tag)]
    assert wanted == len(drawn) == 4


def test_a_reader_sorts_the_trials_and_reads_in_the_dark(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "s", 20, make_certification())
    with closing(open_ledger(folder)) as ledger:
        ledger.change_sweep(winner={"trial": 12, "objective": 120.0, "params": {"lr": 0.002}})
    page = (write_report(folder) / PAGE).as_uri()
    rows = "[...document.querySelectorAll('#trials tbody tr')]"
    numbers = f"{rows}.filter(row => row.offsetHeight).map(row => row.cells[0].textContent)"
    ink = "getComputedStyle(document.querySelector('.xtick text')).fill"
    score = "#trials thead th:nth-child(3) button"
    with open_browser(tmp_path / "profile") as browser:
        browser.resize(400)
        browser.open(page)
        browser.wait("document.body.dataset.drawn")
        assert browser.run("document.documentElement.scrollWidth") <= 400
        assert not browser.run("document.querySelector('#slices details').open"), "folded on a phone"
        browser.resize(1400)
        browser.open(f"{page}?wide")
        browser.wait("document.body.dataset.drawn && document.querySelector('#slices details').open")
        as_written = ["19", "18", "17", "16", "15", "12"]
        assert browser.run(numbers) == as_written, "the first five and the winner"
        browser.click(score)
        browser.click(score)
        assert browser.run(numbers) == ["0", "1", "2", "3", "4", "12"], "the lowest score first"
        browser.click(score)
        assert browser.run(numbers) == as_written
        light = browser.run(ink)
        browser.prefer("dark")
        browser.wait(f"{ink} !== {light!r}")
        assert browser.complaints == []


def test_two_objectives_have_a_section_of_their_own(tmp_path: Path) -> None:
    page = page_of(write_bounded(tmp_path / "s"))
    assert sections_of(page)["front"] == 1
    (reason,) = [row[-1] for row in rows_of(page, "trials") if row[0] == "0"]
    assert "train_s=75.25, " in reason


def test_each_own_metric_has_a_figure_below_the_scores(tmp_path: Path) -> None:
    page = page_of(write_measured(tmp_path / "s"))
    assert sections_of(page)["curves"] == 3
    titles = [figure["layout"]["yaxis"].get("title", {}).get("text") for figure in figures_of(page)]
    assert titles[:3] == ["mean return", "mean is_success", "mean a/energy"]
    _, success, energy = figures_of(page)[:3]
    names = [trace["name"] for trace in success["data"]]
    assert (len(names), names[-1]) == (4, "complete")
    assert success["data"][-1]["y"] == pytest.approx([0.008, 0.016, 0.024, 0.032, 0.04])
    assert len(energy["data"]) == 3


def test_an_environments_argument_is_shown_by_its_name(tmp_path: Path) -> None:
    name = "env.rewards.scale"
    folder = write_sweep(tmp_path / "s", 0, None, "complete", f"+space.{name}=[loguniform,0.01,1]")
    with closing(open_ledger(folder)) as ledger:
        for number in range(12):
            params = {"lr": 10 ** (-4 + number / 6), name: 10 ** (-2 + (5 * number % 12) / 6)}
            ledger.trials.add(params, [number], train_s=1.0, drawn=params)
            add_reports(ledger, number, {200 * place: 10.0 * params[name] * place for place in range(1, 6)})
            ledger.trials.end(number, "COMPLETE", "")
    page = page_of(folder)
    assert ["lr", name] == [row[0] for row in rows_of(page, "values")]
    assert rows_of(page, "values")[1][2] == "1"
    assert "with the environment&#39;s settings" in page
    axes = json.dumps(figures_of(page))
    assert axes.count(f'"{name}"') >= 2, "in a slice and among the parallel axes"
    assert sections_of(page)["slices"] == 2
