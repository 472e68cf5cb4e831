"""The program ``rltune``: its commands, what it says of a wrong one, and what a shell completes."""

from __future__ import annotations

import importlib
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import rltune
from rltune.cli.application.program import load_commands, main
from rltune.compose.composing import conf_dir

SHELL = """
eval "$(rltune -sc install=bash)"
while read -r COMP_LINE; do
    COMP_LINE="${COMP_LINE/_/}"; COMP_POINT=${#COMP_LINE}; read -ra COMP_WORDS <<< "$COMP_LINE"
    [[ "$COMP_LINE" == *" " ]] && COMP_WORDS+=("")
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMPREPLY=(); hydra_bash_completion; echo "${COMPREPLY[*]}"
done
"""


def type_in(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["rltune", *words])
    main()


def run_in(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    """Run a command that ends without an error, but not this process with it."""
    monkeypatch.setattr("rltune.cli.application.command.end_command", sys.exit)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    with pytest.raises(SystemExit) as left:
        type_in(monkeypatch, *words)
    assert left.value.code == 0


def test_without_a_command_each_has_its_line(monkeypatch, capsys):
    type_in(monkeypatch)
    shown = capsys.readouterr().out
    for name in (
        "run",
        "resume",
        "list",
        "show",
        "evaluate",
        "report",
        "compare",
        "export",
        "record",
        "stop",
        "enqueue",
        "retry",
        "watch",
    ):
        assert f"\n  rltune {name} " in shown
    assert max(map(len, shown.splitlines())) <= 120
    assert next(iter(load_commands())) == "run"


def test_each_command_has_its_file_in_conf_and_in_sweeps():
    for folder, others in ((conf_dir(), {"hydra_settings"}), (Path(__file__).parents[3] / "sweeps", {"__init__"})):
        assert {path.stem for path in folder.iterdir() if path.suffix in (".py", ".yaml")} == {
            *load_commands(),
            *others,
        }


def test_the_version_is_the_packages(monkeypatch, capsys):
    type_in(monkeypatch, "--version")
    assert capsys.readouterr().out == f"rltune {rltune.__version__}\n"


def test_a_command_that_is_none_is_answered_with_the_nearest(monkeypatch, capsys):
    with pytest.raises(SystemExit) as left:
        type_in(monkeypatch, "runn", "algo=dqn")
    assert left.value.code == 2
    lines = capsys.readouterr().err
    assert "'run'" in lines
    assert "run algo=dqn" in lines


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["status"], "list"),
        (["status", "group=g"], "list"),
        (["status", "--json"], "list"),
        (["status", "mine"], "show"),
        (["status", "--json", "mine"], "show"),
        (["status", "sweep=mine"], "show"),
        (["ls"], "list"),
        (["cancel", "mine"], "stop"),
    ],
)
def test_words_of_other_tools_are_commands(words: list[str], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    monkeypatch.setattr("rltune.cli.application.program.load_command", lambda name: lambda: loaded.append(name))
    type_in(monkeypatch, *words)
    assert loaded == [name]


def test_a_suggested_command_keeps_its_quotes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["env.kwargs={size: 4}", "space.lr=[1,2]", "it's; rm x"]
    with pytest.raises(SystemExit):
        type_in(monkeypatch, "rnu", *words)
    suggestion = capsys.readouterr().err.splitlines()[-1].partition("rltune ")[2]
    assert shlex.split(suggestion) == ["run", *words]


def test_a_command_is_run_with_the_words_after_it(monkeypatch, capsys):
    run_in(monkeypatch, "list", "algos")
    assert "dqn" in capsys.readouterr().out


@pytest.fixture
def own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A working folder with a module of its own, and one that is named as a library."""
    (tmp_path / "only_here.py").write_text("answer = 42")
    (tmp_path / "colorsys.py").write_text("raise RuntimeError('a file that hides a library')")
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["run", "resume", "retry"])
def test_modules_of_the_working_folder_are_found_last(name, monkeypatch, capsys, own_folder):
    """For `rltune run env.id=heating:Heating-v0` with heating.py here."""
    monkeypatch.delitem(sys.modules, "only_here", raising=False)
    run_in(monkeypatch, name, "--help")
    assert sys.path[-1] == str(own_folder)
    assert importlib.import_module("only_here").answer == 42
    assert importlib.import_module("colorsys").__file__ != str(own_folder / "colorsys.py")


@pytest.mark.parametrize("name", ["list", "show", "report", "logs", "compare"])
def test_commands_without_code_of_the_users_search_it_not(name, monkeypatch, capsys, own_folder):
    run_in(monkeypatch, name, "--help")
    assert not {"", ".", str(own_folder)} & set(sys.path)


@pytest.mark.slow
@pytest.mark.parametrize("words", [("-m", "rltune"), ("-c", "from rltune.cli.application.program import main; main()")])
def test_a_strangers_folder_hides_no_library(words: tuple[str, ...], tmp_path: Path) -> None:
    for name in ("hydra", "omegaconf", "gymnasium", "torch", "yaml", "numpy"):
        (tmp_path / f"{name}.py").write_text(f"open('PWNED-{name}', 'w'); raise ImportError('of a stranger')")
    done = subprocess.run(
        [sys.executable, *(() if words[0] == "-m" else ("-P",)), *words, "list"], cwd=tmp_path, capture_output=True
    )
    assert not list(tmp_path.glob("PWNED*"))
    assert b"of a stranger" not in done.stderr


@pytest.mark.slow
def test_bash_completes_commands_groups_options_and_keys(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "rltune"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\nfrom rltune.cli.application.program import main\nmain()\n")
    program.chmod(0o755)
    lines = ["rltune re", "rltune run algo=d", "rltune run algo=ppo env=cart", "rltune run budget.tr", "rltune nope x"]
    done = subprocess.run(
        ["bash", "-c", SHELL], input="\n".join(lines) + "\n", capture_output=True, text=True, check=True, cwd=tmp_path,
        env={**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"},
    )  # fmt: skip
    offered = [line.split() for line in done.stdout.splitlines()]
    assert offered == [
        ["record", "report", "resume", "retry"],
        ["algo=dqn", "algo=dreamerv3"], ["env=cartpole"], ["budget.trials="], [],
    ]  # fmt: skip
