"""The commands that read sweeps: list, show, watch, report and compare them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from omegaconf import DictConfig

from rltune.cli.application.command import (
    ServiceConfig,
    SweepConfig,
    SweepsConfig,
    command,
    locate_sweep,
    make_sweep_ref,
)
from rltune.cli.service import find_service, print_state
from rltune.compose.composing import list_conf_dirs
from rltune.errors import ConfigError, choices
from rltune.formatting import format_objective, spell_command


@dataclass
class ListConfig(SweepsConfig):
    """The settings of conf/list.yaml."""

    service: ServiceConfig = field(default_factory=ServiceConfig)


def list_options(words: Sequence[str]) -> list[str] | int:
    """List the files of a group if the command line is ``envs [--config-dir DIR]`` or the like.

    Raises:
        ConfigError: There is no such group to list.
    """
    if not words or "=" in words[0] or words[0].startswith("-"):
        return [*words]
    from rltune.views.available import KINDS, show_available

    if words[0] not in KINDS:
        raise ConfigError(f"{words[0]}: nothing to list", choices(words[0], KINDS), spell_command("list envs"))
    folders = [Path(words[index + 1]) for index, word in enumerate(words[:-1]) if word == "--config-dir"]
    show_available(words[0], [*list_conf_dirs(), *folders])
    return 0


@command("list", ListConfig, prepare=list_options)
def list_sweeps(settings: DictConfig) -> int:
    """List the sweeps, or the files of a group such as envs or spaces."""
    if client := find_service(settings):
        for sweep in client.list():
            if sweep["state"] == "running" and sweep["trials"]:
                ended = f"{sweep['trials_ended']} of {sweep['trials']} trials ended"
                best = format_objective(sweep["best"])
                print(f"{sweep['name']}: {sweep['in_words']}, {sweep['percent']}%, {ended}, best {best}")
            elif sweep["state"] in ("running", "queued", "refused"):
                print_state(sweep)
        print()
    from rltune.views import tables

    tables.list_sweeps(make_sweep_ref(settings))
    return 0


@command("show sweep=latest", SweepConfig)
def show(settings: DictConfig) -> int:
    """Print the trials of a sweep, the best first."""
    from rltune.views.tables import show_sweep

    show_sweep(make_sweep_ref(settings))
    return 0


@command("watch sweep=latest", SweepConfig)
def watch(settings: DictConfig) -> int:
    """Watch the live table of a sweep that runs anywhere, until it ends or Ctrl-C."""
    ref = locate_sweep(settings)
    from rltune.driver.requests.watching import watch_sweep

    return watch_sweep(ref)


@command("report sweep=latest", SweepConfig)
def report(settings: DictConfig) -> int:
    """Write the report of a sweep's present state, also while the sweep runs."""
    ref = make_sweep_ref(settings)
    folder = ref.folder()
    from rltune.views import html  # Brings SQLAlchemy, for which a wrong name need not wait.

    print(html.write_report(folder, ledger_url=ref.ledger_url) / html.PAGE)
    return 0


@dataclass
class CompareConfig(SweepsConfig):
    """The settings of conf/compare.yaml."""

    sweeps: list[str] = field(default_factory=list)
    group: str | None = None
    out: str = ""
    service: ServiceConfig = field(default_factory=ServiceConfig)


@command("compare sweeps=[a,b]", CompareConfig)
def compare(settings: DictConfig) -> int:
    """Compare sweeps on one environment."""
    sweeps = settings.sweeps if settings.group is None else list_group(settings)
    if not sweeps:
        raise ConfigError("sweeps has no value", "sweeps' names", spell_command("compare sweeps=[first,second]"))
    from rltune.ledger.sweep_ref import SweepRef

    folders = [SweepRef.of(sweep, settings.output_dir, settings.storage).folder("sweeps") for sweep in sweeps]
    from rltune.views.comparison import compare_sweeps  # Brings SQLAlchemy, for which a wrong name need not wait.

    comparison = compare_sweeps(folders, ledger_url=settings.study.storage)
    print(comparison.markdown())
    for path in comparison.save(Path(settings.out).expanduser().absolute()):
        print(path)
    return 0


def list_group(settings: DictConfig) -> list[str]:
    """List the complete sweeps that were submitted with a group, in the order of submission.

    Raises:
        ConfigError: No service runs, or it has no complete sweep of the group.
    """
    client = find_service(settings)
    sweeps = client.list(settings.group) if client else []
    sweeps.sort(key=lambda sweep: (str(sweep["submitted"]), sweep["id"]))
    complete = [sweep["name"] for sweep in sweeps if sweep["state"] == "complete"]
    if not complete:
        raise ConfigError(
            f"group={settings.group}: {'no complete sweep of it' if client else 'no service runs'}",
            "a group whose sweeps were submitted, and have ended",
            spell_command("list") if client else spell_command("serve"),
        )
    return complete
