"""The commands of the service that runs submitted sweeps: serve, submit and logs."""

from __future__ import annotations

import functools
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from omegaconf import MISSING, DictConfig, OmegaConf, open_dict

from rltune.cli.application.answer import Answer
from rltune.cli.application.command import ServiceConfig, command
from rltune.cli.application.composed import ComposedCommand
from rltune.cli.application.multirun import Job, read_start
from rltune.cli.run import answer_check
from rltune.cli.submitted import find_latest, find_service, list_submissions
from rltune.compose.composing import read_request, store_schema
from rltune.config.bounds import Checked, bounded
from rltune.config.schema import RunConfig
from rltune.errors import RltuneError, clean_text
from rltune.formatting import spell_command
from rltune.ledger.sweep_ref import LATEST
from rltune.service.folder import ServiceFolder

if TYPE_CHECKING:
    from rltune.service.client import Client

# Settings of the command `submit` itself, which are not passed to the sweep.
COMMAND_KEYS = ("group", "service.address", "output_dir")


@dataclass
class Cluster:
    """The Ray cluster on which the service runs sweeps."""

    address: str | None = None


@dataclass
class ServeConfig(Checked):
    """The settings of conf/serve.yaml."""

    output_dir: str = MISSING
    host: str = MISSING
    port: int = bounded(minimum=0, maximum=65535, example=8288)
    names: list[str] = field(default_factory=list)
    width: int = bounded(minimum=1)
    storage: str | None = None
    cluster: Cluster = field(default_factory=Cluster)


@command("serve", ServeConfig)
def serve(settings: ServeConfig) -> int:
    """Run submitted sweeps from a queue, with a web page and a REST interface."""
    print("starting the service ...", flush=True)
    from rltune.service import serving

    plain = {name: value for name, value in vars(settings).items() if name != "cluster"}
    number = serving.serve(**plain, address=settings.cluster.address, program=find_program())
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


def check_submissions(jobs: Sequence[Job]) -> Answer:
    """Let the service check sweeps for ``check=true`` without submitting them."""
    client = _open_client(jobs)
    sweeps = [client.check_sweep(*_list_words(job)) for job in jobs]
    return answer_check(sweeps, [shlex.join(job.words) for job in jobs if job.multirun])


def _open_client(jobs: Sequence[Job]) -> Client:
    """Check the jobs of one command line as far as this is possible here, and return a client of their service."""
    for job in jobs:
        check_job(job)
    from rltune.service.client import Client

    settings = jobs[0].settings
    return Client(settings.service.address, output_dir=settings.output_dir)


def _list_words(job: Job) -> list[str]:
    return [word for word in job.words if word.partition("=")[0].lstrip("+") not in COMMAND_KEYS]


@command(
    "submit algo=ppo env=cartpole",
    SubmitConfig,
    ComposedCommand,
    prepare=store_run_schema,  # Also for a shell's completion, which begins nothing.
    takes_jobs=True,
    begin=functools.partial(store_schema, "run", RunConfig),
    check=check_submissions,
)
def submit(jobs: Sequence[Job]) -> Answer:
    """Submit a sweep to the queue of a service."""
    client, group = _open_client(jobs), jobs[0].settings.group
    if len(jobs) > 1:
        group = group or f"group-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    submissions = []
    for job in jobs:
        submissions.append(client.submit(*_list_words(job), group=group))
        # Of several, the first one may start, and so change the positions of the others, before the last is submitted.
        state = "submitted" if len(jobs) > 1 else submissions[-1]["in_words"]
        print(f"{submissions[-1]['name']}: {state}", flush=True)
    first_name = submissions[0]["name"]
    page = f"{client.address}/sweeps/{first_name}"

    def show() -> None:
        if len(submissions) > 1:
            print(f"list them:   {spell_command(f'list group={group}')}")
        print(f"watch it:    {spell_command(f'watch sweep={first_name}')}")
        if len(submissions) > 1:
            print(f"afterwards:  {spell_command(f'compare group={group}')}")
        print(f"page:        {page}")

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
def logs(settings: LogsConfig) -> Answer:
    """Print the log of a submitted sweep."""
    from rltune.service.client import Client

    if settings.sweep == LATEST:
        settings.sweep = find_latest(LATEST, list_submissions(settings)[1])
    folder, client, description = ServiceFolder(settings.output_dir), find_service(settings), {"name": settings.sweep}
    raw: Iterable[str]
    if client is None and not settings.follow and folder.log_of(settings.sweep).is_file():
        raw = [folder.log_of(settings.sweep).read_text(errors="replace")]
    else:
        client = client or Client(settings.service.address, output_dir=settings.output_dir)
        description = client.show(settings.sweep)
        if position := description["queue"]:
            waiting = f"{settings.sweep}: number {position} in the queue; its log begins when its turn comes"
            print(waiting, file=sys.stderr)
        raw = client.logs(settings.sweep, follow=settings.follow)
    parts = []
    for part in raw:
        parts.append(clean_text(part.replace("\r\n", "\n").replace("\r", "\n")))  # An environment prints anything.
        print(parts[-1], end="", flush=True)
    if client:
        description = client.read_patiently(client.show, settings.sweep)
    return Answer({**description, "log": "".join(parts)})
