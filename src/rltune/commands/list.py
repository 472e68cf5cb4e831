"""``rltune list``: the sweeps here; with envs, algos or spaces what can be chosen."""

import sys
from dataclasses import dataclass, field
from pathlib import Path

from omegaconf import DictConfig

from rltune.commands.application.command import ServiceConfig, SweepsConfig, command, leave, make_sweep_ref
from rltune.commands.application.serviced import describe, find_service, tell
from rltune.composition.composing import conf_dir, find_own_dir
from rltune.errors import ConfigError, choices
from rltune.formatting import spell_command
from rltune.reporting.available import KINDS, show_available


@dataclass
class ListConfig(SweepsConfig):
    """The settings of conf/list.yaml."""

    service: ServiceConfig = field(default_factory=ServiceConfig)


def work(settings: DictConfig) -> int:
    """Print one line a sweep, the newest last; before them what a service runs, and what waits there."""
    if client := find_service(settings):
        for one in client.list():
            if one["state"] == "running":
                ended = f"{one['trials_ended']} of {one['trials']} trials ended, best {one['best']}"
                far = f", {one['percent']}%, {ended}" if one["trials"] else ""
                print(f"{one['name']}: {describe(one)}{far}")
            elif one["state"] in ("queued", "refused"):
                tell(one)
        print()
    from rltune.reporting.tables import list_sweeps

    list_sweeps(make_sweep_ref(settings))
    return 0


def catalogue(words: list[str]) -> bool:
    """Show what can be chosen, when the command line asks for it: ``envs [--config-dir DIR]``."""
    if not words or "=" in words[0] or words[0].startswith("-"):
        return False
    if words[0] not in KINDS:
        leave(ConfigError(f"{words[0]}: nothing to list", choices(words[0], KINDS), spell_command("list envs")))
    own = [Path(words[place + 1]) for place, word in enumerate(words[:-1]) if word == "--config-dir"]
    show_available(words[0], [conf_dir(), *filter(None, [find_own_dir()]), *own])
    return True


def main() -> None:
    """Run the command."""
    if not catalogue(sys.argv[1:]):
        command("list", ListConfig, work)


if __name__ == "__main__":
    main()
