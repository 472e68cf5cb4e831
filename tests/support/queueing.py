"""A queue whose sweeps are run by nobody: a test says how each ends, and which of them others drive."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from rltune.config.settings_file import write_settings
from rltune.config.validation import parse_config
from rltune.driver.plan import make_plan
from rltune.service.dispatcher import Ending
from rltune.service.submissions import Submission


def begin_sweep(folder: Path, settings: str) -> None:
    """Leave a folder behind as a sweep with these settings does when it is killed early."""
    folder.mkdir(parents=True)
    write_settings(folder, make_plan(parse_config(cast(DictConfig, OmegaConf.create(settings)))).config)


class FakeProcesses:
    """Processes that start at once, and end when and as a test says."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.stopped: list[str] = []
        self.endings: dict[str, Ending] = {}
        self.alive: dict[str, int] = {}
        self.driven_by_others: dict[str, bool | None] = {}

    def start(self, submission: Submission, claim: Callable[[Mapping[str, Any]], bool]) -> None:
        """Start a process, if the queue agrees."""
        number = 1000 + len(self.started)
        if claim({"process": {"pid": number, "boot": "other", "pid_namespace": "", "started": "1"}}):
            self.started.append(submission.name)
            self.alive[submission.name] = number
            self.endings.pop(submission.name, None)

    def is_driven(self, submission: Submission) -> bool | None:
        """Return what the test says of other drivers."""
        return self.driven_by_others.get(submission.name, False)

    def find_ending(self, submission: Submission) -> Ending | None:
        """Return how it has ended: as the test said, or unseen if this is another service's process."""
        if ending := self.endings.pop(submission.name, None):
            self.alive.pop(submission.name, None)
            return ending
        is_alive = submission.process and self.alive.get(submission.name) == submission.process["pid"]
        return None if is_alive or self.is_driven(submission) is not False else Ending(None)

    def read_history(self, submission: Submission) -> dict[str, Any]:
        """Return that a sweep had neither a driver nor a request."""
        return {"last_request": 0, "last_driver": None}

    def stop(self, submission: Submission) -> None:
        """Note who was asked to end."""
        self.stopped.append(submission.name)
