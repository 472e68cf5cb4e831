"""The page of a sweep that runs: it is written in time, once at a time, and never in the way of the sweep."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from consoles import Clock
from ended import write_sweep
from ledger import add_reports

from rltune.reporting import html
from rltune.reporting.live_report import EVERY_S, LiveReport
from rltune.study.ledger import Ledger
from rltune.study.storage import open_ledger


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """That of a sweep that has begun."""
    with closing(open_ledger(write_sweep(tmp_path / "s", 0, status="running"))) as ledger:
        yield ledger


@pytest.fixture
def live(ledger: Ledger, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> LiveReport:
    monkeypatch.setattr(LiveReport, "clock", staticmethod(clock))
    return LiveReport(tmp_path / "s", ledger, wanted=True)


def write(live: LiveReport, progress: str = "1 of 24 trials ended, about 3 min left") -> str:
    """Tick, wait for the page, and read it; what is there already where it is not time to."""
    live.tick(lambda: progress)
    if live._writer:
        live._writer.join()
    return live.page.read_text()


def test_the_first_page_is_there_at_once_and_small(live: LiveReport, tmp_path: Path) -> None:
    page = write(live)
    assert "1 of 24 trials ended, about 3 min left" in page
    assert html.is_live(tmp_path / "s")
    assert len(page) < 20_000
    assert [path.name for path in live.page.parent.iterdir()] == [html.PAGE], "no draft, no script without a figure"


def test_a_page_is_written_anew_after_a_minute_only(live: LiveReport, clock: Clock) -> None:
    write(live, "first")
    clock.now += EVERY_S - 1
    assert "first" in write(live, "second")
    clock.now += 2
    assert "second" in write(live, "second")


@pytest.mark.slow
def test_plotly_lies_beside_the_page_until_the_end(live: LiveReport, ledger: Ledger, tmp_path: Path) -> None:
    number = ledger.trials.add({"lr": 1e-3}, [1]).number
    add_reports(ledger, number, {200: 1.0, 400: 2.0})
    page, script = write(live), live.page.with_name(html.PLOTLY)
    assert f'<script src="{html.PLOTLY}"></script>' in page
    assert "1 running" in page
    assert "The report at the end of the sweep tells it" in page, "what mattered takes seconds, in the driver"
    assert len(page) < 200_000 < script.stat().st_size
    live.end()
    ledger.change_sweep(status="complete")
    html.write_report(tmp_path / "s", ledger)
    live.close()
    assert not script.exists()
    assert live.page.stat().st_size > 1_000_000
    assert not html.is_live(tmp_path / "s")


def test_an_interrupted_sweep_leaves_a_page_that_rests(live: LiveReport, ledger: Ledger) -> None:
    ledger.trials.add({"lr": 1e-3}, [1])
    write(live)
    live.close()
    page = live.page.read_text()
    assert not html.is_live(live.page.parent.parent)
    assert "1 interrupted" in page
    assert "running" not in page.partition("<script")[0]


def test_pages_come_one_by_one_and_none_after_the_end(
    live: LiveReport, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, calls = threading.Event(), []

    def make_slowly(*args: object, **settings: object) -> str:
        calls.append(args)
        go_on.wait(60)
        return "late"

    monkeypatch.setattr(html, "make_live_page", make_slowly)
    monkeypatch.setattr("rltune.reporting.live_report.WAIT_S", 0.0)
    live.tick(str)
    clock.now += 3 * EVERY_S
    live.tick(str)
    live.end()
    go_on.set()
    assert live._writer is not None
    live._writer.join()
    assert len(calls) == 1
    assert not live.page.exists(), "by then the report of the end has taken its place"


def test_a_page_that_cannot_be_written_hurts_nobody(
    live: LiveReport, tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "s" / "config.yaml").unlink()
    live.tick(str)
    live.close()
    assert "the live report could not be written" in caplog.text
    assert not live.page.exists()


@pytest.mark.slow
def test_a_browser_draws_the_live_page(live: LiveReport, ledger: Ledger, tmp_path: Path) -> None:
    chromium = shutil.which("chromium") or pytest.skip("no Chromium on this machine: apt install chromium")
    number = ledger.trials.add({"lr": 1e-3}, [1]).number
    add_reports(ledger, number, {200: 1.0, 400: 2.0})
    write(live)
    flags = ("--headless", "--no-sandbox", "--disable-background-networking", "--enable-logging=stderr", "--dump-dom")
    done = subprocess.run(
        [chromium, *flags, f"--user-data-dir={tmp_path / 'profile'}", live.page.as_uri()],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert 'data-drawn="yes"' in done.stdout
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line and "WebGL" not in line] == []
