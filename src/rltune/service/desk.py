"""Do what REST and the page ask for: take a sweep, tell of it, stop it, go on with it.

A sweep that is submitted is checked as far as that needs no RLlib, in the folder in which it will run. What RLlib
refuses later is the sweep's end, as ``refused``.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rltune.composition.composing import compose_settings, read_request
from rltune.composition.overrides import spell_value
from rltune.config.names import make_sweep_name
from rltune.config.schema import RunConfig
from rltune.config.uris import holds_login, redact_address
from rltune.errors import ConfigError, choices
from rltune.pipeline.run import check_request
from rltune.service.dispatcher import Dispatcher
from rltune.service.folder import ServiceFolder
from rltune.service.submissions import Submissions
from rltune.service.views import Views

OURS = {  # what the service says of each sweep, and why nobody else does
    "output_dir": "all its sweeps lie in one folder, that of the service",
    "resume": "it starts each with resume=auto",
}
VERBS = ("stop", "resume", "retry", "enqueue")
_WORD = re.compile(r"(\+{0,2}[\w./@-]+=|~[\w./@-]+).*", re.DOTALL)
_composing = threading.Lock()  # Hydra has one state for the whole process


def check_submission(words: Sequence[str], name: str | None, folder: ServiceFolder) -> tuple[str, tuple[str, ...]]:
    """Check a sweep before it is put into the queue.

    Args:
        words: Its settings, as they are typed after ``rltune run``.
        name: The sweep's; None is the one in the words, or one that is made.
        folder: The service's.

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
    with _composing:
        composed = compose_settings("run", RunConfig, [*rest, *ours])
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
    if holds_login(value):
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
        if verb == "stop":
            self.dispatcher.stop(name)
        elif verb == "resume":
            self.dispatcher.resume(name)
        else:
            raise ConfigError(f"{verb}: no such verb", choices(verb, VERBS), "stop")
        return self.show(name)
