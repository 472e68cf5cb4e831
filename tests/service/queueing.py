"""A queue whose sweeps are run by nobody: a test says how each ends, and which of them others drive."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rltune.config.settings_file import load_settings, write_settings
from rltune.config.validation import parse_config
from rltune.driver.plan import make_plan
from rltune.service.checking import CheckedSweep
from rltune.service.processes import Ending, SweepProcesses
from rltune.service.submissions import Submission


def begin_sweep(folder: Path, settings: str) -> None:
    """Leave a folder behind as a sweep with these settings does when it is killed early, or give one of these."""
    folder.mkdir(parents=True, exist_ok=True)
    write_settings(folder, make_plan(parse_config(load_settings(settings))).given_settings)


def check_at_once(
    check: Callable[..., CheckedSweep], *arguments: object, is_wanted: Callable[[], bool]
) -> CheckedSweep:
    """Check a submission in the test's own process."""
    return check(*arguments)


class FakeProcesses(SweepProcesses):
    """Processes that start at once, and end when and as a test says."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.stopped: list[str] = []
        self.asked_again: list[str] = []
        self.endings: dict[str, Ending] = {}
        self.alive: set[str] = set()
        self.driven_by_others: dict[str, bool | None] = {}

    def start(self, submission: Submission) -> None:
        """Start a process."""
        self.started.append(submission.name)
        self.alive.add(submission.name)
        self.endings.pop(submission.name, None)

    def is_driven(self, submission: Submission, if_down: bool | None = False) -> bool | None:
        """Return what the test says of other drivers."""
        return self.driven_by_others.get(submission.name, False)

    def find_ending(self, submission: Submission) -> Ending | None:
        """Return how it has ended: as the test said, or unseen if its process is gone."""
        if ending := self.endings.pop(submission.name, None):
            self.alive.discard(submission.name)
            return ending
        return None if submission.name in self.alive or self.is_driven(submission) is not False else Ending(None)

    def read_history(self, submission: Submission) -> dict[str, Any]:
        """Return that a sweep had neither a driver nor a request."""
        return {"last_request": 0, "last_driver": None}

    def stop(self, submission: Submission) -> None:
        """Note who was asked to end."""
        self.stopped.append(submission.name)

    def request_stop(self, submission: Submission) -> None:
        """Note who was asked again, because its driver may have started late."""
        self.asked_again.append(submission.name)
