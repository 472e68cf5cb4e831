"""The program ``rltune``: finds the command that is typed, and completes what is being typed."""

from __future__ import annotations

import ast
import importlib
import os
import sys
from pathlib import Path

import rltune
from rltune.commands.application.command import COMPLETION, leave
from rltune.composition.composing import conf_dir
from rltune.errors import ConfigError, choices, nearest

MODULES = Path(__file__).parents[1]


def main() -> None:
    """Run the command that is typed."""
    words = sys.argv[1:]
    if not words or words[0] in ("-h", "--help"):
        print(write_overview())
    elif words[0] == "--version":
        print(f"rltune {rltune.__version__}")
    elif words[0] in COMPLETION:
        _complete(words)
    else:
        commands = list_commands()
        if words[0] not in commands:
            close = nearest(words[0], commands)
            fix = f"rltune {' '.join([close, *words[1:]])}" if close else "rltune lists them with what they do"
            leave(ConfigError(f"{words[0]}: no such command", choices(words[0], commands), fix))
        _run(words[0], words[1:])


def list_commands() -> dict[str, str]:
    """List the commands in the order of their files in conf/: the first line of what each says of itself."""
    found = {}
    for page in sorted(conf_dir().glob("*.yaml")):
        module = MODULES / f"{page.stem}.py"
        if module.is_file():  # hydra_settings.yaml belongs to all
            found[page.stem] = (ast.get_docstring(ast.parse(module.read_text())) or "").splitlines()[0]
    return dict(sorted(found.items(), key=lambda item: (item[0] != "run", item[0])))


def write_overview() -> str:
    """Write a line for each command: what is typed, and what it does."""
    parts = [line.strip("`.").split("``: ", 1) for line in list_commands().values()]
    width = max(len(typed) for typed, _ in parts)
    return "\n".join(
        [
            "Usage: rltune <command> [group=option] [key=value] ...",
            "",
            *(f"  {typed:<{width}}  {does}" for typed, does in parts),
            "",
            "rltune <command> --help says what each key is. rltune --version",
            'eval "$(rltune -sc install=bash)" completes commands, groups, options and keys.',
        ]
    )


def _run(command: str, words: list[str]) -> None:
    """Run a command as ``python -m`` does: with the present folder's modules, such as an environment's."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    module = importlib.import_module(f"rltune.commands.{command}")
    sys.argv = [str(module.__file__), *words]
    module.main()


def _complete(words: list[str]) -> None:
    """Answer a shell that asks what may follow: a command here, the rest by Hydra, as if the command were a program.

    Hydra's function in the shell asks the program at each TAB, with the line in a variable.
    """
    if "query" not in words[-1]:
        return _hand_to_hydra("run", words)  # prints that function, under the program's name
    typed = os.environ.get("COMP_LINE", "").split(" ")
    commands = list_commands()
    if len(typed) <= 2:
        print(" ".join(name for name in commands if name.startswith("".join(typed[1:]))))
    elif typed[1] in commands:
        os.environ["COMP_LINE"] = " ".join(["rltune", *typed[2:]])
        _hand_to_hydra(typed[1], words)


def _hand_to_hydra(command: str, words: list[str]) -> None:
    module = importlib.import_module(f"rltune.commands.{command}")
    sys.argv = ["rltune", *words]
    module.main()
