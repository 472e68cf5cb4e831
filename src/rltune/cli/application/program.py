"""Run the program ``rltune``: find the command by its name, and complete command lines for a shell."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import os
import sys
from pathlib import Path

from rltune.cli.application.command import COMPLETION, leave
from rltune.compose.composing import conf_dir
from rltune.errors import ConfigError, choices, nearest

MODULES = Path(__file__).parents[1]


def main() -> None:
    """Run the command that the command line names."""
    words = sys.argv[1:]
    if not words or words[0] in ("-h", "--help"):
        print(write_overview())
    elif words[0] == "--version":
        print(f"rltune {importlib.metadata.version('rltune')}")
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
    """Return the first line of each command's docstring by the command's name, ``run`` first."""
    summaries = {}
    for page in sorted(conf_dir().glob("*.yaml")):
        module = MODULES / f"{page.stem}.py"
        if module.is_file():  # hydra_settings.yaml is no command's file.
            summaries[page.stem] = (ast.get_docstring(ast.parse(module.read_text())) or "").splitlines()[0]
    return dict(sorted(summaries.items(), key=lambda item: (item[0] != "run", item[0])))


def write_overview() -> str:
    """Write the overview: a line for each command with its usage and its purpose."""
    parts = [line.strip("`.").split("``: ", 1) for line in list_commands().values()]
    width = max(len(usage) for usage, _ in parts)
    return "\n".join(
        [
            "Usage: rltune <command> [group=option] [key=value] ...",
            "",
            *(f"  {usage:<{width}}  {purpose}" for usage, purpose in parts),
            "",
            "rltune <command> --help says what each key is. rltune --version",
            'eval "$(rltune -sc install=bash)" completes commands, groups, options and keys.',
        ]
    )


def _run(command: str, words: list[str]) -> None:
    """Run a command as ``python -m`` does, so that it can import modules of the present folder."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    module = importlib.import_module(f"rltune.cli.{command}")
    sys.argv = [str(module.__file__), *words]
    module.main()


def _complete(words: list[str]) -> None:
    """Print the completions of a command line: the commands' names here, everything else by Hydra.

    Hydra's shell function calls the program at each TAB, with the line so far in an environment variable.
    """
    if "query" not in words[-1]:
        return _hand_to_hydra("run", words)  # Prints the shell function with the program's name in it.
    words_so_far = os.environ.get("COMP_LINE", "").split(" ")
    commands = list_commands()
    if len(words_so_far) <= 2:
        print(" ".join(name for name in commands if name.startswith("".join(words_so_far[1:]))))
    elif words_so_far[1] in commands:
        os.environ["COMP_LINE"] = " ".join(["rltune", *words_so_far[2:]])
        _hand_to_hydra(words_so_far[1], words)


def _hand_to_hydra(command: str, words: list[str]) -> None:
    module = importlib.import_module(f"rltune.cli.{command}")
    sys.argv = ["rltune", *words]
    module.main()
