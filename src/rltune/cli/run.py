"""The commands that train: run and resume a sweep, and measure this machine."""

from __future__ import annotations

import functools
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING, DictConfig, OmegaConf

from rltune.cli.application.command import COMPLETION, RequestConfig, TrackingConfig, command, make_sweep_ref
from rltune.cli.application.multirun import Job, run_jobs
from rltune.cli.service import find_service_of, print_state
from rltune.compose.composing import COMPOSED, read_request
from rltune.compose.overrides import spell_settings
from rltune.config.changes import CHANGEABLE
from rltune.config.schema import ProbeConfig, RunConfig
from rltune.config.settings_file import load_settings
from rltune.config.validation import parse_config
from rltune.errors import ConfigError
from rltune.formatting import spell_command


def start_fork_server(words: list[str]) -> list[str]:
    """Start the fork server while Hydra composes: its imports take longest."""
    if not {"-m", "--multirun", *COMPLETION} & set(words):
        from rltune.cluster.fork_server import begin_fork_server

        begin_fork_server()
    return words


def run_composed(words: list[str]) -> list[str] | int:
    """Run a sweep whose composed settings a service passes on standard input, if the command line says so."""
    start_fork_server(words)
    if words[:1] != [COMPOSED]:
        return words
    request = json.load(sys.stdin)
    return _run(parse_config(load_settings(request["settings"])), request["typed"])


@command("run algo=ppo env=cartpole", RunConfig, prepare=run_composed, takes_jobs=True)
def run(jobs: Sequence[Job]) -> int:
    """Run a sweep, certify its winner and register it."""
    configs = [read_request(job.settings, sys.argv[1:]) for job in jobs]
    if not jobs[0].multirun:
        return _run(configs[0])
    check_together(configs)
    return run_jobs("run", jobs)


def _run(config: RunConfig, typed: str | None = None) -> int:
    # Printed at once, because the next imports and the start of Ray take seconds.
    print(f"{config.algo['name']} in {config.env.id}: checking the request, starting Ray ...", flush=True)
    from rltune.driver.run import run_sweep

    return run_sweep(config, typed=typed).exit_code


def check_together(configs: Sequence[RunConfig]) -> None:
    """Refuse the sweeps of one command line together, before the first of them starts.

    Raises:
        RltuneError: One of them cannot be carried out, or two have one name.
    """
    from rltune.driver.starting import check_request

    named = [(config.output_dir, config.name) for config in configs if config.name]
    if repeated := next((name for folder, name in named if named.count((folder, name)) > 1), None):
        raise ConfigError(
            f"name={repeated}: {len(configs)} sweeps of one command line cannot share a name",
            "no name, so that each sweep gets its own, or a name for each",
            f"leave name= out; {spell_command('list')} shows the names",
        )
    for config in configs:
        check_request(config)


@dataclass
class Budget:
    """The budgets that may grow."""

    trials: int | None = None
    total_env_steps: int | None = None
    wall_time_s: float | None = None


@dataclass
class Certify:
    """The certification that a finished sweep is extended by."""

    top: int | None = None
    seeds: int | None = None


@dataclass
class Cluster:
    """Where the sweep runs from now on."""

    address: str | None = None
    num_cpus: int | None = None
    num_gpus: int | None = None
    autoscale: bool | None = None


@dataclass
class Tracking(TrackingConfig):
    """Where the sweep is shown from now on."""

    kinds: list[str] | None = None


@dataclass
class ResumeConfig(RequestConfig):
    """The settings of conf/resume.yaml."""

    budget: Budget = field(default_factory=Budget)
    certify: Certify = field(default_factory=Certify)
    cluster: Cluster = field(default_factory=Cluster)
    tracking: Tracking = field(default_factory=Tracking)
    notify: str | None = None
    trust: bool = MISSING
    take_over: bool = MISSING


@command("resume sweep=latest", ResumeConfig, prepare=start_fork_server)
def resume(settings: DictConfig) -> int:
    """Resume an interrupted sweep, or extend a finished one."""
    given: Any = OmegaConf.to_container(settings, resolve=True)
    changes = {key: given[key] for key in CHANGEABLE}
    if client := find_service_of(settings):
        del changes["storage"]  # The service has its own.
        words = spell_settings(changes)
        return print_state(client.resume(settings.sweep, *(word for word in words if not word.endswith("=null"))))
    print(f"resuming {settings.sweep}: reading its ledger, starting Ray ...", flush=True)
    from rltune.driver.run import resume_sweep

    ref = make_sweep_ref(settings)
    return resume_sweep(ref, changes=changes, trust=settings.trust, take_over=settings.take_over).exit_code


@command("probe algo=ppo env=cartpole", ProbeConfig)
def probe(settings: DictConfig) -> int:
    """Measure how to use this machine best."""
    from rltune.probe import parse_probe_config, run_probe

    chosen = [word for word in sys.argv[1:] if re.match(r"\+*(algo|env|engine)[.=]", word)]
    is_complete = run_probe(parse_probe_config(settings), chosen, functools.partial(print, flush=True))
    return 0 if is_complete else 130
