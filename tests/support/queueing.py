"""A queue whose sweeps are run by nobody: a test says how each ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from rltune.config.settings_file import write_settings
from rltune.config.validation import parse_config
from rltune.pipeline.plan import make_plan
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

    def start(self, submission: Submission, claim: Callable[[Mapping[str, Any]], bool]) -> None:
        """Start one, if the queue agrees."""
        number = 1000 + len(self.started)
        if claim({"pid": number, "started": 1.0}):
            self.started.append(submission.name)
            self.alive[submission.name] = number
            self.endings.pop(submission.name, None)

    def look(self, submission: Submission) -> Ending | None:
        """Tell how it has ended: as the test said, or unseen where it is not ours."""
        if ending := self.endings.get(submission.name):
            self.alive.pop(submission.name, None)
            return ending
        is_here = self.alive.get(submission.name) == submission.process.get("pid")
        return None if is_here else Ending(None)

    def stop(self, submission: Submission) -> None:
        """Note who was asked to end."""
        self.stopped.append(submission.name)
