"""Several jobs of one command, as ``-m algo=ppo,dqn`` asks for: one after the other, each a command of its own.

A process each: a sweep starts and ends its own Ray, and keeps the words that it was typed with.
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

from rltune.config.uris import redact_address
from rltune.errors import ConfigError
from rltune.formatting import spell_command
from rltune.pipeline.signals import INTERRUPTED, handle_signals


@dataclass(frozen=True)
class Job:
    """One of the commands.

    Attributes:
        settings: As composed.
        words: What has to be typed for it.
        multirun: Whether it is one of those of ``-m``.
    """

    settings: DictConfig
    words: tuple[str, ...]
    multirun: bool


def collect_job(settings: DictConfig) -> Job:
    """Keep what Hydra has just composed, and the words that compose it again alone."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    hydra = HydraConfig.get()
    own = [word for word in hydra.overrides.hydra if not word.startswith(("hydra.mode=", "hydra.sweep"))]
    return Job(settings, (*_flags(), *own, *hydra.overrides.task), hydra.mode == RunMode.MULTIRUN)


def _flags() -> list[str]:
    """The flags that say where the configs are."""
    parser = argparse.ArgumentParser(add_help=False)
    for short, name in (("-cp", "--config-path"), ("-cn", "--config-name"), ("-cd", "--config-dir")):
        parser.add_argument(short, name)
    known = vars(parser.parse_known_args()[0])
    return [f"--{name.replace('_', '-')}={value}" for name, value in known.items() if value]


def read_start() -> list[str]:
    """Return what this process was started with before its settings: Python with its options, and the command."""
    return sys.orig_argv[: len(sys.orig_argv) - len(sys.argv[1:])]


def refuse_launchers(words: Sequence[str]) -> None:
    """Refuse another launcher or sweeper of Hydra's, which would take the jobs elsewhere.

    Raises:
        ConfigError: One is asked for.
    """
    for word in words:
        if word.lstrip("+").startswith(("hydra/launcher=", "hydra/sweeper=")):
            raise ConfigError(
                f"{word}: the jobs of -m run one after the other, each with all of the machine",
                "Hydra's own launcher and sweeper",
                f"leave {word} out",
            )


def run_jobs(root: str, jobs: Sequence[Job]) -> int:
    """Run the jobs in their order; one that fails keeps no other from running, an interrupt ends them all.

    Returns:
        The worst exit code.
    """
    received: list[int] = []
    running: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int) -> None:
        received.append(number)
        for process in running:
            process.send_signal(number)

    codes: list[int] = []
    with handle_signals(pass_on, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        for place, job in enumerate(jobs, 1):
            print(f"{place} of {len(jobs)}: {_shown(root, job)}", flush=True)
            # a group of its own: a terminal's Ctrl-C reaches it once, by us; the second one would be "leave at once"
            running[:] = [subprocess.Popen([*read_start(), *job.words], process_group=0)]
            if received:  # while it was being started
                running[0].send_signal(received[-1])
            code = running[0].wait()
            codes.append(128 - code if code < 0 else code)
            if received or codes[-1] in INTERRUPTED:
                break
    for place, (job, code) in enumerate(zip(jobs, codes, strict=False), 1):
        if code:
            print(f"{place} of {len(jobs)} ended with {code}: {_shown(root, job)}")
    for job in jobs[len(codes) :]:
        print(f"not begun: {_shown(root, job)}")
    return max([*codes, *(128 + number for number in received[:1])])


def _shown(root: str, job: Job) -> str:
    return " ".join([spell_command(root), *(shlex.quote(redact_address(word)) for word in job.words)])
