"""Carry out the requests of the REST API and the page: submit, describe, stop and resume sweeps.

A submission is checked as far as that needs no RLlib, in the folder in which it will run. A sweep that RLlib refuses
later ends as ``refused``.
"""

from __future__ import annotations

import contextlib
import io
import re
import zipfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from omegaconf import OmegaConf

from rltune.compose.composing import change_settings
from rltune.driver.requests.actions import enqueue_configuration, request_retry
from rltune.errors import ConfigError, StudyError
from rltune.formatting import spell_command
from rltune.ledger.sweep_ref import SweepRef
from rltune.policies.uri import Source, locate_policy
from rltune.service.checking import CheckedSweep, check_change, check_submission, require_wanted, run_in_child
from rltune.service.descriptions import Result, SweepDescriptions
from rltune.service.dispatcher import Dispatcher
from rltune.service.folder import ServiceFolder
from rltune.service.models import CheckDescription, SweepDescription
from rltune.service.submissions import COMPLETE, ENDED, GROUP, STATES, Submission, Submissions
from rltune.views.comparison import Comparison
from rltune.views.sweep_reader import explain_damage
from rltune.views.sweep_view import SweepView

VERBS = ("stop", "resume", "retry", "enqueue")


@dataclass(frozen=True)
class SweepService:
    """Carry out requests for the sweeps of one service. Its methods are thread-safe."""

    folder: ServiceFolder
    submissions: Submissions
    dispatcher: Dispatcher
    descriptions: SweepDescriptions
    run_check: Callable[..., CheckedSweep] = run_in_child

    def submit(
        self,
        overrides: Sequence[str],
        name: str | None = None,
        group: str | None = None,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> SweepDescription:
        """Check a submitted sweep and append it to the queue.

        Args:
            overrides: As they are typed after ``rltune run``.
            name: The sweep's name; None has one made.
            group: Its group.
            is_wanted: Whether the client still waits for the response.

        Raises:
            ConfigError: It cannot be run.
            StudyError: There is a sweep of this name.
        """
        if group is not None and not re.fullmatch(GROUP, group):
            allowed = "letters, digits, - _ . (255 characters at most)"
            raise ConfigError("group", group, "is no name", allowed, "group=first-try")
        checked = self.check(overrides, name, is_wanted)
        require_wanted(is_wanted)
        self.submissions.add(checked.name, checked.overrides, group, checked.settings)
        self.dispatcher.wake()
        return self.show(checked.name)

    def check(
        self, overrides: Sequence[str], name: str | None = None, is_wanted: Callable[[], bool] = lambda: True
    ) -> CheckedSweep:
        """Check a sweep as `submit` does, without submitting it.

        Raises:
            ConfigError: It cannot be run.
            StudyError: There is a sweep of this name.
        """
        return self.run_check(check_submission, overrides, str(self.folder.sweeps), name, is_wanted=is_wanted)

    def describe_check(
        self, overrides: Sequence[str], name: str | None = None, is_wanted: Callable[[], bool] = lambda: True
    ) -> CheckDescription:
        """Describe the plan of a sweep that could be submitted; see `check`."""
        checked = self.check(overrides, name, is_wanted)
        return cast(CheckDescription, {**checked.plan, "overrides": [*checked.overrides]})

    def list(
        self,
        group: str | None = None,
        limit: int | None = None,
        offset: int = 0,
        states: Collection[str] = STATES,
    ) -> list[SweepDescription]:
        """Describe submissions of one group or all, in some states: ``limit`` of them, after the first ``offset``."""
        part = slice(offset, None if limit is None else offset + limit)
        return self.descriptions.list(self.submissions, group=group, states=states, part=part)

    def show(self, name: str) -> SweepDescription:
        """Describe the submission of one sweep.

        Raises:
            UnknownSubmissionError: There is none of this name.
        """
        self.submissions.get(name)
        (description,) = self.descriptions.list(self.submissions, name)
        return description

    def require_begun(self, name: str) -> None:
        """Refuse a sweep of which there is nothing to read yet, since no driver has begun it.

        Raises:
            UnknownSubmissionError: There is no submission of this name.
            StudyError: It waits, starts, or has ended before it began.
        """
        sweep = self.show(name)
        if sweep["sweep"] is None and sweep["unreadable"] is None:
            command = "logs" if sweep["state"] in ENDED else "watch"
            raise StudyError(
                f"has not begun: {sweep['in_words']}",
                "a sweep that has begun",
                spell_command(f"{command} sweep={name}"),
                key="sweep",
                value=name,
            )

    def compute(self, name: str, function: Callable[[SweepView], Result]) -> Result:
        """Return what a function of a sweep's view makes, such as its result or its report.

        Raises:
            UnknownSubmissionError: As for `require_begun`.
            StudyError: The sweep has not begun, or its ledger cannot be read.
        """
        self.require_begun(name)
        return self.descriptions.compute(name, function)

    def stop(self, name: str) -> SweepDescription:
        """Stop a running sweep so that it can be resumed, or remove a waiting one from the queue.

        Raises:
            StudyError: It has ended, or its driver cannot be reached.
        """
        self.dispatcher.stop(name)
        return self.show(name)

    def resume(
        self, name: str, overrides: Sequence[str] = (), is_wanted: Callable[[], bool] = lambda: True
    ) -> SweepDescription:
        """Resume an ended sweep by appending it to the queue, possibly with changed settings.

        Args:
            name: The sweep.
            overrides: The settings that change from now on.
            is_wanted: Whether the client still waits for the response.

        Raises:
            ConfigError: The sweep cannot be run with these settings.
            StudyError: It waits or runs, or it is complete and no setting asks for more.
        """
        submission = self.submissions.get(name)
        if submission.state == COMPLETE and not overrides:
            raise StudyError(
                "is complete, and no setting asks for more",
                "an interrupted or failed one, or a larger budget",
                spell_command(f"resume sweep={name} budget.trials=..."),
                key="sweep",
                value=name,
            )
        self.dispatcher.resume(submission, overrides, self._change_ended(submission, overrides, is_wanted))
        return self.show(name)

    def retry(
        self,
        name: str,
        trials: Sequence[int] | None = None,
        overrides: Sequence[str] = (),
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> SweepDescription:
        """Retry failed trials of a sweep, possibly with changed settings.

        Args:
            name: The sweep.
            trials: The trials' numbers; None means all that failed.
            overrides: As for `resume`.
            is_wanted: As for `resume`.

        Raises:
            ConfigError: The sweep cannot be run with these settings.
            StudyError: There is no such trial that has failed, or settings change and the sweep has not ended.
        """
        submission = self.submissions.get(name)
        if overrides:
            self.dispatcher.require_ended(submission)
        settings = self._change_ended(submission, overrides, is_wanted)
        request_retry(self._locate(name), trials)
        if submission.state in ENDED:  # Otherwise its running driver reads the request in the ledger.
            self.dispatcher.resume(submission, overrides, settings)
        return self.show(name)

    def enqueue(self, name: str, space: Mapping[str, Any]) -> SweepDescription:
        """Enqueue a configuration as the next trial of a sweep.

        Args:
            name: The sweep.
            space: The values of searched parameters by name.

        Raises:
            ConfigError: A parameter is not searched, or a value is out of its range.
            StudyError: The sweep has not started, or runs and has no trial left.
        """
        submission = self.submissions.get(name)
        larger_budget = enqueue_configuration(self._locate(name), space, stream=io.StringIO())
        self._resume_ended(submission, larger_budget.split())
        return self.show(name)

    def compare(self, names: Sequence[str]) -> Comparison:
        """Compare the winners of sweeps with that of the first.

        Raises:
            UnknownSubmissionError: There is no submission of one of these names.
            StudyError: One of them has no winner, or they cannot be compared.
        """
        for name in names:
            self.require_begun(name)
        return self.descriptions.compare(names)

    def pack_policy(self, name: str, trial: int | None = None) -> bytes:
        """Pack the files of a policy into a ZIP archive.

        Args:
            name: The sweep.
            trial: The trial; None is the winner, or the best trial so far.

        Raises:
            PolicyError: The sweep has no policy yet, or one that only RLlib can load.
        """
        archive = io.BytesIO()
        uri = f"sweep:{name}" if trial is None else f"sweep:{name}/{trial}"
        source = Source(uri, SweepRef(name, self.folder.sweeps))
        # Files from a bucket or a container may be dated 1970, and ZIP begins in 1980.
        with contextlib.ExitStack() as stack:
            with explain_damage(name):
                folder = stack.enter_context(locate_policy(source))
            packed = stack.enter_context(zipfile.ZipFile(archive, "w", strict_timestamps=False))
            for file in sorted(folder.rglob("*")):
                packed.write(file, file.relative_to(folder))
        return archive.getvalue()

    def _locate(self, name: str) -> SweepRef:
        """Make the reference of a sweep that has begun; raises as `require_begun` does."""
        self.require_begun(name)
        return SweepRef(name, self.folder.sweeps)

    def _change_ended(
        self, submission: Submission, overrides: Sequence[str], is_wanted: Callable[[], bool]
    ) -> str | None:
        """Return the settings of a sweep that has ended, checked with changes; without any, its own unchecked."""
        settings = submission.settings
        if overrides and submission.state in ENDED:
            output_dir = str(self.folder.sweeps)
            settings = self.run_check(check_change, overrides, output_dir, settings, is_wanted=is_wanted).settings
        require_wanted(is_wanted)
        return settings

    def _resume_ended(self, submission: Submission, overrides: Sequence[str] = ()) -> None:
        """Resume a sweep if it has ended, because only a running driver reads the request in the ledger."""
        if submission.state in ENDED:
            changed = change_settings(submission.settings, overrides)
            self.dispatcher.resume(submission, overrides, OmegaConf.to_yaml(changed))
