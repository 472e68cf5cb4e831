"""The commands that train: ``run``, ``resume``, and ``probe``, which measures this machine."""

from __future__ import annotations

import functools
import itertools
import json
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from omegaconf import MISSING

from rltune.cli.application.answer import Answer, wants_json
from rltune.cli.application.command import COMPLETION, RequestConfig, TrackingConfig, command, make_sweep_ref
from rltune.cli.application.composed import ComposedCommand
from rltune.cli.application.multirun import Job, run_jobs
from rltune.cli.submitted import find_service_of, print_state
from rltune.compose.composing import COMPOSED, read_request
from rltune.compose.overrides import spell_settings
from rltune.config.changes import RESUME_KEYS
from rltune.config.schema import ProbeConfig, RunConfig
from rltune.config.settings_file import load_settings
from rltune.config.uris import conceal_setting
from rltune.config.validation import parse_config
from rltune.config.versions import refuse_other_versions
from rltune.envs.child import begin_child
from rltune.errors import ConfigError
from rltune.formatting import format_count, format_number, spell_command

if TYPE_CHECKING:
    from rltune.ledger.outcome import Outcome


LATER = "RLlib's own validation at the ends of the space, by which a run begins"


def run_composed(words: list[str]) -> list[str] | Answer:
    """Run a sweep whose composed settings a service has written to standard input; other command lines are returned.

    The fork server is started before Hydra composes the settings, because the fork server's imports take longest.
    """
    if not {"-m", "--multirun", *COMPLETION} & set(words):
        from rltune.cluster.fork_server import begin_fork_server

        begin_fork_server()
    if words[:1] != [COMPOSED]:
        return words
    request = json.load(sys.stdin)
    return _run(parse_config(load_settings(request["settings"])), request["typed"], has_tables=False)


def check(jobs: Sequence[Job]) -> Answer:
    """Check the settings of sweeps for ``check=true``, without Ray and RLlib and without starting a sweep."""
    configs = _read_requests(jobs)
    refuse_shared_names(configs)
    from rltune.driver.plan import describe_plan
    from rltune.driver.starting import check_new_or_begun

    sweeps = [{"name": config.name, **describe_plan(check_new_or_begun(config))} for config in configs]
    return answer_check(sweeps, [shlex.join(job.words) for job in jobs if job.multirun])


def answer_check(sweeps: Sequence[Mapping[str, Any]], typed: Sequence[str] = ()) -> Answer:
    """Answer ``check=true`` with the plans of the sweeps, which were checked here or by a service.

    Args:
        sweeps: The plans.
        typed: The words of each sweep, if there are several, which tell them apart.
    """

    def show() -> None:
        for sweep, words in itertools.zip_longest(sweeps, typed):
            if words:
                print(f"{words}:")
            searched = ", ".join(f"{name}={form}" for name, form in sweep["searched"].items())
            print(f"{sweep['algorithm']} in {sweep['environment']} can run: ", end="")
            print(f"up to {format_number(sweep['trials'], 'trial')}, ", end="")
            print(f"{format_count(sweep['search_env_steps'])} env steps of search and ", end="")
            print(f"{format_count(sweep['certification_env_steps'])} of certification")
            if sweep["policies"]:
                owned = (f"{agent} by {policy}" for agent, policy in sweep["policies"].items())
                print(f"  policies: {', '.join(owned)}")
            print(f"  searched: {searched or 'nothing'}")
            for note in sweep["notes"]:
                print(f"  note: {note}")
        print(f"  not checked: {LATER}")

    return Answer({"ok": True, "not_checked": [LATER], "sweeps": sweeps}, show)


@command(
    "run algo=ppo env=cartpole",
    RunConfig,
    ComposedCommand,
    prepare=run_composed,
    takes_jobs=True,
    begin=begin_child,
    check=check,
)
def run(jobs: Sequence[Job]) -> Answer:
    """Run a sweep, certify its winner and register it."""
    configs = _read_requests(jobs)
    if not jobs[0].multirun:
        return _run(configs[0], spell_run(sys.argv[1:]))
    refuse_shared_names(configs)
    from rltune.driver.starting import check_request

    for config in configs:  # A fault in the last sweep is reported before the first one starts.
        check_request(config)
    return Answer(None, exit_code=run_jobs("run", jobs))


def spell_run(words: Sequence[str]) -> str:
    """Return the command that runs a sweep again, as it was typed but without its name and passwords.

    The name is left out, because a name can be used only once.
    """
    settings = (word.partition("=") for word in words if not word.startswith("name="))
    given = (f"{key}{equals}{conceal_setting(key.lstrip('+'), value)}" for key, equals, value in settings)
    return " ".join([spell_command("run"), *map(shlex.quote, given)])


def _read_requests(jobs: Sequence[Job]) -> list[RunConfig]:
    """Read the settings of sweeps before anything is imported that needs the right versions of packages."""
    configs = [read_request(job.settings, sys.argv[1:]) for job in jobs]
    refuse_other_versions()
    return configs


def _run(config: RunConfig, typed: str, *, has_tables: bool = True) -> Answer:
    from rltune.driver.run import run_sweep

    return answer_outcome(run_sweep(config, typed=typed, has_tables=has_tables), config.study.storage)


def answer_outcome(outcome: Outcome, ledger_url: str | None) -> Answer:
    """Make the command's answer from a sweep's outcome: the fields of ``show``, and the exit code."""
    data: dict[str, Any] = {}
    if wants_json():
        from rltune.views.description import describe
        from rltune.views.sweep_view import load_view

        data = describe(load_view(outcome.folder, ledger_url))
    return Answer({**data, "exit_code": outcome.exit_code}, exit_code=outcome.exit_code)


def refuse_shared_names(configs: Sequence[RunConfig]) -> None:
    """Refuse a multirun in which two sweeps have the same name.

    Raises:
        ConfigError: Two have one name.
    """
    named = [(config.output_dir, config.name) for config in configs if config.name]
    if repeated := next((name for folder, name in named if named.count((folder, name)) > 1), None):
        raise ConfigError(
            "name",
            repeated,
            f": {len(configs)} sweeps of one command line cannot share a name",
            "no name, so that each sweep gets its own, or a name for each",
            f"leave name= out; {spell_command('list')} shows the names",
        )


@dataclass
class Budget:
    """The budgets that ``resume`` may increase."""

    trials: int | None = None
    total_env_steps: int | None = None
    wall_time_s: float | None = None


@dataclass
class Certify:
    """The settings of the certification that ``resume`` may change."""

    top: int | None = None
    seeds: int | None = None


@dataclass
class Cluster:
    """The settings of the Ray cluster that ``resume`` may change."""

    address: str | None = None
    num_cpus: int | None = None
    num_gpus: int | None = None
    autoscale: bool | None = None


@dataclass
class Tracking(TrackingConfig):
    """The settings of the trackers that ``resume`` may change."""

    kinds: list[str] | None = None


@dataclass
class Environment:
    """The settings of the environment that ``resume`` may change."""

    restarts: int | None = None
    max_copies: int | None = None


@dataclass
class Failures:
    """The settings of failures that ``resume`` may change."""

    max_retries: int | None = None
    stall_s: float | None = None


@dataclass
class ResumeConfig(RequestConfig):
    """The settings of conf/resume.yaml."""

    budget: Budget = field(default_factory=Budget)
    certify: Certify = field(default_factory=Certify)
    cluster: Cluster = field(default_factory=Cluster)
    env: Environment = field(default_factory=Environment)
    failures: Failures = field(default_factory=Failures)
    tracking: Tracking = field(default_factory=Tracking)
    space: dict[str, Any] = field(default_factory=dict)
    notify: str | None = None
    trust: bool = MISSING
    take_over: bool = MISSING


@command("resume sweep=latest", ResumeConfig)
def resume(settings: ResumeConfig) -> Answer:
    """Resume an interrupted sweep, or extend a finished one."""
    given = asdict(settings)
    changes = {key: given[key] for key in RESUME_KEYS}
    if client := find_service_of(settings):
        # Submitted sweeps use the service's storage, which their users cannot change.
        del changes["storage"]
        return print_state(client.resume(settings.sweep, *spell_changes(changes)))
    from rltune.cluster.fork_server import begin_fork_server

    begin_child()
    begin_fork_server()
    from rltune.driver.run import resume_sweep

    ref = make_sweep_ref(settings)
    outcome = resume_sweep(ref, changes=changes, trust=settings.trust, take_over=settings.take_over)
    return answer_outcome(outcome, ref.ledger_url)


def spell_changes(changes: Mapping[str, Any]) -> list[str]:
    """Spell the settings that change as they are typed; None and empty mappings stand for no change."""
    words = spell_settings({key: value for key, value in changes.items() if value != {}})
    return [word for word in words if not word.endswith("=null")]


@command("probe algo=ppo env=cartpole", ProbeConfig, ComposedCommand, begin=begin_child)
def probe(settings: ProbeConfig) -> Answer:
    """Measure how to use this machine best."""
    from rltune.probe import describe_results, run_probe

    chosen = [word for word in sys.argv[1:] if re.match(r"\+*(algo|env|engine)[.=]", word)]
    is_complete, results = run_probe(settings, chosen, functools.partial(print, flush=True))
    data = {"complete": is_complete, **describe_results(settings, results)}
    return Answer(data, exit_code=0 if is_complete else 130)
