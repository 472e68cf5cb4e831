"""Find private names of other libraries in our source, by its syntax trees: nothing is imported."""

from __future__ import annotations

import ast
import functools
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

OURS = ("rltune", "sweeps")
DOCUMENTED = {"os._exit", "sys._getframe"}  # Python documents these under such a name,
OF_NAMED_TUPLES = {"_asdict", "_replace"}  # and these of each named tuple.
ASKING = ("getattr", "hasattr", "setattr", "delattr")


@dataclass(frozen=True)
class Use:
    """One private name where it stands."""

    path: Path
    line: int
    name: str
    what: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}"


@functools.cache
def read_source(root: Path) -> Source:
    """Read all our files once."""
    return Source(root)


class Source:
    """All our files, and the private names and classes that they define."""

    def __init__(self, root: Path) -> None:
        paths = sorted([*(root / "src").rglob("*.py"), *(root / "sweeps").rglob("*.py")])
        self.trees = {path.relative_to(root): ast.parse(path.read_text()) for path in paths}
        nodes = [node for tree in self.trees.values() for node in ast.walk(tree)]
        self.members: dict[str, set[str]] = defaultdict(set)  # Names that a class defines in its body and methods.
        self.bases: dict[str, set[str]] = defaultdict(set)
        for node in nodes:
            if isinstance(node, ast.ClassDef):
                self.members[node.name] |= {name for inner in ast.walk(node) for name in _defined_by(inner)}
                self.bases[node.name] |= {_last_name(ast.unparse(base)) for base in node.bases}

    @functools.cached_property
    def uses(self) -> list[Use]:
        """Private names in all files that are not ours."""
        return [use for path in self.trees for use in self.foreign(path)]

    def foreign(self, path: Path) -> Iterator[Use]:
        """Private names in a file that are not ours, as far as can be told without types.

        A name in ``getattr`` and the like, or of an argument, is ours if the file defines it.
        An attribute of ``self``, ``cls``, ``super()`` or an argument annotated with a class of ours is ours if that
        class, or a class of ours from which it derives, defines one of this name.
        """
        tree = self.trees[path]
        defined = {name for node in ast.walk(tree) for name in _defined_by(node)} | OF_NAMED_TUPLES
        for node in ast.walk(tree):
            line = getattr(node, "lineno", 0)
            if isinstance(node, ast.Import | ast.ImportFrom):
                for module in _imported(node):
                    if module.split(".")[0] not in OURS and (private := list(filter(_is_private, module.split(".")))):
                        yield Use(path, line, private[-1], f"import of {module}")
            elif isinstance(node, ast.keyword) and node.arg and _is_private(node.arg):
                if node.arg not in defined:
                    yield Use(path, node.value.lineno, node.arg, f"argument {node.arg}")
            elif isinstance(node, ast.Call) and len(node.args) > 1 and isinstance(node.func, ast.Name):
                name = node.args[1] if node.func.id in ASKING else None
                if isinstance(name, ast.Constant) and _is_private(str(name.value)) and name.value not in defined:
                    yield Use(path, line, str(name.value), ast.unparse(node))
        for scope, node in _attributes(tree):
            if not _is_private(node.attr) or node.attr in OF_NAMED_TUPLES or self._is_ours(node, scope):
                continue
            if (what := ast.unparse(node)) not in DOCUMENTED:
                yield Use(path, node.lineno, node.attr, what)

    def _is_ours(self, node: ast.Attribute, scope: dict[str, str]) -> bool:
        is_super = isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "super"
        owner = "self" if is_super else ast.unparse(node.value)
        return node.attr in self._list_members(_last_name(scope.get(owner, "")), set())

    def _list_members(self, name: str, seen: set[str]) -> set[str]:
        """Names that a class and the classes from which it derives define, as far as they are ours."""
        if name in seen or name not in self.members:
            return set()
        seen.add(name)
        return self.members[name].union(*(self._list_members(base, seen) for base in self.bases[name]))


def _last_name(expression: str) -> str:
    """``C`` of ``module.C[T]``."""
    return expression.partition("[")[0].rpartition(".")[2]


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name.isidentifier() and len(name) > 1


def _imported(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [] if node.level else [f"{node.module}.{alias.name}" for alias in node.names]


def _attributes(tree: ast.AST) -> Iterator[tuple[dict[str, str], ast.Attribute]]:
    """Each attribute access, with the annotations of the arguments that are in sight there, and self's class."""
    waiting: list[tuple[dict[str, str], ast.AST]] = [({}, tree)]
    while waiting:
        scope, node = waiting.pop()
        if isinstance(node, ast.ClassDef):
            scope = scope | {"self": node.name, "cls": node.name}
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            scope = scope | {one.arg: ast.unparse(one.annotation) for one in arguments if one.annotation}
        if isinstance(node, ast.Attribute):
            yield scope, node
        waiting += [(scope, child) for child in ast.iter_child_nodes(node)]


def _defined_by(node: ast.AST) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        return [node.attr] if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls") else []
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return [node.id]
    return [node.arg] if isinstance(node, ast.arg) else []
