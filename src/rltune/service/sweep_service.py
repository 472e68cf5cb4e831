"""Carry out the requests of REST and the page: submit a sweep, describe it, stop it, resume it.

A submission is checked as far as that needs no RLlib, in the folder in which it will run. A sweep that RLlib refuses
later ends as ``refused``.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import OmegaConf

from rltune.compose.composing import change_settings
from rltune.driver.requests.actions import enqueue_configuration, request_retry
from rltune.errors import ConfigError, StudyError, choices
from rltune.ledger.sweep_ref import SweepRef
from rltune.service.checking import CheckedSweep, check_change, check_submission, run_in_child
from rltune.service.descriptions import SweepDescriptions
from rltune.service.dispatcher import Dispatcher
from rltune.service.folder import ServiceFolder
from rltune.service.submissions import COMPLETE, ENDED, Submission, Submissions

VERBS = ("stop", "resume", "retry", "enqueue")


@dataclass(frozen=True)
class SweepService:
    """Carry out requests for the sweeps of one service. Its methods may be called from any thread."""

    folder: ServiceFolder
    submissions: Submissions
    dispatcher: Dispatcher
    descriptions: SweepDescriptions
    run_check: Callable[..., CheckedSweep] = run_in_child

    def submit(self, overrides: Sequence[str], name: str | None = None, group: str | None = None) -> dict[str, Any]:
        """Put a sweep into the queue.

        Raises:
            RltuneError: It cannot be run.
        """
        if group is not None and not re.fullmatch(r"[\w.-]+", group, re.ASCII):
            raise ConfigError(f"group={group!r} is no name", "letters, digits, - _ .", "group=first-try")
        checked = self.run_check(check_submission, overrides, str(self.folder.sweeps), name)
        self.submissions.add(checked.name, checked.overrides, group, checked.settings)
        self.dispatcher.wake()
        return self.show(checked.name)

    def list(self) -> list[dict[str, Any]]:
        """Describe all submissions."""
        return self.descriptions.list(self.submissions.list())

    def show(self, name: str) -> dict[str, Any]:
        """Describe one submission.

        Raises:
            UnknownSubmissionError: There is none of this name.
        """
        self.submissions.get(name)
        (description,) = self.descriptions.list(self.submissions.list(), name)
        return description

    def act(self, verb: str, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Carry out a request for a sweep that was submitted, and describe the sweep.

        Args:
            verb: One of `VERBS`.
            name: The sweep.
            arguments: The body of the request.

        Raises:
            RltuneError: It cannot be done.
        """
        submission = self.submissions.get(name)
        if verb == "stop":
            self.dispatcher.stop(name)
        elif verb == "resume":
            self._resume(submission, _read_overrides(arguments))
        elif verb == "retry":
            self._retry(submission, arguments.get("trials"))
        elif verb == "enqueue":
            self._enqueue(submission, arguments.get("space"))
        else:
            raise ConfigError(f"{verb}: no such verb", choices(verb, VERBS), "stop")
        return self.show(name)

    def _resume(self, submission: Submission, overrides: Sequence[str]) -> None:
        name = submission.name
        if submission.state == COMPLETE and not overrides:
            raise StudyError(
                f"sweep={name} is complete, and nothing asks for more",
                "an interrupted or failed one, or a larger budget",
                'resume it with "overrides": ["budget.trials=..."]',
            )
        settings = submission.settings
        if overrides and submission.state in ENDED:
            settings = self.run_check(check_change, overrides, str(self.folder.sweeps), settings).settings
        self.dispatcher.resume(submission, overrides, settings)

    def _retry(self, submission: Submission, trials: Any) -> None:
        if trials is not None and not (isinstance(trials, list) and all(isinstance(number, int) for number in trials)):
            raise ConfigError(f"trials={trials!r}", "numbers of trials, or none for all that failed", "trials=[3,5]")
        request_retry(self._locate(submission), trials)
        self._resume_ended(submission)

    def _enqueue(self, submission: Submission, space: Any) -> None:
        if not isinstance(space, dict):
            raise ConfigError(f"space={space!r}", "values of searched parameters by name", 'space={"lr": 1e-3}')
        larger_budget = enqueue_configuration(self._locate(submission), space, stream=io.StringIO())
        self._resume_ended(submission, larger_budget.split())

    def _locate(self, submission: Submission) -> SweepRef:
        """Make the reference of a sweep that has a ledger.

        Raises:
            StudyError: The sweep has not started.
        """
        if not (self.folder.sweeps / submission.name).is_dir():
            raise StudyError(
                f"sweep={submission.name} has not started: it has no trials yet",
                "a sweep that runs or has ended",
                "the same when it runs",
            )
        return SweepRef(submission.name, self.folder.sweeps)

    def _resume_ended(self, submission: Submission, overrides: Sequence[str] = ()) -> None:
        """Resume a sweep that has ended, so that it reads the request in its ledger."""
        if submission.state in ENDED:
            changed = change_settings(submission.settings, overrides)
            self.dispatcher.resume(submission, overrides, OmegaConf.to_yaml(changed))


def _read_overrides(arguments: Mapping[str, Any]) -> Sequence[str]:
    overrides = arguments.get("overrides") or []
    if not isinstance(overrides, list) or not all(isinstance(word, str) for word in overrides):
        raise ConfigError(f"overrides={overrides!r}", "a list of settings", '"overrides": ["budget.trials=40"]')
    return overrides
