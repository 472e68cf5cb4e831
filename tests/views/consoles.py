"""A sweep that a console draws on a clock that stands still, and what is printed at a sweep's end."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from ledger import make_ledger

from rltune.ledger.outcome import Outcome
from rltune.records import TRIALS, Report
from rltune.views.console import Console
from rltune.views.next_steps import describe_end
from rltune.views.page import Section
from rltune.views.progress import Line, describe_changes
from rltune.views.sweep_view import DriverState, SweepView, load_view


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class DrawnSweep:
    """A sweep of eight trials of 100,000 steps, and the console that draws it.

    Attributes:
        driver: What its driver knows.
        view: The view that was read last; None before the first.
        lines: What was described as having happened.
    """

    def __init__(
        self, folder: Path, clock: Clock, stream: io.StringIO, settings: Mapping[str, Any], **budget: Any
    ) -> None:
        self.clock, self.out, self.console = clock, stream, Console(stream)
        self.ledger = make_ledger(folder, "cartpole-ppo")
        config = {"budget": {"trials": 8, "env_steps": 100_000, "reports": 20, **budget}, **settings}
        self.ledger.change_sweep(status="running", folder=str(folder), config=yaml.safe_dump(config))
        self.driver: dict[str, Any] = {"slots": 2}
        self.view: SweepView | None = None
        self.lines: list[Line] = []

    def begin(self, params: Mapping[str, Any] | None = None, kind: str = TRIALS, **facts: Any) -> int:
        record = self.ledger.table(kind).add({"lr": 0.1} if params is None else params, [1], **facts)
        return self.ledger.table(kind).start(record.number).number

    def report(self, number: int, steps: int, objective: float, kind: str = TRIALS, overshoot: int = 0) -> None:
        numbers = {"score": objective}
        report = Report(number, steps, objective, numbers, overshoot_steps=overshoot)
        self.ledger.table(kind).add_report(report)

    def end(self, number: int, state: str, reason: str = "whole budget", kind: str = TRIALS, **facts: Any) -> None:
        if state == "RUNNING":
            self.ledger.table(kind).interrupt(number, **facts)
        else:
            self.ledger.table(kind).end(number, state, reason, **facts)

    def draw(self, after_s: float = 0.0, **driver: Any) -> SweepView:
        """Draw it as it is some seconds later."""
        self.clock.now += after_s
        self.driver |= driver
        before, now_s = self.view, self.clock.now
        self.view = view = SweepView.read(self.ledger, before, DriverState(**self.driver), now_s=now_s)
        self.lines += describe_changes(before, view)
        self.console.draw(view)
        return view

    def draw_steps(self, seconds: int, steps_per_s: int) -> None:
        """Draw it every second while trial 0 trains."""
        for second in range(1, seconds + 1):
            self.draw(1.0, env_steps={"trials/0": steps_per_s * second})

    @property
    def printed(self) -> list[str]:
        """What was described and is printed."""
        return [line.text for line in self.lines if line.is_printed]


def screen(stream: io.StringIO) -> str:
    """The text last drawn on a terminal, without its control sequences."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "\x00", stream.getvalue())
    return re.sub(r"\x00", "", plain)


def describe_ended(folder: Path, tracking_uri: str | None = None, resume: str | None = None) -> list[Section]:
    """What a command prints at the end of the sweep in a folder."""
    cost = {"env_steps": 1_000_000, "env_steps_saved": 1_400_000, "train_s": 120.0, "efficiency": 0.8}
    cost |= {"certify_env_steps": 500_000, "certify_train_s": 80.0}
    view = load_view(folder)
    cost |= {"wall_s": 125.0, "slots": 2}
    outcome = Outcome(view.name, view.status, view.counts, None, None, cost, folder=folder)
    return describe_end(view, outcome, tracking_uri, resume)
