"""Ask the service, or its queue without one, for the sweeps that were submitted to it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rltune.cli.application.answer import Answer
from rltune.cli.application.command import RequestConfig, ServedConfig
from rltune.errors import StudyError
from rltune.formatting import format_objective, spell_command
from rltune.ledger.sweep_folder import SETTINGS
from rltune.service.folder import ADDRESS, ServiceFolder

if TYPE_CHECKING:
    from rltune.service.client import Client

POLL_S = 1.0  # Seconds between two requests to the service for the state of a submitted sweep.
WAITING = ("queued", "running")  # States of a submitted sweep that may not have a folder yet.


def find_service(settings: ServedConfig) -> Client | None:
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


def find_service_of(settings: RequestConfig) -> Client | None:
    """Return a client of the service to which a command's sweep was submitted; None for any other sweep."""
    client = find_service(settings)
    return client if client and any(sweep["name"] == settings.sweep for sweep in client.list()) else None


def list_submissions(settings: ServedConfig) -> tuple[Sequence[Mapping[str, Any]], bool]:
    """List the submitted sweeps: from the running service, or without one from the queue's database.

    Returns:
        The description of each, and whether a service runs.
    """
    if client := find_service(settings):
        return client.list(), True
    folder = ServiceFolder(settings.output_dir)
    if not folder.database_file.is_file():
        return [], False
    from rltune.service.descriptions import SweepDescriptions
    from rltune.service.submissions import Submissions

    try:
        submissions = Submissions(folder.database, folder.make_id())
    except (OSError, StudyError):
        # The queue's database was written by another user or another version of rltune.
        return [], False
    return SweepDescriptions(folder).list(submissions), False


def find_submission(settings: RequestConfig) -> dict[str, Any] | None:
    """Return the description of a command's sweep if it was submitted to a service, whether or not one runs now."""
    submissions, is_served = list_submissions(settings)
    for submission in submissions:
        if submission["name"] == settings.sweep:
            has_folder = (Path(settings.output_dir).expanduser() / submission["name"] / SETTINGS).is_file()
            return {**submission, "service": is_served, "has_folder": has_folder}
    return None


def wait_for_start(settings: RequestConfig) -> dict[str, Any] | None:
    """Wait until a service has started a submitted sweep and its ledger can be read here.

    Returns:
        The description of the sweep, which has begun, or does not begin; None if it was not submitted.
    """
    was_printed = False
    is_named = settings.storage or settings.study.storage  # A sweep in a bucket or a database can be read here.
    while submission := find_submission(settings):
        has_begun = submission["state"] == "running" and not submission["starting"]
        is_waiting = submission["state"] in WAITING and not (has_begun and (submission["has_folder"] or is_named))
        if not (submission["service"] and is_waiting):
            return submission
        if not was_printed:
            print_submission(submission)
            was_printed = True
        time.sleep(POLL_S)
    return None


def print_submissions(submissions: Sequence[Mapping[str, Any]], is_served: bool) -> None:
    """Print the submitted sweeps that are running, queued or refused."""
    # A sweep whose service was killed in the middle of its start is started again by the next service.
    waiting = [submission for submission in submissions if submission["state"] == "queued" or submission["starting"]]
    for submission in submissions if is_served else waiting:
        if submission["state"] == "running" and (sweep := submission["sweep"]):
            ended = f"{sweep['trials']['ended']} of {sweep['trials']['planned']} trials ended"
            best = format_objective(sweep["best"] and sweep["best"]["score"])
            print(f"{submission['name']}: {submission['in_words']}, {sweep['percent']}%, {ended}, best {best}")
        else:
            print_state(submission)
    if waiting and not is_served:
        print(f"no service runs here; {spell_command('serve')} continues the queue")
    if is_served or waiting:
        print()


def print_submission(submission: Mapping[str, Any]) -> None:
    """Print the state of a submitted sweep and, if no service runs, how to start one."""
    print_state(submission)
    if not submission["service"] and submission["state"] == "queued":
        print(f"no service runs here; {spell_command('serve')} goes on with it")


def print_state(sweep: Mapping[str, Any]) -> Answer:
    """Print the state and the reason of a sweep that was submitted to a service, and return them as the answer."""
    state, reason = sweep["in_words"], sweep["reason"]
    print(f"{sweep['name']}: {state}{f'; {reason}' if reason and reason not in state else ''}", flush=True)
    return Answer(sweep)
