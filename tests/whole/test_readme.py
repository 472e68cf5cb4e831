"""What README.md, CONTRIBUTING.md and docs/ say holds: commands compose, names and files exist, recipes work."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig

import rltune
from rltune.algorithms.arguments import values_of
from rltune.algorithms.build import Build
from rltune.algorithms.preflight import check_corners
from rltune.composition.composing import conf_dir
from rltune.config.schema import RunConfig
from rltune.config.validation import parse_config
from rltune.envs.build import make_env
from rltune.envs.spec import EnvSpec, spec_of
from rltune.envs.validation import check_env
from rltune.reporting import available
from rltune.search.samplers import check_sampler
from rltune.search.schedulers import build_stopping_rule
from rltune.search.space import parse_space

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXT = "\n\n".join(page.read_text() for page in PAGES)
HOMES = (ROOT, ROOT / "src" / "rltune")  # a path in the text begins in one of them
OWN_BLOCK = re.compile(r"`(conf/\w+/\w+\.yaml)`[^`\n]*:\n\n((?:    .+\n)+)")
OWN_LINE = re.compile(r"`(conf/\w+/\w+\.yaml)` what is searched: `(.+?)`")
OWN_FILES = {path: re.sub(r"^    ", "", text, flags=re.MULTILINE) for path, text in OWN_BLOCK.findall(TEXT)}
OWN_FILES |= dict(OWN_LINE.findall(TEXT))  # what a user writes, as the pages show it


def blocks() -> list[str]:
    """The code blocks, indented or fenced."""
    fenced = re.findall(r"^```\w*\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    indented = re.findall(r"(?:^\n)((?:^    .*\n|^\n(?=    ))+)", TEXT, re.MULTILINE)
    return [*fenced, *(re.sub(r"^    ", "", block, flags=re.MULTILINE) for block in indented)]


def commands() -> list[str]:
    """Everything to be typed: lines of code blocks, and code in the text."""
    lines = [line.split(" #")[0].strip() for block in blocks() for line in block.splitlines()]
    return sorted({*lines, *re.findall(r"`([^`\n]+)`", TEXT)})


SWEEPS = [line for line in commands() if line.startswith("python -m sweeps.")]
MAKES = [line for line in commands() if re.match(r"make \w", line)]
SNIPPETS = [block for block in blocks() if re.match(r"import |from ", block)]


def composed(command: str, overrides: list[str], folder: Path | None = None) -> DictConfig:
    """What Hydra makes of a command, on top of the real configs; ``folder`` adds a person's own."""
    schema: Any = RunConfig
    if command != "run":
        schema = getattr(importlib.import_module(f"rltune.commands.{command}"), f"{command.capitalize()}Config")
    ConfigStore.instance().store(f"base_{command}", schema)
    added = [f"hydra.searchpath=[file://{folder}]"] if folder else []
    with initialize_config_dir(version_base="1.3", config_dir=str(conf_dir())):
        return compose(command, [*overrides, *added])


def check_request(settings: DictConfig) -> RunConfig:
    """The checks of a request that need neither Ray nor a machine of a certain kind."""
    config = parse_config(settings)
    space = parse_space(config.space)
    values_of(config.algo, space.names)
    build_stopping_rule(config.scheduler.kind, config.scheduler.args, config.budget.env_steps)
    check_sampler(config.searcher.kind, config.searcher.args, space)
    return config


def overrides_of(line: str) -> tuple[str, list[str]]:
    """The command's name and its overrides."""
    words = shlex.split(line)
    return words[2].removeprefix("sweeps."), words[3:]


def test_the_pages_have_commands_of_every_kind() -> None:
    assert {overrides_of(line)[0] for line in SWEEPS} >= {"run", "resume", "evaluate", "list", "show"}
    assert len(MAKES) >= 5
    assert SNIPPETS


@pytest.mark.parametrize("line", [line for line in SWEEPS if "windy" not in line and "mine" not in line])
def test_every_command_composes_with_the_real_configs(line: str) -> None:
    command, overrides = overrides_of(line)
    if command == "list" and overrides:
        assert overrides[0] in available.KINDS
        return
    settings = composed(command, overrides)
    if command == "run":
        config = check_request(settings)
        if "<" not in line:
            check_env(spec_of(config.env))


@pytest.mark.parametrize("line", MAKES)
def test_every_make_target_exists_and_its_arguments_compose(line: str) -> None:
    _, target, *variables = shlex.split(line)
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(rf"^{target}:", makefile, re.MULTILINE)
    for variable in variables:
        name, _, value = variable.partition("=")
        assert re.search(rf"^{name} \?=", makefile, re.MULTILINE)
        if name == "ARGS":
            check_request(composed("run", shlex.split(value)))


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_every_python_snippet_compiles_and_names_what_exists(snippet: str) -> None:
    from rltune.policies.policy import Policy

    homes = {"rltune": rltune, "policy": Policy}
    for node in ast.walk(ast.parse(snippet)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in homes:
            assert hasattr(homes[node.value.id], node.attr), f"{node.value.id}.{node.attr}"


def named_paths() -> Iterator[str]:
    """Files and folders of this repository that the text names; a user's own files are tested below."""
    for word in set(re.findall(r"`([\w./-]+)`", TEXT)) - set(OWN_FILES):
        first = word.split("/")[0]
        inside = "/" in word and first and any((home / first).exists() for home in HOMES)
        if (inside and first != "outputs") or word.endswith((".toml", ".lock", ".yml", ".md")):
            yield word


@pytest.mark.parametrize("path", sorted(named_paths()))
def test_every_file_that_a_page_names_exists(path: str) -> None:
    assert any((home / path).exists() for home in HOMES)


def test_the_architecture_names_every_room() -> None:
    table = (ROOT / "docs" / "architecture.md").read_text()
    rooms = {path.parent.name for path in (ROOT / "src" / "rltune").glob("*/__init__.py")}
    assert rooms - set(re.findall(r"^\| `(\w+)/` \|", table, re.MULTILINE)) == set()


def test_every_extra_and_every_kind_of_a_space_exists() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(re.findall(r"-e '\.\[(\w+)\]'", TEXT)) | {"atari", "mujoco"} <= set(extras)
    rows = re.findall(r"^\| (`\[.+?\]`.*?) \|", TEXT, re.MULTILINE)
    kinds = re.findall(r"`\[(\w+),", " ".join(rows))
    assert len(kinds) == 9
    for kind in set(kinds) - {"when"}:  # its recipe is composed below and tested in test_conditions.py
        low, high = (0.1, 0.5) if kind == "one_minus_loguniform" else (1, 8)
        form = [kind, low, high, 1] if kind == "quniform" else [kind, low, high]
        assert parse_space({"x": form}).names == ("x",)


@pytest.fixture
def own_files(tmp_path: Path) -> Path:
    """The files that the pages have a user write, written as they show them."""
    assert set(OWN_FILES) == {"conf/env/windy.yaml", "conf/algo/mine.yaml", "conf/space/mine.yaml"}
    for name, text in OWN_FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "conf"


def test_the_recipe_for_an_environment_needs_one_file(own_files: Path) -> None:
    (line,) = (line for line in SWEEPS if "windy" in line)
    config = check_request(composed("run", overrides_of(line)[1], own_files))
    assert (config.env.name, config.env.id) == ("windy", "LunarLander-v3")
    import gymnasium

    assert config.env.id in gymnasium.registry
    wrappers = re.search(r"`(wrappers: .+?)`", TEXT)
    assert wrappers
    spec = EnvSpec("CartPole-v1", {}, tuple(yaml.safe_load(wrappers[1])["wrappers"]))
    env = make_env(spec)
    assert type(env).__name__ == "TimeLimit"
    env.close()


def test_the_recipe_for_an_algorithm_needs_two_files(own_files: Path) -> None:
    (line,) = (line for line in SWEEPS if "mine" in line)
    config = check_request(composed("run", overrides_of(line)[1], own_files))
    build = Build(config.algo, spec_of(config.env))
    check_corners(build, parse_space(config.space))
