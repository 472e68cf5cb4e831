"""Run the jobs of ``-m``, such as ``-m algo=ppo,dqn``, one after another, each in its own process.

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
from rltune.driver.signals import INTERRUPTED, handle_signals
from rltune.formatting import spell_command


@dataclass(frozen=True)
class Job:
    """One job of a command line: its composed settings, and the words that compose them.

    Attributes:
        settings: The composed settings.
        words: The command line that composes the same settings for this job alone.
        multirun: Whether the job comes from ``-m``.
    """

    settings: DictConfig
    words: tuple[str, ...]
    multirun: bool


def collect_job(settings: DictConfig) -> Job:
    """Make a `Job` from the settings that Hydra has just composed."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    hydra = HydraConfig.get()
    of_hydra = [word for word in hydra.overrides.hydra if not word.startswith(("hydra.mode=", "hydra.sweep"))]
    return Job(settings, (*_read_flags(), *of_hydra, *hydra.overrides.task), hydra.mode == RunMode.MULTIRUN)


def _read_flags() -> list[str]:
    """Return the typed ``--config-dir`` for the jobs' command lines, in a list that is empty without it."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("-cd", "--config-dir")
    folder = parser.parse_known_args()[0].config_dir
    return [f"--config-dir={folder}"] if folder else []


def read_start() -> list[str]:
    """Return this process's command line up to its settings: Python, Python's options and the command."""
    return sys.orig_argv[: len(sys.orig_argv) - len(sys.argv[1:])]


def run_jobs(name: str, jobs: Sequence[Job]) -> int:
    """Run the jobs one after another. A failed job does not stop the others; an interrupt ends all.

    Args:
        name: The command.
        jobs: The command's jobs.

    Returns:
        The largest exit code.
    """
    commands = [f"{spell_command(name)} {shlex.join(job.words)}" for job in jobs]
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
            # In a process group of its own, the job does not get the terminal's Ctrl-C itself, but once, from
            # `forward`. A second signal would end it without saving.
            json = [f"{JSON}=true"] if wants_json() else []
            process = subprocess.Popen([*read_start(), *job.words, *json], stdout=sys.__stdout__, process_group=0)
            # A signal that arrived while the job's process was being started has not reached that process.
            if received:
                process.send_signal(received[-1])
            code = process.wait()
            codes.append(128 - code if code < 0 else code)
            if received or codes[-1] in INTERRUPTED:
                break
    for number, (command, code) in enumerate(zip(commands, codes, strict=False), 1):
        if code:
            print(f"{number} of {len(jobs)} ended with {code}: {command}")
    return max([*codes, *(128 + number for number in received[:1])])
