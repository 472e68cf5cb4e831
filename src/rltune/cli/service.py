"""The commands serve, submit and logs, and the functions with which other commands find a running service."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import MISSING, DictConfig, OmegaConf, open_dict

from rltune.cli.application.answer import Answer
from rltune.cli.application.command import ServiceConfig, command
from rltune.cli.application.multirun import Job, read_start
from rltune.compose.composing import read_request, store_schema
from rltune.config.bounds import bounded
from rltune.config.schema import RunConfig
from rltune.config.validation import to_typed
from rltune.errors import ABSENT, ConfigError, RltuneError, StudyError
from rltune.formatting import format_objective, spell_command
from rltune.ledger.sweep_folder import SETTINGS
from rltune.service.folder import ADDRESS, ServiceFolder

if TYPE_CHECKING:
    from rltune.service.client import Client

POLL_S = 1.0  # Seconds between two requests to the service for the state of a submitted sweep.
WAITING = ("queued", "running")  # States of a submitted sweep that may not have a folder yet.
# Settings of the command `submit` itself, which are not passed to the sweep.
COMMAND_KEYS = ("group", "service.address", "output_dir")


@dataclass
class Cluster:
    """The Ray cluster on which the service runs sweeps."""

    address: str | None = None


@dataclass
class ServeConfig:
    """The settings of conf/serve.yaml."""

    output_dir: str = MISSING
    host: str = MISSING
    port: int = bounded(minimum=0, maximum=65535, example=8288)
    names: list[str] = field(default_factory=list)
    width: int = bounded(minimum=1)
    storage: str | None = None
    cluster: Cluster = field(default_factory=Cluster)


@command("serve", ServeConfig)
def serve(settings: DictConfig) -> int:
    """Run submitted sweeps from a queue, with a web page and a REST interface."""
    config = to_typed(ServeConfig, settings)
    print("starting the service ...", flush=True)
    from rltune.service import serving

    plain = {name: value for name, value in vars(config).items() if name != "cluster"}
    number = serving.serve(**plain, address=config.cluster.address, program=find_program())
    # After its shutdown uvicorn raises the signal again, which has no effect if the parent process had it ignored. So
    # the exit code is returned, too.
    return 128 + number


def find_program() -> tuple[str, ...]:
    """Return the command with which the service starts sweeps: ``rltune run`` or ``python -m sweeps.run``."""
    start = read_start()
    return (sys.executable, *start[1:-1], f"{start[-1].removesuffix('serve')}run")


@dataclass
class SubmitConfig(RunConfig):
    """The settings of conf/submit.yaml: those of a sweep, and the address of the service."""

    group: str | None = None
    service: ServiceConfig = field(default_factory=ServiceConfig)


def store_run_schema(words: list[str]) -> list[str]:
    """Register the schema of conf/run.yaml with Hydra, because conf/submit.yaml includes it."""
    store_schema("run", RunConfig)
    return words


@command("submit algo=ppo env=cartpole", SubmitConfig, prepare=store_run_schema, takes_jobs=True)
def submit(jobs: Sequence[Job]) -> Answer:
    """Submit a sweep to the queue of a service."""
    for job in jobs:
        check_job(job)
    from rltune.service.client import Client

    first = jobs[0].settings
    client = Client(first.service.address, output_dir=first.output_dir)
    group = first.group
    if len(jobs) > 1:
        group = group or f"group-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    submissions = []
    for job in jobs:
        words = [word for word in job.words if word.partition("=")[0].lstrip("+") not in COMMAND_KEYS]
        submissions.append(client.submit(*words, group=group))
        print(f"{submissions[-1]['name']}: {submissions[-1]['in_words']}", flush=True)
    first_name = submissions[0]["name"]
    page = f"{client.address}/sweeps/{first_name}"

    def show() -> None:
        print(f"watch it:  {spell_command(f'logs sweep={first_name} follow=true')}")
        if len(submissions) > 1:
            print(f"afterwards: {spell_command(f'compare group={group}')}")
        print(f"page:      {page}")

    return Answer({"sweeps": submissions, "group": group, "page": page}, show)


def check_job(job: Job) -> None:
    """Check one sweep's settings before they are submitted, as far as this is possible without the service.

    Raises:
        RltuneError: The sweep cannot be run.
    """
    if flags := [word for word in job.words if word.startswith("-")]:
        raise RltuneError(
            f"{flags[0]}: the service uses only the conf/ in its own folder", "groups there", f"leave {flags[0]} out"
        )
    settings = DictConfig(OmegaConf.to_container(job.settings))
    with open_dict(settings):
        del settings["group"], settings["service"]
    read_request(settings, job.words)


@dataclass
class LogsConfig:
    """The settings of conf/logs.yaml."""

    sweep: str = MISSING
    follow: bool = MISSING
    output_dir: str = MISSING
    service: ServiceConfig = field(default_factory=ServiceConfig)


@command("logs sweep=my-sweep follow=true", LogsConfig)
def logs(settings: DictConfig) -> Answer:
    """Print the log of a submitted sweep."""
    if OmegaConf.is_missing(settings, "sweep"):
        raise ConfigError("sweep", ABSENT, "has no value", "a sweep that was submitted", spell_command("list"))
    from rltune.service.client import Client

    client = Client(settings.service.address, output_dir=settings.output_dir)
    if position := client.show(settings.sweep)["queue"]:
        print(f"{settings.sweep}: number {position} in the queue; its log begins when its turn comes", file=sys.stderr)
    parts = []
    for part in client.logs(settings.sweep, follow=settings.follow):
        print(part, end="", flush=True)
        parts.append(part)
    return Answer({**client.show(settings.sweep), "log": "".join(parts)})


def find_service(settings: DictConfig) -> Client | None:
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


def find_service_of(settings: DictConfig) -> Client | None:
    """Return a client of the service to which a command's sweep was submitted; None for any other sweep."""
    client = find_service(settings)
    return client if client and any(sweep["name"] == settings.sweep for sweep in client.list()) else None


def list_submissions(settings: DictConfig) -> tuple[Sequence[Mapping[str, Any]], bool]:
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
        submissions = Submissions(folder.database, folder.make_id()).list()
    except (OSError, StudyError):
        # The queue's database was written by another user or another version of rltune.
        return [], False
    return SweepDescriptions(folder).list(submissions), False


def find_submission(settings: DictConfig) -> dict[str, Any] | None:
    """Return the description of a command's sweep if it was submitted to a service, whether or not one runs now."""
    submissions, is_served = list_submissions(settings)
    for submission in submissions:
        if submission["name"] == settings.sweep:
            has_folder = (Path(settings.output_dir).expanduser() / submission["name"] / SETTINGS).is_file()
            return {**submission, "service": is_served, "has_folder": has_folder}
    return None


def wait_for_start(settings: DictConfig) -> dict[str, Any] | None:
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
        if submission["state"] == "running" and submission["trials"]:
            ended = f"{submission['trials_ended']} of {submission['trials']} trials ended"
            best = format_objective(submission["best"])
            print(f"{submission['name']}: {submission['in_words']}, {submission['percent']}%, {ended}, best {best}")
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
