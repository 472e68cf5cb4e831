"""``rltune submit algo=ppo env=cartpole``: submit a sweep to the queue of a service."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from omegaconf import DictConfig, OmegaConf, open_dict

from rltune.cli.application.command import Command, ServiceConfig
from rltune.cli.application.multirun import Job
from rltune.compose.composing import read_request, store_schema
from rltune.config.schema import RunConfig
from rltune.errors import ConfigError
from rltune.formatting import spell_command

COMMAND_KEYS = ("group", "service.address", "output_dir")  # Settings of the command, not of the sweep.


@dataclass
class SubmitConfig(RunConfig):
    """The settings of conf/submit.yaml: those of a sweep, and the service to which it goes."""

    group: str | None = None
    service: ServiceConfig = field(default_factory=ServiceConfig)


def submit(jobs: Sequence[Job]) -> int:
    """Submit the sweeps of one command line after all of them have been checked."""
    for job in jobs:
        check(job)
    from rltune.service.client import Client

    first = jobs[0].settings
    client = Client(first.service.address, output_dir=first.output_dir)
    group = first.group
    if len(jobs) > 1:
        group = group or f"group-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    names = []
    for job in jobs:
        words = [word for word in job.words if word.partition("=")[0].lstrip("+") not in COMMAND_KEYS]
        submission = client.submit(*words, group=group)
        names.append(submission["name"])
        print(f"{submission['name']}: {submission['in_words']}", flush=True)
    print(f"watch it:  {spell_command(f'logs sweep={names[0]} follow=true')}")
    if len(names) > 1:
        print(f"afterwards: {spell_command(f'compare group={group}')}")
    print(f"page:      {client.address}/sweeps/{names[0]}")
    return 0


def check(job: Job) -> None:
    """Refuse a sweep whose settings do not compose; the service checks everything else.

    Raises:
        RltuneError: The sweep cannot be run.
    """
    if flags := [word for word in job.words if word.startswith("-")]:
        raise ConfigError(
            f"{flags[0]}: the service composes with its own folder's conf/", "groups there", f"leave {flags[0]} out"
        )
    settings = DictConfig(OmegaConf.to_container(job.settings))
    with open_dict(settings):
        del settings["group"], settings["service"]
    read_request(settings, job.words)


def main() -> None:
    """Run the command."""
    store_schema("run", RunConfig)  # conf/submit.yaml builds on conf/run.yaml.
    Command("submit", SubmitConfig, None, work_all=submit)()


if __name__ == "__main__":
    main()
