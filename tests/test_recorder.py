"""What the books say after a driver was killed between two of their lines, and what else is written of them."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rltune.recorder import Control, catch_up
from rltune.study import Study


@pytest.fixture
def study(tmp_path: Path) -> Study:
    """A ledger with one trial that has reported once."""
    made = Study(f"sqlite:///{tmp_path / 'study.db'}", "sweep", create=True)
    number, _ = made.ask(lambda suggest: {}, {})
    made.report(number, 100, 1.0)
    return made


def record(env_steps: int, objective: float | None) -> dict[str, Any]:
    return {"path": f"trials/0/latest-{env_steps:012d}", "env_steps": env_steps, "objective": objective, "digest": "ab"}


@pytest.mark.parametrize("key", ["latest", "checkpoint"])
def test_a_checkpoint_that_was_recorded_without_its_report_brings_it(study: Study, key: str) -> None:
    study.note(0, **{key: record(200, 2.0)})
    assert dict(catch_up(study)[0].reports) == {100: 1.0, 200: 2.0}
    assert dict(study.entries()[0].reports) == {100: 1.0, 200: 2.0}


def test_a_checkpoint_between_reports_brings_none(study: Study) -> None:
    study.note(0, latest=record(150, None))
    assert dict(catch_up(study)[0].reports) == {100: 1.0}


def test_a_report_that_is_there_stays_as_it_is_and_so_does_an_ended_trial(study: Study) -> None:
    study.note(0, latest=record(100, 9.0))
    assert dict(catch_up(study)[0].reports) == {100: 1.0}
    study.note(0, latest=record(200, 2.0))
    study.finish(0, "FAIL", None, "it broke")
    assert dict(catch_up(study)[0].reports) == {100: 1.0}


def test_what_tune_keeps_of_the_control_holds_no_login(tmp_path: Path, request_of: Callable[..., Any]) -> None:
    config = request_of("tracking=server", "tracking.uri=http://me:s3cret@127.0.0.1:9")
    assert "s3cret" in config.tracking.uri
    assert b"s3cret" not in pickle.dumps(Control(tmp_path, config))
