"""Module order, permitted imports and sizes, read from the source; nothing is imported."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Lowest first: a module imports only from the rows above its own. A new module goes into the first row after
# everything that it imports.
ORDER = (
    ("errors", "rows", "memory"),
    ("address", "bundle_reader", "statistics", "sweep_folder", "conditions", "recurrence"),
    ("config", "wrappers", "disk"),
    ("agents", "hatch", "ahead"),
    (
        "space",
        "resources",
        "connectors",
        "dataset",
        "bundle",
        "progress",
        "checkpoint",
        "watchdog",
        "orphans",
        "certification",
        "multi_agent",
        "atari",
        "registering",
        "nursery",
    ),
    ("environment", "offline", "catalogue"),
    ("algorithm", "cluster", "policy_uri", "team"),
    ("restored",),
    ("policy",),
    ("engine", "exporting", "video"),
    ("runner",),
    ("trial",),
    ("samplers",),
    ("study",),
    ("ledger",),
    ("rungs",),
    ("search", "schedule"),
    ("summary", "spool", "deaths", "mlflow_client"),
    ("registry", "probe"),
    ("runs",),
    ("tracking", "console"),
    ("certify",),
    ("recorder", "outcome", "plan"),
    ("findings",),
    ("figures",),
    ("pictures",),
    ("report", "comparison", "session", "champion"),
    ("retrain",),
    ("stages",),
    ("conductor",),
    ("sweep",),
    ("overview", "pruning"),
)
RANK = {name: rank for rank, row in enumerate(ORDER) for name in row}
FACE, COMMANDS = len(ORDER), len(ORDER) + 1  # rltune/__init__.py, and sweeps.* above everything
ALONE = ("served",)  # shipped inside every registered model, where there is no rltune

LIGHT = (
    "config",
    "space",
    "resources",
    "report",
    "errors",
    "summary",
)  # a typo is answered before heavy imports
HEAVY = ("ray", "torch", "mlflow")
ONLY = {  # package -> the modules that may import it at all; rltune's face and the commands are modules too
    "mlflow": ("tracking", "mlflow_client", "runs", "registry", "policy", "policy_uri", "team", *ALONE),
    "hydra": (),
}
STARTS_RAY = ("cluster", "sweep")

MAX_MODULE_LINES, MAX_FUNCTION_LINES, MAX_PARAMETERS = 420, 60, 6


class Module:
    """One source file: its name as in `ORDER` and its syntax tree."""

    def __init__(self, path: Path, root: Path) -> None:
        self.path, self.source = path.relative_to(root), path.read_text()
        self.tree = ast.parse(self.source)
        parts = self.path.with_suffix("").parts
        self.is_command = parts[0] == "sweeps"
        self.dotted = ".".join(parts[1:] if parts[0] == "src" else parts).removesuffix(".__init__")
        self.name = self.dotted.split(".")[1] if "." in self.dotted else ""  # engine.ppo belongs to engine

    def imports(self, top_level: bool = False) -> Iterator[tuple[int, str]]:
        """Line and name of each import; ``top_level`` leaves out functions and TYPE_CHECKING blocks."""
        for node in _outside_functions(self.tree) if top_level else ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from ((node.lineno, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                package = self.dotted.split(".")
                if self.path.name != "__init__.py":
                    package = package[:-1]
                base = [*package[: len(package) - node.level + 1], *filter(None, [node.module])]
                start = ".".join(base) if node.level else str(node.module)
                yield from ((node.lineno, f"{start}.{alias.name}") for alias in node.names)

    def functions(self) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef, bool]]:
        """Every function, and whether its first parameter is self or cls."""
        methods = {
            child
            for node in ast.walk(self.tree)
            if isinstance(node, ast.ClassDef)
            for child in node.body
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))
            and not any(ast.unparse(decorator) == "staticmethod" for decorator in child.decorator_list)
        }
        for node in ast.walk(self.tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield node, node in methods


def _outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        checked = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        if not checked and not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield child
            yield from _outside_functions(child)


@functools.cache
def modules(root: Path) -> list[Module]:
    found = [*(root / "src" / "rltune").rglob("*.py"), *(root / "sweeps").rglob("*.py")]
    return [Module(path, root) for path in sorted(found)]


def unplaced(root: Path) -> list[str]:
    """Modules of which the order says nothing."""
    return [
        f"{m.path}: add '{m.name}' to ORDER in {Path(__file__).name}: the first row after all that it imports"
        for m in modules(root)
        if m.name and not m.is_command and m.name not in RANK and m.name not in ALONE
    ]


def upward_imports(root: Path) -> list[str]:
    """Imports of a module that is not lower; inside engine any order without a circle is fine."""
    wrong = []
    for module in modules(root):
        rank = COMMANDS if module.is_command else RANK.get(module.name, FACE)
        for line, imported in module.imports():
            package, _, rest = imported.partition(".")
            target = rest.split(".")[0]
            if package == "sweeps" and not module.is_command:
                wrong.append(f"{module.path}:{line}: the library imports the command {imported}")
            if package != "rltune" or target == module.name != "":
                continue
            reached = RANK.get(target, FACE)
            allowed = reached < rank and (module.name not in ALONE or module.is_command)
            if not allowed:
                wrong.append(f"{module.path}:{line}: {module.name or 'rltune'} may not import {imported}")
    return wrong


def circles(root: Path) -> list[str]:
    """Modules of one package that import each other, directly or on a detour, when they are loaded."""
    known = {m.dotted: m for m in modules(root)}
    needs = {
        name: {target for _, found in m.imports(top_level=True) for target in (found, found.rpartition(".")[0])}
        & known.keys() - {name}
        for name, m in known.items()
    }
    gone: set[str] = set()
    while ready := {name for name, wanted in needs.items() if wanted <= gone} - gone:
        gone |= ready
    return [f"{name} is in, or needs, a circle of imports" for name in sorted(needs.keys() - gone)]


def heavy_imports(root: Path) -> list[str]:
    """Light modules that import a heavy package as they are loaded."""
    return [
        f"{m.path}:{line}: {m.name} loads {imported}: import it in the function that needs it"
        for m in modules(root)
        if m.name in LIGHT and not m.is_command
        for line, imported in m.imports(top_level=True)
        if imported.split(".")[0] in HEAVY
    ]


def misplaced_packages(root: Path) -> list[str]:
    """Packages that are imported where another module should be asked."""
    wrong = []
    for module in modules(root):
        for line, imported in module.imports():
            package = imported.split(".")[0]
            allowed = module.is_command if package == "hydra" else module.name in ONLY.get(package, (module.name,))
            if not allowed:
                owners = ", ".join(ONLY[package]) or "sweeps.*"
                wrong.append(f"{module.path}:{line}: only {owners} may import {package}")
    return wrong


def ray_starts(root: Path) -> list[str]:
    """Places other than the conductor's that call ``ray.init``."""
    return [
        f"{m.path}:{node.lineno}: only {' and '.join(STARTS_RAY)} start Ray"
        for m in modules(root)
        if m.name not in STARTS_RAY or m.is_command
        for node in ast.walk(m.tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "ray.init"
    ]


def oversized(root: Path) -> list[str]:
    """What is beyond the house's band; of parameters, self and cls are not counted, ``*args`` is."""
    wrong = []
    for module in modules(root):
        if (lines := len(module.source.splitlines())) > MAX_MODULE_LINES:
            wrong.append(f"{module.path}: {lines} lines, at most {MAX_MODULE_LINES}: split it by what it does")
        for function, bound in module.functions():
            where = f"{module.path}:{function.lineno}: {function.name}"
            lines = (function.end_lineno or function.lineno) - function.lineno + 1
            if lines > MAX_FUNCTION_LINES:
                wrong.append(f"{where} has {lines} lines, at most {MAX_FUNCTION_LINES}")
            args = function.args
            names = [
                *args.posonlyargs,
                *args.args,
                *args.kwonlyargs,
                *filter(None, [args.vararg, args.kwarg]),
            ]
            if len(names) - bound > MAX_PARAMETERS:
                wrong.append(f"{where} has {len(names) - bound} parameters, at most {MAX_PARAMETERS}: pass an object")
    return wrong


RULES = {
    "every module has a place in the order": unplaced,
    "a module imports only from lower ones": upward_imports,
    "no module needs itself to be loaded": circles,
    "light modules load nothing heavy": heavy_imports,
    "each package has its owner": misplaced_packages,
    "only the conductor's side starts ray": ray_starts,
    "modules, functions and parameter lists keep to their size": oversized,
}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_the_source_keeps_the_rule(rule):
    assert not (broken := rule(ROOT)), "\n" + "\n".join(broken)


WRONG = [
    (unplaced, "src/rltune/novel.py", "", "add 'novel' to ORDER"),
    (
        upward_imports,
        "src/rltune/space.py",
        "from rltune.study import Study",
        "space may not import rltune.study",
    ),
    (
        upward_imports,
        "src/rltune/space.py",
        "def f():\n    from rltune import sweep",
        "may not import rltune.sweep",
    ),
    (
        upward_imports,
        "src/rltune/space.py",
        "import rltune.resources",
        "space may not import rltune.resources",
    ),
    (
        upward_imports,
        "src/rltune/space.py",
        "from .study import Study",
        "space may not import rltune.study.Study",
    ),
    (
        upward_imports,
        "src/rltune/engine/ppo.py",
        "from ..trial import Trial",
        "engine may not import rltune.trial",
    ),
    (upward_imports, "src/rltune/study.py", "import sweeps.run", "imports the command sweeps.run"),
    (
        upward_imports,
        "src/rltune/served.py",
        "from rltune.policy import load",
        "served may not import rltune.policy",
    ),
    (
        upward_imports,
        "src/rltune/trial.py",
        "from rltune import load_policy",
        "may not import rltune.load_policy",
    ),
    (
        circles,
        "src/rltune/engine/ppo.py",
        "import rltune.engine.ppo2",
        "engine.ppo2 is in, or needs, a circle",
    ),
    (
        heavy_imports,
        "src/rltune/config.py",
        "try:\n    import torch.nn\nexcept ImportError: pass",
        "loads torch.nn",
    ),
    (misplaced_packages, "src/rltune/study.py", "def f():\n    import mlflow", "may import mlflow"),
    (
        misplaced_packages,
        "src/rltune/sweep.py",
        "from hydra import compose",
        "only sweeps.* may import hydra",
    ),
    (ray_starts, "src/rltune/trial.py", "import ray\nray.init()", "start Ray"),
    (oversized, "src/rltune/study.py", "\n" * 421, "421 lines, at most 420"),
    (oversized, "src/rltune/study.py", "def f():\n" + "    x = 1\n" * 60, "f has 61 lines, at most 60"),
    (oversized, "sweeps/run.py", "def f(a, b, c, d, *, e, f, **g): ...", "f has 7 parameters, at most 6"),
]


@pytest.mark.parametrize(("rule", "path", "source", "message"), WRONG, ids=[case[3] for case in WRONG])
def test_a_breach_is_found_and_named(rule, path, source, message, tmp_path):
    for name, text in {"src/rltune/engine/ppo2.py": "from rltune.engine.ppo import x", path: source}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert any(message in line for line in rule(tmp_path)), rule(tmp_path)


RIGHT = [
    ("src/rltune/space.py", "def f():\n    import ray\nfrom rltune.errors import ConfigError"),
    ("src/rltune/space.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch"),
    ("src/rltune/engine/ppo.py", "from rltune.engine.rollout import Rollout\nimport torch"),
    ("src/rltune/study.py", "class A:\n    def f(self, a, b, c, d, e, f): ..."),
    ("src/rltune/served.py", "import mlflow\nimport torch"),
    ("sweeps/run.py", "import hydra\nimport rltune\nfrom rltune.sweep import run_sweep"),
]


@pytest.mark.parametrize(("path", "source"), RIGHT)
def test_what_is_allowed_is_let_through(path, source, tmp_path):
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_text(source)
    assert [broken for rule in RULES.values() for broken in rule(tmp_path)] == []
