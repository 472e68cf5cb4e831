"""``rltune list``: list the sweeps, or the files of a group such as ``envs`` or ``spaces``."""

import sys
from dataclasses import dataclass, field
from pathlib import Path

from omegaconf import DictConfig

from rltune.cli.application.command import ServiceConfig, SweepsConfig, command, leave, make_sweep_ref
from rltune.cli.application.serviced import find_service, print_state
from rltune.compose.composing import list_conf_dirs
from rltune.errors import ConfigError, choices
from rltune.formatting import format_objective, spell_command
from rltune.views.available import KINDS, show_available


@dataclass
class ListConfig(SweepsConfig):
    """The settings of conf/list.yaml."""

    service: ServiceConfig = field(default_factory=ServiceConfig)


@command("list", ListConfig)
def list_sweeps(settings: DictConfig) -> int:
    """Print one line for each sweep, the newest last, after the sweeps that a service runs or has queued."""
    if client := find_service(settings):
        for sweep in client.list():
            if sweep["state"] == "running":
                best = format_objective(sweep["best"])
                ended = f"{sweep['trials_ended']} of {sweep['trials']} trials ended, best {best}"
                progress = f", {sweep['percent']}%, {ended}" if sweep["trials"] else ""
                print(f"{sweep['name']}: {sweep['in_words']}{progress}")
            elif sweep["state"] in ("queued", "refused"):
                print_state(sweep)
        print()
    from rltune.views import tables

    tables.list_sweeps(make_sweep_ref(settings))
    return 0


def show_catalogue(words: list[str]) -> bool:
    """Show the files of a kind if the command line is ``envs [--config-dir DIR]`` or the like.

    Args:
        words: The command line after ``rltune list``.

    Returns:
        Whether it was, so that nothing is left to do.
    """
    if not words or "=" in words[0] or words[0].startswith("-"):
        return False
    if words[0] not in KINDS:
        leave(ConfigError(f"{words[0]}: nothing to list", choices(words[0], KINDS), spell_command("list envs")))
    typed = [Path(words[index + 1]) for index, word in enumerate(words[:-1]) if word == "--config-dir"]
    show_available(words[0], [*list_conf_dirs(), *typed])
    return True


def main() -> None:
    """Run the command."""
    if not show_catalogue(sys.argv[1:]):
        list_sweeps()


if __name__ == "__main__":
    main()
