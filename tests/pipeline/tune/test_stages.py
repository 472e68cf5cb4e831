"""What a person reads of certification's runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rltune.pipeline.tune.stages import CertificationConsole, Stage
from rltune.records import CERTIFY, TRIALS, Report, TrialRecord


class Screen:
    """Keeps what it is asked to show."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *args: self.calls.append((name, *args))


@pytest.fixture
def screen() -> Screen:
    return Screen()


def ended(state: str, **facts: Any) -> TrialRecord:
    return TrialRecord(7, state, {"lr": 0.1}, {100: 3.0}, stop_reason="it broke\nat line 1", **facts)


def test_only_the_searchs_stage_is_the_search():
    stages = [Stage(SimpleNamespace(kind=kind), None, None) for kind in (TRIALS, CERTIFY)]
    assert [stage.is_search for stage in stages] == [True, False]


@pytest.mark.parametrize(
    ("state", "line"),
    [
        ("COMPLETE", "certified seed 3 of trial 4: 5 (1 of 9 runs)"),
        ("FAIL", "certifying seed 3 of trial 4 failed, which counts against it: it broke"),
        ("RUNNING", None),
    ],
)
def test_a_certifications_run_is_one_line(screen, state, line):
    retraining = SimpleNamespace(describe_progress=lambda: "1 of 9 runs", count_runs_left=lambda: 8)
    run = ended(state, kind=CERTIFY, of_trial=4, seed_index=2, returns=(4.0, 6.0))
    CertificationConsole(screen, retraining).show_end(run)
    assert ("show_certification", "1 of 9 runs", 8) in screen.calls
    assert (("end_run", 7) in screen.calls) == (state != "RUNNING")
    assert [call[1] for call in screen.calls if call[0] == "note"] == ([line] if line else [])


def test_of_a_certifications_run_the_steps_are_shown(screen):
    retraining = SimpleNamespace(describe_progress=lambda: "0 of 9 runs", count_runs_left=lambda: 9)
    console = CertificationConsole(screen, retraining)
    console.show_start(ended("RUNNING", kind=CERTIFY, env_steps=40))
    console.show_steps(7, 60)
    console.show_report(Report(7, 100, 1.0, overshoot_steps=3))
    calls = [call for call in screen.calls if call[0] != "show_certification"]
    assert calls == [("begin_run", 7, 40), ("show_run_steps", 7, 60), ("show_run_steps", 7, 103)]
