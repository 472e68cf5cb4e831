"""The driver's sweep on its console."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from ledger import add_reports, make_ledger

from rltune.cluster.resources import Machine
from rltune.cluster.slots import Slots
from rltune.driver.display import MAX_SHARE, Display, Heartbeats
from rltune.ledger.ledger import Ledger
from rltune.views.console import Console
from rltune.views.sweep_view import SweepView


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    made = make_ledger(tmp_path, "mine")
    made.change_sweep(status="running", config=yaml.safe_dump({"budget": {"trials": 4, "env_steps": 1000}}))
    made.trials.start(made.trials.add({"lr": 0.1}, [1]).number)
    yield made
    made.close()


@pytest.fixture
def slots() -> Slots:
    return Slots([{"CPU": 1.0}], 2, [Machine(2, 0)])


@pytest.fixture
def heartbeats() -> Heartbeats:
    return Heartbeats("/sweeps/mine", {"trials/0"})


def test_what_only_the_driver_knows_is_drawn(
    ledger: Ledger, slots: Slots, heartbeats: Heartbeats, stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rltune.driver.display.read_steps", lambda *_: {"trials/0": 400})
    heartbeats.update()
    display = Display(ledger, Console(stream, plain_every_s=0), slots, heartbeats)
    display.show_episodes("the best play", 3, 200)
    display.draw()
    assert "2 at a time" in stream.getvalue()
    assert "3 of 200 episodes" in stream.getvalue()


def test_the_last_changes_are_drawn_before_the_end(
    ledger: Ledger, slots: Slots, heartbeats: Heartbeats, stream: io.StringIO
) -> None:
    display = Display(ledger, Console(stream), slots, heartbeats)
    display.draw()
    add_reports(ledger, 0, {1000: 7.0})
    ledger.trials.end(0, "COMPLETE", "whole budget")
    display.close()
    display.draw()
    assert stream.getvalue().count("trial   0 complete") == 1


def test_drawing_takes_little_of_the_drivers_time(
    ledger: Ledger, slots: Slots, heartbeats: Heartbeats, stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, drawn = [0.0], []
    display = Display(ledger, Console(stream), slots, heartbeats)
    monkeypatch.setattr(Display, "clock", staticmethod(lambda: now[0]))

    def draw_slowly(view: object) -> None:
        drawn.append(now[0])
        now[0] += 1.0

    monkeypatch.setattr(display._console, "draw", draw_slowly)
    while now[0] < 100:
        display.draw()
        now[0] += 0.25
    assert len(drawn) <= 100 * MAX_SHARE + 1


def test_a_ledger_that_is_away_ends_nothing(
    ledger: Ledger, slots: Slots, heartbeats: Heartbeats, stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> SweepView:
        raise OSError("no route to the database")

    monkeypatch.setattr(SweepView, "read", fail)
    Display(ledger, Console(stream), slots, heartbeats).close()
    assert stream.getvalue() == ""


def test_trials_are_followed_while_they_are_up(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = {"trials/0": 120, "certify/0": 7}
    monkeypatch.setattr(
        "rltune.driver.display.read_steps",
        lambda sweep, folders: {folder: steps[folder] for folder in folders if folder in steps},
    )
    live = {*steps, "trials/1"}
    followed = Heartbeats("/sweeps/a", live)
    followed.update()
    assert followed.read() == {"trials/0": 120, "certify/0": 7}
    steps["trials/0"] = 130
    followed.update()
    assert followed.read() == {"trials/0": 130, "certify/0": 7}
    live.discard("trials/0")
    assert followed.read() == {"certify/0": 7}
