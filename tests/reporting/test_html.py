"""The report's page: what it says of sweeps of every kind, that it stands alone, and that a real browser draws it."""

from __future__ import annotations

import html
import json
import math
import re
import shutil
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from ended import Trial, make_certification, write_bounded, write_cost_sweep, write_sweep, write_trials
from ledger import add_reports

from rltune.reporting.html import PAGE, try_report, write_report
from rltune.study.storage import open_ledger

pytestmark = pytest.mark.slow  # Optuna and Plotly draw every page anew


def page_of(folder: Path) -> str:
    """The page that a sweep's report is."""
    return (write_report(folder) / PAGE).read_text()


def figures_of(page: str) -> list[dict[str, Any]]:
    """What the page gives its script to draw."""
    return list(json.loads(re.findall(r'id="plots">(.*?)</script>', page, re.DOTALL)[0]))


def text_of(page: str) -> str:
    """What a reader sees, figures aside."""
    words = re.sub(r"<[^>]+>", " ", re.sub(r"<(script|style).*?</\1>", "", page, flags=re.DOTALL))
    return re.sub(r"\s+", " ", html.unescape(words))


def test_a_certified_sweep_names_winner_control_and_ties(tmp_path: Path) -> None:
    said = text_of(page_of(write_sweep(tmp_path / "s", certified=make_certification(("baseline",)))))
    assert "Trial 3 wins with a return of 99 (95% interval 95 to 103) over 5 fresh seeds" in said
    assert "the baseline's is 81 (95% interval 70 to 90)" in said
    assert "with probability 0.97" in said
    assert "tie with baseline" in said


def test_a_cost_is_shown_as_the_person_knows_it(tmp_path: Path) -> None:
    """Inside it is searched for as a negative; trial 3 spends least."""
    page = page_of(write_cost_sweep(tmp_path / "s"))
    said = text_of(page)
    assert "Trial 3 wins with a energy of 99 (95% interval 95 to 103) over 5 fresh seeds" in said
    assert "the baseline's is 81 (95% interval 70 to 90)" in said
    assert "energy (less is better)" in said
    assert re.findall(r"<th>3</th><td>complete</td><td>24</td>", page)
    assert not re.search(r"(?<![\w.])-(24|36|48|72|81|9\d)\b", said)
    values = [value for figure in figures_of(page) for trace in figure["data"] for value in _find_values(trace)]
    assert {24.0, 72.0, 99.0} <= set(values)
    assert min(value for value in values if isinstance(value, float | int)) > -24


def _find_values(trace: dict[str, Any]) -> list[Any]:
    """The values of a figure's axes; an array may be packed."""
    found = [trace.get(axis) for axis in ("x", "y")] + [one.get("values") for one in trace.get("dimensions", ())]
    return [value for values in found if isinstance(values, list) for value in values]


def test_a_trial_that_is_the_control_is_no_rival_of_it(tmp_path: Path) -> None:
    record = make_certification() | {"winner": "baseline", "seeds": [11, 12, 13]}
    record["configurations"][1] |= {"trial": 4}
    page = page_of(write_sweep(tmp_path / "s", certified=record))
    said = text_of(page)
    assert "The published settings stand: nothing that the search found is better" in said
    assert "They are the values of trial 4 and reach a return of 81" in said
    assert re.search(r"<tr class=best><th>trial 4 = baseline</th>", page)
    assert "seeds are too few for an interval" in said


def test_too_many_failed_seeds_have_no_interval_and_are_told(tmp_path: Path) -> None:
    record = make_certification()
    baseline = record["configurations"][1]
    baseline |= {"per_seed": baseline["per_seed"][:3], "failed_seeds": [14, 15], "failed_score": 70.0}
    baseline |= {"low": None, "high": None}
    page = page_of(write_sweep(tmp_path / "s", certified=record))
    said = text_of(page)
    assert "the baseline's is 81. A run" in said
    assert "2 of 5 seeds of baseline failed, which counts against it." in said
    assert "A failed seed counts as the lowest result of all runs" in said
    assert "<th>baseline</th><td>81</td><td>-</td>" in page


def test_what_mattered_is_told_with_its_intervals(tmp_path: Path) -> None:
    page = page_of(write_sweep(tmp_path / "s"))
    said = text_of(page)
    assert re.search(r"lr explains \d+% \(\d+ to \d+%\) of the differences between trials", said)
    assert "From 12 trials, each as far as it was trained, for scores at 1,000 environment steps." in said
    assert re.search(r"How sensitive the winner is winner instead score falls by .* lr 0.01 0.00631 \d", said)
    (bars,) = [trace for figure in figures_of(page) for trace in figure["data"] if trace.get("orientation") == "h"]
    assert bars["y"][0].startswith("lr ")
    assert bars["error_x"]["array"]


@pytest.mark.parametrize(("trials", "status"), [(0, "interrupted"), (1, "interrupted"), (2, "running")])
def test_a_sweep_that_hardly_began_has_a_report_too(tmp_path: Path, trials: int, status: str) -> None:
    said = text_of(page_of(write_sweep(tmp_path / "s", trials, status=status)))
    assert f"after {trials} of 24 trials" in said
    assert "python -m sweeps.resume sweep=s" in said


NOTHING = "There are none before two trials have returns and differ in a parameter."


FEW = {"curves", "best", "cost"}


ALL = {"curves", "best", "cost", "slices", "parallel"}


AWKWARD: dict[str, tuple[list[Trial], set[str], str]] = {
    "one trial": ([("COMPLETE", 1e-3, [1.0, 2.0])], FEW, NOTHING),
    "nothing but failures": ([("FAIL", 1e-3, []), ("FAIL", 2e-3, [])], {"cost"}, NOTHING),
    "nan and infinity": ([("PRUNED", 1e-3, [math.nan, math.inf])] * 12, {"curves", "cost"}, "0 have a score"),
    "one value": ([("COMPLETE", 1e-3, [1.0 * n]) for n in range(12)], FEW, NOTHING),
    "one return": ([("COMPLETE", 1e-3 * n, [5.0]) for n in range(1, 10)] * 2, ALL, ""),
    "all stopped": (
        [("PRUNED", 1e-3, [1.0, math.nan]), ("PRUNED", 2e-3, [3.0])],
        ALL,
        "2 have a score",
    ),
    "outside the space": ([("COMPLETE", 0.5, [1.0]), ("COMPLETE", 1e-5, [2.0])], FEW, NOTHING),
}


@pytest.mark.parametrize(("trials", "pictures", "reason"), AWKWARD.values(), ids=AWKWARD)
def test_what_cannot_be_drawn_is_left_out_with_a_reason(
    tmp_path: Path, trials: list[Trial], pictures: set[str], reason: str
) -> None:
    page = page_of(write_trials(tmp_path / "s", trials))
    drawn = {path.stem for path in (tmp_path / "s" / "report").glob("*.png")} - {"importance"}
    assert drawn == pictures
    assert reason in text_of(page)
    assert len(figures_of(page)) >= len(pictures)


def test_a_report_that_fails_is_a_note_and_no_error(tmp_path: Path) -> None:
    said: list[str] = []
    assert try_report(tmp_path / "nothing", None, said.append) is None
    assert "no report could be made (StudyError" in said[0]


def test_a_name_that_looks_like_markup_stays_text(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "s", 1)
    settings = (folder / "config.yaml").read_text().replace("id: CartPole-v1", "id: </script><b>x")
    (folder / "config.yaml").write_text(settings)
    assert "<b>x" not in page_of(folder)


def browser() -> str:
    """Chromium's command."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not found:
        pytest.skip("no Chromium on this machine: apt install chromium")
    return found


SWALLOWS = "<!--<script>"  # after which a browser reads on to the end of the page


def write_swallowing_sweep(folder: Path) -> Path:
    """A sweep two of whose values would end its page."""
    write_sweep(folder, certified=make_certification())
    with closing(open_ledger(folder)) as ledger:
        for place, value in enumerate((SWALLOWS, "</script>", SWALLOWS, "relu")):
            number = ledger.trials.add({"lr": 1e-3 * (place + 1), "activation": value}, [7]).number
            add_reports(ledger, number, {200: float(place), 1000: 2.0 * place})
            ledger.trials.end(number, "COMPLETE", "")
    return folder


def test_a_value_that_opens_a_comment_swallows_no_page(tmp_path: Path) -> None:
    page = page_of(write_swallowing_sweep(tmp_path / "s"))
    (plots,) = re.findall(r'id="plots">(.*?)</script>', page, re.DOTALL)
    assert "<" not in plots
    assert SWALLOWS in json.dumps(json.loads(plots))


def test_a_browser_draws_every_figure_without_errors_or_requests(tmp_path: Path) -> None:
    chromium = browser()
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
    assert (
        wanted == len(re.findall(r'id="plot\d+" [^>]*js-plotly-plot|js-plotly-plot[^>]* id="plot\d+"', done.stdout)) > 6
    )


def test_two_objectives_have_a_section_of_their_own(tmp_path: Path) -> None:
    page = text_of(page_of(write_bounded(tmp_path / "s")))
    assert "Two objectives" in page
    assert "the complete trials that no other one beats in both: trial 1, trial 2." in page
    assert "train_s=75.25, not < 60; whole" in page
    assert (tmp_path / "s" / "report" / "front.png").stat().st_size > 10_000
