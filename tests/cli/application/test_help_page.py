"""What ``--help`` says, at the width of a terminal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from rltune.cli.application.help_page import write_help
from rltune.compose.composing import conf_dir

ROOTS = sorted(path.stem for path in conf_dir().glob("*.yaml") if path.stem != "hydra_settings")


@pytest.fixture(autouse=True)
def activate_environment(monkeypatch):
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))


@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.parametrize("width", [80, 200])
def test_help_fits_the_terminal_but_for_words_that_do_not(root, width):
    too_long = [line for line in write_help(root, width).splitlines() if len(line) > width]
    assert [line for line in too_long if len(line.split()[-1]) < width / 2] == []


@pytest.mark.parametrize("root", ROOTS)
def test_help_loses_no_setting_and_no_word_of_a_comment(root):
    """Narrow and wide, it has the keys of the file, and all that its comments say."""
    page = (conf_dir() / f"{root}.yaml").read_text()
    for width in (60, 80, 1000):
        keys = write_help(root, width).partition("\n")[2].rpartition("\nFlags:")[0].partition("\nGroups (")[0]
        wanted = yaml.safe_load(page)
        wanted.pop("defaults", None)
        assert yaml.safe_load(keys) == wanted
        comments = [line.partition("# ")[2] for line in page.rpartition("\n\n")[2].splitlines()]
        assert set(" ".join(comments).split()) <= set(write_help(root, width).split())


def test_help_names_groups_that_a_person_chooses_and_no_others():
    lines = write_help("run", 1000).partition("\nGroups")[2].splitlines()[1:]
    named = [line.split("=")[0].strip() for line in lines[: lines.index("")]]
    assert {"algo", "env", "space", "searcher", "certify"} < set(named)
    assert not {"tuned", "recipe", "hydra_settings", "base_run"} & set(named)
    (certify,) = [line for line in lines if line.strip().startswith("certify=")]
    assert {"certify=on", "off,", "on"} <= set(certify.split()), "its default and its options"


def test_help_offers_the_options_of_a_folder_of_ones_own(tmp_path, monkeypatch):
    (tmp_path / "conf" / "env").mkdir(parents=True)
    (tmp_path / "conf" / "env" / "windy.yaml").write_text("name: windy")
    monkeypatch.chdir(tmp_path)
    assert ", windy" in write_help("run", 80)


@pytest.mark.parametrize("root", ["run", "list", "compare"])
def test_help_shows_the_command_as_it_can_be_typed_here(root, monkeypatch):
    monkeypatch.setattr("rltune.formatting._find_start", lambda: "rltune ")
    assert write_help(root, 80).startswith(f"Usage: rltune {root}")
    assert "sweeps." not in write_help(root, 80)


@pytest.mark.slow
@pytest.mark.parametrize("words", [["--help"], ["run", "--help"]])
def test_a_reader_may_take_the_first_lines_alone(words):
    command, pipe = [sys.executable, "-m", "rltune", *words], subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe) as child:
        child.stdout.close()
        assert (child.stderr.read(), child.wait()) == (b"", 0)
