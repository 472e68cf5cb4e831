"""Run the jobs of a command with ``-m``, such as ``-m algo=ppo,dqn``, one after the other.

Each job is a process of its own, because a sweep starts and ends its own Ray and records its own command line.
"""

from __future__ import annotations

import argparse
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from omegaconf import DictConfig

from rltune.cli.application.answer import JSON, wants_json
from rltune.config.uris import redact_address
from rltune.driver.signals import INTERRUPTED, handle_signals
from rltune.errors import ConfigError
from rltune.formatting import spell_command


@dataclass(frozen=True)
class Job:
    """One job of a command line.

    Attributes:
        settings: The composed settings.
        words: The command line that composes the same settings for this job alone.
        multirun: Whether the job comes from ``-m``.
    """

    settings: DictConfig
    words: tuple[str, ...]
    multirun: bool


def collect_job(settings: DictConfig) -> Job:
    """Make a job from the settings that Hydra has just composed."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    hydra = HydraConfig.get()
    of_hydra = [word for word in hydra.overrides.hydra if not word.startswith(("hydra.mode=", "hydra.sweep"))]
    return Job(settings, (*_read_flags(), *of_hydra, *hydra.overrides.task), hydra.mode == RunMode.MULTIRUN)


def _read_flags() -> list[str]:
    """Return the flags of the command line that say where the config files are."""
    parser = argparse.ArgumentParser(add_help=False)
    for short, name in (("-cp", "--config-path"), ("-cn", "--config-name"), ("-cd", "--config-dir")):
        parser.add_argument(short, name)
    flags = vars(parser.parse_known_args()[0])
    return [f"--{name.replace('_', '-')}={value}" for name, value in flags.items() if value]


def read_start() -> list[str]:
    """Return the start of this process's command line before its settings: Python, its options and the command."""
    return sys.orig_argv[: len(sys.orig_argv) - len(sys.argv[1:])]


def refuse_launchers(words: Sequence[str]) -> None:
    """Refuse other launchers and sweepers of Hydra, which would run the jobs in another way.

    Raises:
        ConfigError: The command line names one.
    """
    for word in words:
        if word.lstrip("+").startswith(("hydra/launcher=", "hydra/sweeper=")):
            raise ConfigError(
                f"{word}: -m runs its sweeps one after the other, each on the whole machine",
                "Hydra's own launcher and sweeper",
                f"leave {word} out",
            )


def run_jobs(name: str, jobs: Sequence[Job]) -> int:
    """Run the jobs in their order. The next job runs also after a failed one; an interrupt ends all jobs.

    Args:
        name: The command.
        jobs: The command's jobs.

    Returns:
        The largest exit code.
    """
    commands = [f"{spell_command(name)} {shlex.join(map(redact_address, job.words))}" for job in jobs]
    process: subprocess.Popen[bytes] | None = None
    received: list[int] = []
    codes: list[int] = []

    def forward(number: int) -> None:
        received.append(number)
        if process is not None:
            process.send_signal(number)

    with handle_signals(forward, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        for number, (job, command) in enumerate(zip(jobs, commands, strict=True), 1):
            print(f"{number} of {len(jobs)}: {command}", flush=True)
            # With a process group of its own, the job receives a terminal's Ctrl-C only once, from `forward`. A second
            # signal would end it at once.
            json = [f"{JSON}=true"] if wants_json() else []
            process = subprocess.Popen([*read_start(), *job.words, *json], process_group=0)
            if received:  # A signal may have come while the process was being started.
                process.send_signal(received[-1])
            code = process.wait()
            codes.append(128 - code if code < 0 else code)
            if received or codes[-1] in INTERRUPTED:
                break
    for number, (command, code) in enumerate(zip(commands, codes, strict=False), 1):
        if code:
            print(f"{number} of {len(jobs)} ended with {code}: {command}")
    return max([*codes, *(128 + number for number in received[:1])])
