"""Run the program ``rltune``: dispatch to a command by name, and complete command lines for a shell."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sys

from rltune.cli.application.answer import leave
from rltune.cli.application.command import COMMANDS, COMPLETION, Command
from rltune.errors import RltuneError, choices, nearest

MODULES = ("run", "requests", "reading", "policies", "service")  # Modules of `rltune.cli` that register commands.


def main() -> None:
    """Run the command that ``sys.argv`` names, or print the overview or the version."""
    words = sys.argv[1:]
    if not words or words[0] in ("-h", "--help"):
        print(write_overview())
    elif words[0] == "--version":
        print(f"rltune {importlib.metadata.version('rltune')}")
    elif words[0] in COMPLETION:
        _complete(words)
    else:
        commands = load_commands()
        if words[0] not in commands:
            close = nearest(words[0], commands)
            fix = f"rltune {' '.join([close, *words[1:]])}" if close else "rltune lists them with what they do"
            leave(RltuneError(f"{words[0]}: no such command", choices(words[0], commands), fix))
        # Add the working directory to the path, as ``python -m`` does, so that a user's own modules can be imported.
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        sys.argv = words
        commands[words[0]]()


def load_commands() -> dict[str, Command]:
    """Import all commands, and return them by name in alphabetical order, with ``run`` first."""
    for module in MODULES:
        importlib.import_module(f"rltune.cli.{module}")
    return dict(sorted(COMMANDS.items(), key=lambda item: (item[0] != "run", item[0])))


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
    """Complete a command line for a shell: names of commands here, anything after them by Hydra.

    Hydra's shell function calls the program at each TAB, with the line so far in an environment variable.
    """
    commands = load_commands()
    sys.argv = ["rltune", *words]
    if "query" not in words[-1]:
        # Hydra prints the shell function that a user installs for completion; it contains the program's name.
        return commands["run"]()
    words_so_far = os.environ.get("COMP_LINE", "").split(" ")
    if len(words_so_far) <= 2:
        print(" ".join(name for name in commands if name.startswith("".join(words_so_far[1:]))))
    elif words_so_far[1] in commands:
        os.environ["COMP_LINE"] = " ".join(["rltune", *words_so_far[2:]])
        commands[words_so_far[1]]()
