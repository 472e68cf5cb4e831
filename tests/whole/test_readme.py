"""What README.md, CONTRIBUTING.md and docs/ say holds: commands compose, names and files exist, recipes work."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import math
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from builds import make_build
from composing import compose
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig

import rltune
from rltune.algorithms.arguments import build_search_space, name_arguments, values_of
from rltune.algorithms.preflight import check_corners
from rltune.cli.application.command import PolicyConfig, spell_settings
from rltune.cli.application.composed import ComposedCommand
from rltune.cli.application.program import ALIASES, NAMES, load_command, load_commands
from rltune.compose.command_settings import read_command_settings
from rltune.compose.overrides import spell_word
from rltune.config.bounds import list_bounds
from rltune.config.schema import RunConfig, derive_env_name
from rltune.config.validation import parse_config
from rltune.envs.build import make_env
from rltune.envs.observations import make_layout
from rltune.envs.searched import list_corner_envs
from rltune.envs.spec import EnvSpec, spec_of
from rltune.envs.validation import check_envs
from rltune.policies.extractors import ExtractorSpec, check_extractor
from rltune.records import Report
from rltune.search.dimensions import KINDS
from rltune.search.samplers import check_sampler
from rltune.search.schedulers import GO_ON, build_stopping_rule
from rltune.search.space import parse_space
from rltune.views import available

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
TEXT = "\n\n".join(page.read_text() for page in PAGES)
HOMES = (ROOT, ROOT / "src" / "rltune")  # a path in the text begins in one of them
OWN_BLOCK = re.compile(r"`(conf/\w+/\w+\.yaml)`[^`\n]*:\n\n((?:    .+\n)+)")
OWN_MODULE = re.compile(r"write `(\w+\.py)`:\n\n```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
OWN_LINE = re.compile(r"`(conf/\w+/\w+\.yaml)` what is searched: `(.+?)`")
OWN_FILES = {path: re.sub(r"^    ", "", text, flags=re.MULTILINE) for path, text in OWN_BLOCK.findall(TEXT)}
OWN_FILES |= dict([*OWN_LINE.findall(TEXT), *OWN_MODULE.findall(TEXT)])  # what a user writes, as the pages show it


def blocks() -> list[str]:
    """The code blocks, indented or fenced."""
    fenced = re.findall(r"^```\w*\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    indented = re.findall(r"(?:^\n)((?:^    .*\n|^\n(?=    ))+)", TEXT, re.MULTILINE)
    return [*fenced, *(re.sub(r"^    ", "", block, flags=re.MULTILINE) for block in indented)]


def commands() -> list[str]:
    """Everything to be typed: lines of code blocks, and code in the text."""
    lines = [line.split(" #")[0].strip() for block in blocks() for line in block.splitlines()]
    return sorted({*lines, *re.findall(r"`([^`\n]+)`", TEXT)})


SWEEPS = [line for line in commands() if re.match(r"python -m sweeps\.|rltune [a-z]", line)]
MAKES = [line for line in commands() if re.match(r"make \w", line)]
SNIPPETS = [block for block in blocks() if re.match(r"import |from ", block)]


def composed(command: str, overrides: list[str], folder: Path | None = None) -> Any:
    """The settings of a command, on top of the real configs; ``folder`` adds a person's own."""
    schema = load_commands()[command].schema
    if not isinstance(load_commands()[command], ComposedCommand):
        needed = ["policy=sweep:latest"] if issubclass(schema, PolicyConfig) else []  # Where a page names the command.
        return read_command_settings(command, schema, [*needed, *overrides])
    ConfigStore.instance().store("base_run", RunConfig)  # conf/submit.yaml builds on conf/run.yaml
    ConfigStore.instance().store(f"base_{command}", schema)
    if "-m" in overrides:  # the first of its jobs
        overrides = [word if "[" in word else word.partition(",")[0] for word in overrides if word != "-m"]
    chosen = {word.rpartition("=")[2] for word in overrides}
    has_own = any(Path(path).stem in chosen for path in OWN_FILES)  # The rest composes from our files alone, once.
    added = [f"hydra.searchpath=[file://{folder}]"] if folder and has_own else []
    overrides = [word for word in overrides if word not in ("--config-dir", "conf")]  # the folder, where there is one
    return compose(command, *(spell_word(word, schema) for word in overrides), *added)


def check_request(settings: DictConfig) -> RunConfig:
    """The checks of a request that need neither Ray nor a machine of a certain kind."""
    config = parse_config(settings)
    arguments = name_arguments(config.algo, config.env)
    space = build_search_space(arguments, config.space)
    values_of(arguments, space.names)
    build_stopping_rule(config.scheduler.kind, config.scheduler.args, config.budget.env_steps)
    check_sampler(config.searcher.kind, config.searcher.args, space)
    return config


def overrides_of(line: str) -> tuple[str, list[str]]:
    """The command's name and its overrides."""
    words = shlex.split(line.replace("rltune ", "python -m sweeps.") if line.startswith("rltune ") else line)
    words = words[: next((place for place, word in enumerate(words) if word in ("|", ">")), None)]  # Of a shell's pipe.
    switches = ("json=true", "check=true")  # They are the program's own, and no settings.
    name = words[2].removeprefix("sweeps.")
    command = load_command(name) if (name := ALIASES.get(name, name)) in NAMES else None
    spelled = spell_settings(words[3:], command.usage, command.schema, command.switches) if command else words[3:]
    return name, [word for word in spelled if word not in switches]


@pytest.fixture(scope="module")
def own_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the pages have a user write, written as they show them, where one types commands."""
    folder = tmp_path_factory.mktemp("own")
    for name, text in OWN_FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.fixture
def own_files(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A person's own groups; the modules beside them can be imported."""
    monkeypatch.syspath_prepend(own_folder)
    return own_folder / "conf"


def test_the_pages_have_commands_of_every_kind() -> None:
    assert {overrides_of(line)[0] for line in SWEEPS} >= {"run", "resume", "evaluate", "list", "show"}
    assert len(MAKES) >= 5
    assert SNIPPETS
    assert set(OWN_FILES) == {
        "conf/env/windy.yaml", "conf/algo/mine.yaml", "conf/space/mine.yaml", "conf/env/heating.yaml", "heating.py",
        "conf/env/plant.yaml", "my_tracker.py", "my_nets.py", "my_algo.py", "my_envs.py",
        "walk.py", "my_rule.py", "trading.py", "conf/env/trading.yaml", "conf/experiment/trading.yaml",
    }  # fmt: skip


@pytest.mark.parametrize("line", SWEEPS)
def test_every_command_composes_with_the_real_configs(line: str, own_files: Path) -> None:
    command, overrides = overrides_of(line)
    if command == "list" and overrides:
        assert overrides[0] in available.KINDS
        return
    settings = composed(command, overrides, own_files)
    if command == "run":
        config = check_request(settings)
        if "<" not in line:
            space, spec = build_search_space(name_arguments(config.algo, config.env), config.space), spec_of(config.env)
            check_envs(spec, list_corner_envs(spec, space.corners()))


def test_the_pages_own_network_can_be_trained_and_exported(own_files: Path) -> None:
    space = make_env({"id": "CartPole-v1"}).observation_space
    spec = ExtractorSpec("my_nets:Attention", {"heads": 4})
    assert check_extractor(spec, space, make_layout(space)) == []


def test_the_pages_own_stopping_rule_stops_weak_trials(own_files: Path) -> None:
    rule = build_stopping_rule("my_rule:Below", {"bound": 100}, 10_000)
    scores = {2_000: 1.0, 5_000: 99.0, 8_000: 101.0, 10_000: math.nan}
    stopped = [steps for steps, score in scores.items() if rule.decide(Report(0, steps, score)) != GO_ON]
    assert stopped == [5_000]


def test_the_pages_own_agents_are_mapped_by_their_function(own_files: Path) -> None:
    config = {"config": {"size": 4}}
    spec = EnvSpec("walk:Walkers", kwargs=config, policies="walk:choose_policy")
    assert check_envs(spec, []).policies == {"left": "walker", "right": "walker"}


def test_the_tutorials_model_has_the_name_that_its_sweep_gives_it() -> None:
    page = (ROOT / "docs" / "tutorial.md").read_text()
    named = {derive_env_name(env_id) for env_id in re.findall(r"env\.id=([\w:.-]*\w)", page)}
    assert {f"{name}-ppo" for name in named} == set(re.findall(r"models:/([\w-]+)@", page))


@pytest.mark.parametrize("line", MAKES)
def test_every_make_target_exists_and_its_arguments_compose(line: str) -> None:
    _, target, *variables = shlex.split(line)
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(rf"^{target}:", makefile, re.MULTILINE)
    for variable in variables:
        name, _, value = variable.partition("=")
        assert re.search(rf"^{name} \?=", makefile, re.MULTILINE)
        if name == "ARGS" and target == "sweep":
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
        if (inside and first not in ("outputs", "build")) or word.endswith((".toml", ".lock", ".yml", ".md")):
            yield word


@pytest.mark.parametrize("path", sorted(named_paths()))
def test_every_file_that_a_page_names_exists(path: str) -> None:
    assert any((home / path).exists() for home in HOMES)


def make_anchor(heading: str) -> str:
    """What a link to a heading ends with, on the site and where the repository is read."""
    return re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", heading.lower()))


def anchors_of(page: Path) -> set[str]:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return {make_anchor(heading) for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}


LINKS = [
    (page, link)
    for page in PAGES
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text())
    if not re.match(r"https?://", link)
]


def test_every_link_leads_to_a_file_and_to_a_heading_in_it() -> None:
    assert len(LINKS) > 50
    for page, link in LINKS:
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.is_file(), f"{page.name}: {link}"
        assert not anchor or anchor in anchors_of(target), f"{page.name}: {link}"


def test_the_sites_navigation_has_every_page_of_docs() -> None:
    listed = re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = [str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")]
    assert sorted(listed) == sorted([*pages, "settings.md"])


def load_script(name: str) -> Any:
    """A program of docs/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def test_the_page_of_settings_says_what_each_key_is() -> None:
    module = load_script("make_settings_page")
    rows = re.findall(r"^\| `([\w.]+)` \| `(.+)` \| (.*) \|$", module.make_page(ROOT / "conf"), re.MULTILINE)
    settings = {key: (value, meaning) for key, value, meaning in reversed(rows)}
    assert settings["budget.trials"][0] == "48"
    assert settings["certify.episodes"][0] == "50"
    ours = [key for key in settings if key.partition(".")[0] in ("budget", "checkpoint", "failures", "certify")]
    assert len(ours) >= 12
    assert [key for key in ours if not settings[key][1]] == []
    groups = {path.parent.name for path in (ROOT / "conf").glob("*/*.yaml")} - {"recipe"}
    assert groups == set(module.GROUPS)
    assert {path.stem for path in (ROOT / "conf").glob("*.yaml")} == {*module.COMMANDS, "run", "hydra_settings"}


COMMENTED = """\
# the file's heading
first: 1 # one
section:
  # above
  second: [a, # inside
    b]
  third: 'x # y'
fourth:
  - 1
  - 2
"""


def test_a_comment_behind_or_above_a_key_is_its_meaning(tmp_path: Path) -> None:
    module = load_script("make_settings_page")
    read_keys, Setting = module.read_keys, module.Setting
    file = tmp_path / "some.yaml"
    file.write_text(COMMENTED)
    assert read_keys(file) == [
        Setting("first", "1", "one"), Setting("section.second", "[a, b]", "above"),
        Setting("section.third", "'x # y'", ""), Setting("fourth", "- 1 - 2", ""),
    ]  # fmt: skip
    assert read_keys(file, "certify.")[0].key == "certify.first"


def test_the_comment_of_a_setting_names_its_choices() -> None:
    """Help pages show the comments of conf/, and nothing else says which words a setting takes."""
    for setting in load_script("make_settings_page").read_keys(ROOT / "conf" / "run.yaml"):
        bounds = list_bounds(RunConfig).get(setting.key)
        for choice in bounds.choices if bounds else ():
            assert choice in f"{setting.value} {setting.meaning}", setting.key


def test_the_architecture_names_every_room() -> None:
    table = (ROOT / "docs" / "architecture.md").read_text()
    rooms = {path.parent.name for path in (ROOT / "src" / "rltune").glob("*/__init__.py")}
    assert rooms - set(re.findall(r"^\| `(\w+)/` \|", table, re.MULTILINE)) == set()


def test_every_extra_and_every_kind_of_a_space_exists() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(re.findall(r"-e '\.\[(\w+)\]'", TEXT)) | {"atari", "mujoco"} <= set(extras)
    rows = re.findall(r"^\| (`\[.+?\]`.*?) \|", TEXT, re.MULTILINE)
    kinds = set(re.findall(r"`\[(\w+),", " ".join(rows)))
    assert kinds == {*KINDS, "or", "when"}
    for kind in kinds - {"or", "when"}:  # its recipe is composed below and tested in test_conditions.py
        low, high = (0.1, 0.5) if kind == "one_minus_loguniform" else (1, 8)
        form = [kind, low, high, 1] if kind == "quniform" else [kind, low, high]
        assert parse_space({"x": form}).names == ("x",)


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
    build = make_build(config.algo, spec_of(config.env))
    check_corners(build, build_search_space(config.algo, config.space))
