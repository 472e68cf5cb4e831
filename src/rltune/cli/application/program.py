"""Run the program ``rltune``: dispatch to a command by name, and complete command lines for a shell."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import sys

import rltune.cli.application.interrupts  # noqa: F401 - It answers Ctrl-C during the imports that follow.
from rltune.cli.application.answer import leave
from rltune.cli.application.command import COMMANDS, COMPLETION, Command
from rltune.cli.application.help_page import print_page
from rltune.errors import RltuneError, choices, nearest
from rltune.other_tools import find_answer
from rltune.search_path import place_working_folder

# The commands that each module of `rltune.cli` registers, so that a command imports no other module.
MODULES = {
    "run": ("run", "resume", "probe"),
    "requests": ("stop", "enqueue", "retry"),
    "listing": ("list",),
    "reading": ("show", "watch", "report", "compare"),
    "policies": ("evaluate", "export", "record"),
    "service": ("serve", "submit", "logs"),
}
# Words of other tools that are commands here.
ALIASES = {"ls": "list", "status": "list", "cancel": "stop"}
ALIASES_OF_ONE = {"status": "show"}  # Where the next word is a sweep's name.
# The commands that import modules of the user's, which may lie in the working folder. The others never search it, so
# that they can be typed in a folder of somebody else's.
RUN_CODE = ("run", "resume", "retry", "probe", "evaluate", "export", "record", "serve")
NAMES = sorted((name for names in MODULES.values() for name in names), key=lambda name: (name != "run", name))
"""The commands in alphabetical order, with ``run`` first."""


def main() -> None:
    """Run the command that ``sys.argv`` names, or print the overview or the version."""
    words = sys.argv[1:]
    if not words or words[0] in ("-h", "--help"):
        print_page(write_overview())
    elif words[0] == "--version":
        from importlib.metadata import version

        print(f"rltune {version('rltune')}")
    elif words[0] in COMPLETION:
        _complete(words)
    else:
        has_name = any(word.startswith("sweep=") or not re.search("^-|=", word) for word in words[1:])
        aliases = ALIASES | ALIASES_OF_ONE if has_name else ALIASES
        words = [aliases.get(words[0], words[0]), *words[1:]]
        if words[0] not in NAMES:
            answer = find_answer("command", words[0])
            close = answer.names[0] if answer else nearest(words[0], NAMES)
            fix = f"rltune {shlex.join([close, *words[1:]])}" if close else "rltune --help"
            leave(RltuneError(f"{words[0]}: no such command", choices(words[0], NAMES, close), fix))
        place_working_folder(is_searched=words[0] in RUN_CODE)
        sys.argv = words
        load_command(words[0])()


def load_command(name: str) -> Command:
    """Import a command."""
    module = next(module for module, names in MODULES.items() if name in names)
    importlib.import_module(f"rltune.cli.{module}")
    return COMMANDS[name]


def load_commands() -> dict[str, Command]:
    """Import all commands, and return them by name in the order of `NAMES`."""
    return {name: load_command(name) for name in NAMES}


def write_overview() -> str:
    """Write the text of ``rltune --help``: one line for each command with its usage and purpose."""
    commands = load_commands().values()
    width = max(len(command.usage) for command in commands)
    return "\n".join(
        [
            "Usage: rltune <command> [group=option] [key=value] ...",
            "",
            *(f"  rltune {command.usage:<{width}}  {command.purpose}" for command in commands),
            "",
            "rltune <command> --help says what each key is. rltune --version",
            'eval "$(rltune -sc install=bash)" completes commands, groups, options and keys.',
        ]
    )


def _complete(words: list[str]) -> None:
    """Complete a command line for a shell: names of commands here, anything after them by the command.

    Hydra's shell function calls the program at each TAB, with the line so far in an environment variable.
    """
    sys.argv = ["rltune", *words]
    if "query" not in words[-1]:
        # Hydra prints the shell function that a user installs for completion; it contains the program's name.
        return load_command("run")()
    words_so_far = os.environ.get("COMP_LINE", "").split(" ")
    if len(words_so_far) <= 2:
        print(" ".join(name for name in NAMES if name.startswith("".join(words_so_far[1:]))))
    elif words_so_far[1] in NAMES:
        os.environ["COMP_LINE"] = " ".join(["rltune", *words_so_far[2:]])
        load_command(words_so_far[1]).complete(words_so_far[-1])
