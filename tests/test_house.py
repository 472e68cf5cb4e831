"""The house keeps its order: which room may import which, and what each may do. Read from the source alone."""

from __future__ import annotations

import ast
import functools
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from setuptools import find_namespace_packages

ROOT = Path(__file__).resolve().parents[1]

# A room imports only rooms from the rows above its own; inside a room any order without a circle.
ROOMS = """
records other_tools secrets search_path background installed
errors statistics formatting
config envs
compat
checkpoints cluster
ledger
tracking search policies
algorithms
engine
trial
certification probe
views
driver
compose
service
cli
rltune
sweeps __main__
"""
RANK = {room: rank for rank, row in enumerate(ROOMS.strip().splitlines()) for room in row.split()}
ALONE = "rltune.policies.served_model"  # shipped inside every registered model, where there is no rltune

LIGHT = (
    "config",
    "search",
    "other_tools",
    "errors",
    "formatting",
    "records",
    "secrets",
)  # a typo is answered before heavy imports
HEAVY = ("ray", "torch", "mlflow")
# Who may ask for what `make_plan` resolves once: everybody behind it takes the plan, or a few of its fields.
RESOLVED = {
    "RunConfig": (
        *("config", "compose", "rltune"),  # They make it, and it is public.
        *("cli.run", "cli.service", "cli.python.call", "service.checking"),  # It is the schema of their commands.
        *("driver.run", "driver.starting", "driver.plan", "driver.warm_starts"),  # They make the plan.
    ),
    "get_traits": ("search", "driver.plan"),
    "find_capabilities": ("config", "algorithms", "compose", "driver.plan", "probe"),
    "read_criteria": ("config", "ledger", "views", "driver.plan", "driver.warm_starts", "driver.requests.handle"),
    "fit_sizes": ("config", "driver.plan", "driver.starting"),
}
# Tables of what a setting can name: their rows are strings, so that no setting is checked by importing it.
REGISTRIES = {"rltune.config.schema": ("tracking",), "rltune.config.capabilities": ("algorithms", "compat", "engine")}
OWNERS = {"mlflow": ("tracking", "policies"), "hydra": ("compose", "cli")}


class Module:
    """One source file: its room, its dotted name and its syntax tree."""

    def __init__(self, path: Path, root: Path) -> None:
        self.path, self.source = path.relative_to(root), path.read_text()
        self.tree = ast.parse(self.source)
        parts = self.path.with_suffix("").parts
        parts = (parts[1:] if parts[0] == "src" else parts)[: None if path.stem != "__init__" else -1]
        self.dotted = ".".join(parts)
        self.room = parts[1] if parts[0] == "rltune" and len(parts) > 1 else parts[0]

    def imports(self, top_level: bool = False) -> Iterator[tuple[int, str]]:
        """Line and name of each import; ``top_level`` leaves out functions and TYPE_CHECKING blocks."""
        for node in _outside_functions(self.tree) if top_level else ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from ((node.lineno, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                package = self.dotted.split(".")[: None if self.path.name == "__init__.py" else -1]
                base = package[: len(package) - node.level + 1] if node.level else []
                start = ".".join([*base, *filter(None, [node.module])])
                yield from ((node.lineno, f"{start}.{alias.name}") for alias in node.names)


def _outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        checked = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        if not checked and not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield child
            yield from _outside_functions(child)


@functools.cache
def modules(root: Path) -> list[Module]:
    paths = [*(root / "src" / "rltune").rglob("*.py"), *(root / "sweeps").rglob("*.py")]
    return [Module(path, root) for path in sorted(paths)]


def misplaced(root: Path) -> list[str]:
    """Rooms of which the order says nothing."""
    rooms = {m.room: m.path for m in modules(root) if m.room not in RANK}
    return [f"{path}: add '{room}' to ROOMS in {Path(__file__).name}" for room, path in rooms.items()]


def upward_imports(root: Path) -> list[str]:
    """Imports of a room that is not lower."""
    wrong = []
    for module in modules(root):
        for line, imported in module.imports():
            package, _, rest = imported.partition(".")
            if package not in ("rltune", "sweeps"):
                continue
            first = rest.split(".")[0]
            room = package if package == "sweeps" or first not in RANK else first
            inside = room == module.room and module.dotted != ALONE
            if not inside and (RANK[room] >= RANK.get(module.room, 0) or module.dotted == ALONE):
                wrong.append(f"{module.path}:{line}: {module.room} may not import {imported}")
    return wrong


def upward_names(root: Path) -> list[str]:
    """Strings that name a module of a room that is not lower, so that a room could import what it must not know."""
    rooms = {module.dotted: module.room for module in modules(root) if module.dotted.count(".") > 1}
    wrong = []
    for module in modules(root):
        for node in ast.walk(module.tree):
            if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
                continue
            named = node.value.partition(":")[0]
            room = rooms.get(named, module.room)
            is_upward = room != module.room and RANK[room] >= RANK.get(module.room, 0)
            if is_upward and room not in REGISTRIES.get(module.dotted, ()):
                wrong.append(f"{module.path}:{node.lineno}: {module.room} may not name {node.value}")
    return wrong


def circles(root: Path) -> list[str]:
    """Modules that import each other, directly or on a detour, when they are loaded."""
    known = {m.dotted: m for m in modules(root)}
    needs = {
        name: {
            target for _, imported in m.imports(top_level=True) for target in (imported, imported.rpartition(".")[0])
        }
        & known.keys() - {name}
        for name, m in known.items()
    }
    gone: set[str] = set()
    while ready := {name for name, wanted in needs.items() if wanted <= gone} - gone:
        gone |= ready
    return [f"{name} is in, or needs, a circle of imports" for name in sorted(needs.keys() - gone)]


def heavy_imports(root: Path) -> list[str]:
    """Light rooms that import a heavy package as they are loaded."""
    return [
        f"{m.path}:{line}: {m.room} loads {imported}: import it in the function that needs it"
        for m in modules(root)
        if m.room in LIGHT
        for line, imported in m.imports(top_level=True)
        if imported.split(".")[0] in HEAVY
    ]


def misplaced_packages(root: Path) -> list[str]:
    """Packages that are imported where another room should be asked."""
    return [
        f"{m.path}:{line}: only {', '.join(OWNERS[package])} may import {package}"
        for m in modules(root)
        for line, imported in m.imports()
        if (package := imported.split(".")[0]) in OWNERS and m.room not in OWNERS[package]
    ]


def late_questions(root: Path) -> list[str]:
    """Modules that ask again for what the plan has resolved."""
    return [
        f"{m.path}:{line}: {name} is for {', '.join(RESOLVED[name])}: take the plan, or the fields of it that you need"
        for m in modules(root)
        for line, imported in m.imports()
        if (name := imported.rpartition(".")[2]) in RESOLVED and imported.startswith("rltune.")
        if m.room not in RESOLVED[name] and m.dotted.removeprefix("rltune.") not in RESOLVED[name]
    ]


def ray_starts(root: Path) -> list[str]:
    """Places outside the cluster's room that call ``ray.init``."""
    return [
        f"{m.path}:{node.lineno}: only cluster starts Ray"
        for m in modules(root)
        if m.room != "cluster"
        for node in ast.walk(m.tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "ray.init"
    ]


def errors_without_parts(root: Path) -> list[str]:
    """Places that read a part back from an error's first line, or write a key and a value into its problem."""
    wrong = []
    for module in modules(root):
        for node in ast.walk(module.tree):
            is_search = isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn)
            read = node.comparators[0] if is_search else getattr(node, "value", None)
            is_part = isinstance(read, ast.Attribute) and read.attr in ("what", "problem")
            is_read = is_part and (is_search or isinstance(node, ast.Attribute | ast.Subscript))
            text = ast.unparse(node.args[0]) if isinstance(node, ast.Call) and node.args else ""
            name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            is_ours = name.endswith("Error") and name not in ("ValueError", "TypeError")
            is_sentence = is_ours and re.match(r"""f?['"][^\s'"]+=""", text)
            if is_read or is_sentence:
                wrong.append(f"{module.path}:{node.lineno}: an error has its key and its value as parts")
    return wrong


def untested(root: Path) -> list[str]:
    """Modules without the test file of their name; a package's ``__init__`` needs none.

    Nor does a command: ``tests/whole/test_commands.py`` types or calls each of them.
    """
    source = root / "src" / "rltune"
    modules = (path for path in source.rglob("*.py") if not path.stem.startswith("__"))
    paths = sorted(path.relative_to(source) for path in modules if path.parent != source / "cli")
    return [
        f"src/rltune/{name}: add tests/{name.parent}/test_{name.name}"
        for name in paths
        if not (root / "tests" / name).with_name(f"test_{name.name}").exists()
    ]


RULES = {
    "every room has a place in the order": misplaced,
    "a room imports only lower ones": upward_imports,
    "no string names a module of an upper room": upward_names,
    "no module needs itself to be loaded": circles,
    "light rooms load nothing heavy": heavy_imports,
    "each package has its owner": misplaced_packages,
    "only the cluster's room starts ray": ray_starts,
    "a plan is resolved once": late_questions,
    "errors have parts": errors_without_parts,
}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_the_source_keeps_the_rule(rule):
    assert not (broken := rule(ROOT)), "\n" + "\n".join(broken)


WRONG = [
    (misplaced, "src/rltune/novel/thing.py", "", "add 'novel' to ROOMS"),
    (upward_imports, "src/rltune/search/space.py", "from rltune.trial.metrics import x", "search may not import"),
    (
        upward_imports,
        "src/rltune/search/space.py",
        "def f():\n    from rltune import driver",
        "may not import rltune.driver",
    ),
    (upward_imports, "src/rltune/search/space.py", "import rltune.policies.uri", "may not import rltune.policies"),
    (upward_imports, "src/rltune/search/space.py", "from ..trial import metrics", "may not import rltune.trial"),
    (upward_imports, "src/rltune/ledger/study.py", "import sweeps.run", "ledger may not import sweeps.run"),
    (upward_imports, "src/rltune/policies/served_model.py", "from rltune.policies import uri", "may not import"),
    (upward_imports, "src/rltune/trial/metrics.py", "from rltune import load_policy", "may not import rltune.load"),
    (upward_names, "src/rltune/cluster/start.py", "load('rltune.engine.two')", "may not name rltune.engine.two"),
    (upward_names, "src/rltune/cluster/start.py", "NAME = 'rltune.engine.two:Thing'", "cluster may not name"),
    (upward_names, "src/rltune/config/schema.py", "NAME = 'rltune.engine.two:Thing'", "config may not name"),
    (circles, "src/rltune/engine/one.py", "import rltune.engine.two", "engine.two is in, or needs, a circle"),
    (
        heavy_imports,
        "src/rltune/config/schema.py",
        "try:\n    import torch.nn\nexcept ImportError: pass",
        "loads torch",
    ),
    (misplaced_packages, "src/rltune/ledger/study.py", "def f():\n    import mlflow", "may import mlflow"),
    (
        misplaced_packages,
        "src/rltune/driver/plan.py",
        "from hydra import compose",
        "cli may import hydra",
    ),
    *(
        (errors_without_parts, "src/rltune/config/schema.py", source, "as parts")
        for source in (
            "error.what.startswith('env.')",
            "'lr' in refused.problem",
            "error.what[4:]",
            "raise StudyError(f'{key}={name}: no such sweep')",
        )
    ),
    (late_questions, "src/rltune/driver/end.py", "from rltune.config.schema import RunConfig", "take the plan"),
    (late_questions, "src/rltune/views/page.py", "from rltune.search.samplers import get_traits", "take the plan"),
    (ray_starts, "src/rltune/trial/metrics.py", "import ray\nray.init()", "only cluster starts Ray"),
]


@pytest.mark.parametrize(("rule", "path", "source", "message"), WRONG)
def test_a_breach_is_found_and_named(rule, path, source, message, tmp_path):
    others = {"src/rltune/engine/two.py": "from rltune.engine.one import x", path: source}
    for name, text in others.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert any(message in line for line in rule(tmp_path)), rule(tmp_path)


RIGHT = [
    ("src/rltune/search/space.py", "def f():\n    import ray\nfrom rltune.errors import ConfigError"),
    ("src/rltune/search/space.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch"),
    ("src/rltune/engine/on_policy/ppo.py", "from rltune.engine.sampling.remote import collect\nimport torch"),
    ("src/rltune/config/capabilities.py", "ENGINE = 'rltune.engine.one:Class'"),
    ("src/rltune/driver/start.py", "NAMES = 'rltune.engine.one', 'see rltune.cli.run'"),
    ("src/rltune/policies/served_model.py", "import mlflow\nimport torch"),
    ("src/rltune/cli/run.py", "import hydra\nfrom rltune.driver.run import run_sweep"),
]


@pytest.mark.parametrize(("path", "source"), RIGHT)
def test_what_is_allowed_is_let_through(path, source, tmp_path):
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_text(source)
    assert [broken for rule in RULES.values() for broken in rule(tmp_path)] == []


def test_every_room_is_packaged_and_ships_its_files():
    shipped = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    files = [path for path in (*(ROOT / "src/rltune").rglob("*"), *(ROOT / "conf").rglob("*.yaml")) if path.is_file()]
    folders = {"/".join(file.parent.parts[len(ROOT.parts) :]) for file in files if file.suffix != ".pyc"}
    packages = {f"rltune/{folder}".removeprefix("rltune/src/").replace("/", ".") for folder in folders}
    assert set(find_namespace_packages(str(ROOT / "src"))) == packages
    suffixes = {file.suffix for file in files} - {".py", ".pyc", ".typed"}
    assert suffixes == {pattern.removeprefix("*") for pattern in shipped["*"]}


def test_every_module_has_its_test_file():
    assert not (wrong := untested(ROOT)), "\n" + "\n".join(wrong)


def test_a_module_without_its_test_file_is_found(tmp_path):
    for name in ("src/rltune/ledger/__init__.py", "src/rltune/ledger/new.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert [line.partition(":")[0] for line in untested(tmp_path)] == ["src/rltune/ledger/new.py"]
    (tmp_path / "tests" / "ledger").mkdir(parents=True)
    (tmp_path / "tests" / "ledger" / "test_new.py").touch()
    assert untested(tmp_path) == []


VAGUE = frozenset({"told", "beats", "found", "asked"})  # Names that do not say what their value is.
NAMES = ("id", "arg", "attr", "name", "asname")  # The fields of syntax trees that have names.


def vague_names(root: Path) -> list[str]:
    """Names of values, arguments, attributes and functions that do not say what they are."""
    texts = {path: path.read_text() for room in ("src", "tests") for path in sorted((root / room).rglob("*.py"))}
    word = re.compile(rf"\b({'|'.join(VAGUE)})\b")
    return [
        f"{path.relative_to(root)}:{getattr(node, 'lineno', 1)}: call '{name}' by what its value is"
        for path, text in texts.items()
        if word.search(text)
        for node in ast.walk(ast.parse(text))
        for name in {getattr(node, field, None) for field in NAMES} & VAGUE
    ]


def test_names_say_what_their_value_is():
    assert not (wrong := vague_names(ROOT)), "\n" + "\n".join(wrong)


def test_a_vague_name_is_found(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_new.py").write_text("def test_it(told):\n    assert f'{told.asked}'\n")
    assert {line.partition(": ")[2] for line in vague_names(tmp_path)} == {
        f"call '{name}' by what its value is" for name in ("told", "asked")
    }
