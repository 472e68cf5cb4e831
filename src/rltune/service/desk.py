"""Do what REST and the page ask for: submit a sweep, describe it, stop it, resume it.

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

from rltune.composition.composing import change_settings
from rltune.errors import ConfigError, StudyError, choices
from rltune.pipeline.requests.asked_sweep import open_asked
from rltune.pipeline.requests.asking import ask_retry, enqueue_configuration
from rltune.records import ENQUEUE
from rltune.service.checking import Checked, Request, check_in_child
from rltune.service.dispatcher import Dispatcher
from rltune.service.folder import ServiceFolder
from rltune.service.submissions import COMPLETE, ENDED, Submission, Submissions
from rltune.service.views import Views
from rltune.study.sweep_ref import SweepRef

VERBS = ("stop", "resume", "retry", "enqueue")


@dataclass(frozen=True)
class Desk:
    """Where requests for a service's sweeps arrive, from any thread."""

    folder: ServiceFolder
    submissions: Submissions
    dispatcher: Dispatcher
    views: Views
    check: Callable[[Request], Checked] = check_in_child

    def submit(self, words: Sequence[str], name: str | None = None, group: str | None = None) -> dict[str, Any]:
        """Put a sweep into the queue.

        Raises:
            RltuneError: It cannot be run.
        """
        if group is not None and not re.fullmatch(r"[\w.-]+", group, re.ASCII):
            raise ConfigError(f"group={group!r} is no name", "letters, digits, - _ .", "group=first-try")
        checked = self.check(Request(words, str(self.folder.sweeps), name))
        self.submissions.add(checked.name, checked.words, group, checked.settings)
        self.dispatcher.wake()
        return self.show(checked.name)

    def list(self) -> list[dict[str, Any]]:
        """Describe all submissions."""
        return self.views.list(self.submissions.list())

    def show(self, name: str) -> dict[str, Any]:
        """Describe one.

        Raises:
            UnknownSubmissionError: There is none of this name.
        """
        self.submissions.get(name)
        return next(one for one in self.list() if one["name"] == name)

    def act(self, verb: str, name: str, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Do to a sweep what a verb says.

        Args:
            verb: One of `VERBS`.
            name: The sweep.
            facts: What the verb takes besides.

        Raises:
            RltuneError: It cannot be done.
        """
        submission = self.submissions.get(name)
        if verb == "stop":
            self.dispatcher.stop(name)
        elif verb == "resume":
            self._resume(submission, _read_words(facts))
        elif verb == "retry":
            self._ask(submission, lambda: self._retry(name, facts.get("trials")))
        elif verb == "enqueue":
            self._ask(submission, lambda: self._enqueue(name, facts.get("space")))
        else:
            raise ConfigError(f"{verb}: no such verb", choices(verb, VERBS), "stop")
        return self.show(name)

    def _resume(self, submission: Submission, words: Sequence[str]) -> None:
        name = submission.name
        if submission.state == COMPLETE and not words:
            raise StudyError(
                f"sweep={name} is complete, and nothing asks for more",
                "an interrupted or failed one, or a larger budget",
                'resume it with "overrides": ["budget.trials=..."]',
            )
        settings = submission.settings
        if words and submission.state in ENDED:
            settings = self.check(Request(words, str(self.folder.sweeps), name, settings)).settings
        self.dispatcher.resume(submission, words, settings)

    def _ask(self, submission: Submission, ask: Callable[[], Sequence[str]]) -> None:
        """Write a request into a sweep's ledger, and resume the sweep if it has ended."""
        if not (self.folder.sweeps / submission.name).is_dir():
            raise StudyError(
                f"sweep={submission.name} has not begun: it has no trials yet",
                "a sweep that runs or has ended",
                "the same when it runs",
            )
        words = ask()
        if submission.state in ENDED:
            changed = change_settings(submission.settings, words)
            self.dispatcher.resume(submission, words, OmegaConf.to_yaml(changed))

    def _retry(self, name: str, trials: Any) -> Sequence[str]:
        if trials is not None and not (isinstance(trials, list) and all(isinstance(one, int) for one in trials)):
            raise ConfigError(f"trials={trials!r}", "numbers of trials, or none for all that failed", "trials=[3,5]")
        ask_retry(SweepRef(name, self.folder.sweeps), trials)
        return ()

    def _enqueue(self, name: str, values: Any) -> Sequence[str]:
        """Have a configuration tried; return a larger budget where it has no place in the sweep's."""
        if not isinstance(values, dict):
            raise ConfigError(f"space={values!r}", "values of searched parameters by name", 'space={"lr": 1e-3}')
        ref = SweepRef(name, self.folder.sweeps)
        enqueue_configuration(ref, values, stream=io.StringIO())
        with open_asked(ref) as asked:
            return asked.spent().spell_larger(len(asked.ledger.read_requests(ENQUEUE))).split()


def _read_words(facts: Mapping[str, Any]) -> Sequence[str]:
    words = facts.get("overrides") or []
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ConfigError(f"overrides={words!r}", "a list of settings", '"overrides": ["budget.trials=40"]')
    return words
