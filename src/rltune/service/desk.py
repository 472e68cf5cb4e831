"""Do what REST and the page ask for: take a sweep, tell of it, stop it, go on with it.

A sweep that is submitted is checked as far as that needs no RLlib, in the folder in which it will run. What RLlib
refuses later is the sweep's end, as ``refused``.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rltune.composition.composing import compose_settings, read_request
from rltune.composition.overrides import spell_value
from rltune.config.names import make_sweep_name
from rltune.config.schema import RunConfig
from rltune.config.uris import holds_login_of, redact_address
from rltune.errors import ConfigError, StudyError, choices
from rltune.pipeline.requests.asked_sweep import open_asked
from rltune.pipeline.requests.asking import ask_retry, enqueue_configuration
from rltune.pipeline.run import check_request
from rltune.records import ENQUEUE
from rltune.service.dispatcher import Dispatcher
from rltune.service.folder import ServiceFolder
from rltune.service.submissions import COMPLETE, ENDED, Submission, Submissions
from rltune.service.views import Views

OURS = {  # what the service says of each sweep, and why nobody else does
    "output_dir": "all its sweeps lie in one folder, that of the service",
    "resume": "it starts each with resume=auto",
}
VERBS = ("stop", "resume", "retry", "enqueue")
_WORD = re.compile(r"(\+{0,2}[\w./@-]+=|~[\w./@-]+).*", re.DOTALL)


def check_submission(
    words: Sequence[str], name: str | None, folder: ServiceFolder, *, again: bool = False
) -> tuple[str, tuple[str, ...]]:
    """Check a sweep before it is put into the queue.

    Args:
        words: Its settings, as they are typed after ``rltune run``.
        name: The sweep's; None is the one in the words, or one that is made.
        folder: The service's.
        again: Whether it may have been begun.

    Returns:
        Its name, and the words without it.

    Raises:
        RltuneError: It cannot be run.
    """
    for word in words:
        _check_word(word)
    named = [word.partition("=")[2].strip("'\"") for word in words if word.partition("=")[0] == "name"]
    name = name or (named[-1] if named and named[-1] != "null" else None)
    rest = tuple(word for word in words if word.partition("=")[0] != "name")
    ours = [f"output_dir={spell_value('output_dir', str(folder.sweeps))}", f"name={spell_value('name', name)}"]
    composed = compose_settings("run", RunConfig, [*rest, *ours, *["resume=auto"] * again])
    config = read_request(composed, rest)
    check_request(config)
    return make_sweep_name(config), rest


def _check_word(word: str) -> None:
    """Refuse what is no setting, or one that is the service's to say."""
    key, _, value = word.partition("=")
    if not _WORD.fullmatch(word):
        raise ConfigError(
            f"{redact_address(word)}: no setting", "group=option, key=value, +key=value, ~key", "algo=ppo env=cartpole"
        )
    if reason := OURS.get(key.lstrip("+")):
        raise ConfigError(f"{word}: a service takes no {key} of a sweep", reason, f"leave {key}= out")
    if holds_login_of(key.lstrip("+"), value.strip("'\"")):
        raise ConfigError(
            f"{redact_address(word)} holds a login, which the queue and the list of processes would show",
            "the name of an environment variable that the service was started with",
            f"{key}='${{oc.env:NAME}}'",
        )


@dataclass(frozen=True)
class Desk:
    """Where requests for a service's sweeps arrive, from any thread."""

    folder: ServiceFolder
    submissions: Submissions
    dispatcher: Dispatcher
    views: Views

    def submit(self, words: Sequence[str], name: str | None = None, group: str | None = None) -> dict[str, Any]:
        """Put a sweep into the queue.

        Raises:
            RltuneError: It cannot be run.
        """
        if group is not None and not re.fullmatch(r"[\w.-]+", group, re.ASCII):
            raise ConfigError(f"group={group!r} is no name", "letters, digits, - _ .", "group=first-try")
        name, rest = check_submission(words, name, self.folder)
        self.submissions.add(name, rest, group)
        self.dispatcher.wake()
        return self.show(name)

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
        one = self.submissions.get(name)
        if verb == "stop":
            self.dispatcher.stop(name)
        elif verb == "resume":
            more = _read_words(facts)
            if one.state == COMPLETE and not more:
                raise StudyError(
                    f"sweep={name} is complete, and nothing asks for more",
                    "an interrupted or failed one, or a larger budget",
                    'resume it with "overrides": ["budget.trials=..."]',
                )
            self.dispatcher.resume(name, lambda: self._check_again(one, more))
        elif verb == "retry":
            self._ask(one, lambda: self._retry(name, facts.get("trials")))
        elif verb == "enqueue":
            self._ask(one, lambda: self._enqueue(name, facts.get("space")))
        else:
            raise ConfigError(f"{verb}: no such verb", choices(verb, VERBS), "stop")
        return self.show(name)

    def _ask(self, one: Submission, ask: Callable[[], Sequence[str]]) -> None:
        """Ask something of a sweep: at once where a driver is to see to it, else before it waits again."""
        if not (self.folder.sweeps / one.name).is_dir():
            raise StudyError(
                f"sweep={one.name} has not begun: it has no trials yet",
                "a sweep that runs or has ended",
                "the same when it runs",
            )
        if one.state in ENDED:
            self.dispatcher.resume(one.name, ask)
        else:
            ask()

    def _check_again(self, one: Submission, more: Sequence[str]) -> Sequence[str]:
        if more:
            check_submission([*one.words, *more], one.name, self.folder, again=True)
        return more

    def _retry(self, name: str, trials: Any) -> Sequence[str]:
        if trials is not None and not (isinstance(trials, list) and all(isinstance(one, int) for one in trials)):
            raise ConfigError(f"trials={trials!r}", "numbers of trials, or none for all that failed", "trials=[3,5]")
        ask_retry(name, trials, output_dir=str(self.folder.sweeps))
        return ()

    def _enqueue(self, name: str, values: Any) -> Sequence[str]:
        """Have a configuration tried; return a larger budget where it has no place in the sweep's."""
        if not isinstance(values, dict):
            raise ConfigError(f"space={values!r}", "values of searched parameters by name", 'space={"lr": 1e-3}')
        where = str(self.folder.sweeps)
        enqueue_configuration(name, values, output_dir=where, stream=io.StringIO())
        with open_asked(name, where) as asked:
            return asked.spent().spell_larger(len(asked.ledger.read_requests(ENQUEUE))).split()


def _read_words(facts: Mapping[str, Any]) -> Sequence[str]:
    words = facts.get("overrides") or []
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ConfigError(f"overrides={words!r}", "a list of settings", '"overrides": ["budget.trials=40"]')
    return words
