"""Ask the service, or its queue without one, for the sweeps that were submitted to it."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rltune.cli.application.answer import Answer
from rltune.cli.application.command import RequestConfig, ServedConfig, ServiceConfig, locate_sweep
from rltune.errors import EXIT_TRY_AGAIN, StudyError, choices, clean_text
from rltune.formatting import format_objective, spell_command
from rltune.ledger.sweep_folder import SETTINGS
from rltune.ledger.sweep_ref import LATEST
from rltune.service.folder import ADDRESS, ServiceFolder

if TYPE_CHECKING:
    from rltune.service.client import Client

POLL_S = 1.0  # Seconds between two requests to the service for the state of a submitted sweep.
WAITING = ("queued", "running")  # States of a submitted sweep that may not have a folder yet.


class Served(Protocol):
    """The settings with which a command finds a service."""

    output_dir: str
    service: ServiceConfig


def find_service(settings: Served) -> Client | None:
    """Return a client of the service that the settings name, or that serves this folder; None if none runs.

    A service that the user did not name and that does not accept the token belongs to another folder.

    Raises:
        ServiceError: The user named a service, and it does not answer.
        TokenError: The user named a service, and it does not accept the token.
    """
    is_named = bool(settings.service.address or os.environ.get(ADDRESS))
    if not is_named and ServiceFolder(settings.output_dir).read_address() is None:
        return None
    from rltune.service.client import Client, ServiceError, TokenError

    try:
        client = Client(settings.service.address, output_dir=settings.output_dir)
        client.check()
    except (ServiceError, TokenError):
        if is_named:
            raise
        return None
    return client


def find_remote(settings: ServedConfig) -> Client | None:
    """Return a client of the service that the user named; None without one, or if its sweeps are in this folder."""
    client = find_service(settings)
    return client if is_remote(client, settings) else None


def is_remote(client: Client | None, settings: ServedConfig) -> bool:
    """Return whether there is a service, and its sweeps are not in the folder that the settings name."""
    return client is not None and client.address != ServiceFolder(settings.output_dir).read_address()


@dataclass(frozen=True)
class RemoteSweep:
    """A sweep in the folder of a service on another machine or in another folder.

    Attributes:
        client: Of the service.
        name: The sweep's name.
    """

    client: Client
    name: str


def find_remote_sweep(settings: RequestConfig) -> RemoteSweep | None:
    """Return a command's sweep if the service that the user named has it; ``latest`` is the one that began last there.

    Returns:
        The sweep; None if it is in ``output_dir``.

    Raises:
        StudyError: It is in neither place.
    """
    client = find_remote(settings)
    if client is None:
        return None
    sweeps = client.list()
    names = [sweep["name"] for sweep in sweeps]
    if (name := find_latest(settings.sweep, sweeps)) in names:
        return RemoteSweep(client, name)
    try:
        locate_sweep(settings)
    except StudyError:
        raise StudyError(
            f": no such sweep in {client.address}",
            choices(settings.sweep, names),
            spell_command("list"),
            key="sweep",
            value=settings.sweep,
        ) from None
    return None


def find_latest(name: str, submissions: Sequence[Mapping[str, Any]]) -> str:
    """Return a sweep's name; of ``latest``, that of the submission that began last, if one has begun."""
    begun = [submission for submission in submissions if submission["begun"]] if name == LATEST else []
    return str(max(begun, key=lambda submission: (submission["begun"], submission["id"]))["name"]) if begun else name


def find_service_of(settings: RequestConfig) -> Client | None:
    """Return a client of the service to which a command's sweep was submitted; None for any other sweep.

    ``sweep=latest`` of a remote service becomes that sweep's name in the settings.
    """
    if remote := find_remote_sweep(settings):
        settings.sweep = remote.name
        return remote.client
    client = find_service(settings)
    return client if client and any(sweep["name"] == settings.sweep for sweep in client.list()) else None


def list_submissions(
    settings: Served, group: str | None = None, limit: int | None = None
) -> tuple[Client | None, Sequence[Mapping[str, Any]]]:
    """List the submitted sweeps: from the running service, or without one from the queue's database.

    Args:
        settings: Where the service is.
        group: The group of the sweeps; None lists all.
        limit: How many are listed; None lists all.

    Returns:
        The running service, and the description of each sweep.
    """
    if client := find_service(settings):
        return client, client.list(group, limit)
    folder = ServiceFolder(settings.output_dir)
    if not folder.database_file.is_file():
        return None, []
    from rltune.service.descriptions import SweepDescriptions
    from rltune.service.submissions import Submissions

    try:
        submissions = Submissions(folder.database, folder.make_id())
    except (OSError, StudyError):
        # The queue's database was written by another user or another version of rltune.
        return None, []
    return None, SweepDescriptions(folder).list(submissions, group=group, part=slice(limit))


def find_submission(settings: RequestConfig) -> dict[str, Any] | None:
    """Return the description of a command's sweep if it was submitted to a service, whether or not one runs now."""
    client, submissions = list_submissions(settings)
    for submission in submissions:
        if submission["name"] == settings.sweep:
            has_folder = (Path(settings.output_dir).expanduser() / submission["name"] / SETTINGS).is_file()
            return {**submission, "service": client is not None, "has_folder": has_folder}
    return None


def wait_for_start(settings: RequestConfig) -> dict[str, Any] | None:
    """Wait until a service has started a submitted sweep and its ledger can be read here.

    Returns:
        The description of the sweep, which has begun, or does not begin; None if it was not submitted.
    """
    seen_s = None  # When a service was last seen. One that restarts is waited for.
    is_named = settings.storage or settings.study.storage  # A sweep in a bucket or a database can be read here.
    read: Callable[[RequestConfig], dict[str, Any] | None] = find_submission
    while submission := read(settings):
        has_begun = submission["state"] == "running" and not submission["starting"]
        is_waiting = submission["state"] in WAITING and not (has_begun and (submission["has_folder"] or is_named))
        if not is_waiting or not (submission["service"] or seen_s):
            return submission
        from rltune.service.client import PATIENCE_S, read_patiently

        if seen_s is None:
            print_submission(submission)
        elif not submission["service"] and time.monotonic() - seen_s > PATIENCE_S:
            return submission
        if submission["service"]:
            seen_s, read = time.monotonic(), functools.partial(read_patiently, find_submission)
        time.sleep(POLL_S)
    return None


def watch_remote(sweep: RemoteSweep) -> Answer:
    """Print the state of a sweep of a remote service whenever it changes, until the sweep has ended, then its table."""
    from rltune.driver.requests.watching import EXIT_CODES

    client, printed = sweep.client, None
    while True:
        submission = client.read_patiently(client.show, sweep.name)
        line = describe_submission(submission)
        if line != printed:
            print(line, flush=True)
            printed = line
        if submission["state"] not in WAITING:
            break
        time.sleep(POLL_S)
    code = EXIT_CODES.get(submission["state"], EXIT_TRY_AGAIN)
    if not submission["sweep"]:
        return Answer({**submission, "exit_code": code}, exit_code=code)
    result = {**client.read_patiently(client.result, sweep.name), "exit_code": code}
    return Answer(result, lambda: print(client.read_patiently(client.table, sweep.name), end=""), code)


def print_submission(submission: Mapping[str, Any]) -> None:
    """Print the state of a submitted sweep and, if no service runs, how to start one."""
    print_state(submission)
    if not submission["service"] and submission["state"] == "queued":
        print(f"no service runs here; {spell_command('serve')} goes on with it")


def describe_submission(submission: Mapping[str, Any]) -> str:
    """Describe the state of a submitted sweep in a line: how far it is while it runs, and else why it is so."""
    if submission["state"] == "running" and (sweep := submission["sweep"]):
        ended = f"{sweep['trials']['ended']} of {sweep['trials']['planned']} trials ended"
        best = format_objective(sweep["best"] and sweep["best"]["score"])
        return f"{submission['name']}: {submission['in_words']}, {sweep['percent']}%, {ended}, best {best}"
    state, reason = submission["in_words"], submission["reason"]
    return clean_text(f"{submission['name']}: {state}{f'; {reason}' if reason and reason not in state else ''}")


def print_state(submission: Mapping[str, Any]) -> Answer:
    """Print a line on a submitted sweep, and return its description as the answer."""
    print(describe_submission(submission), flush=True)
    return Answer(submission)
