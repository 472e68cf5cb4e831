"""Find all packages that an environment's package lacks, where Python names the first one alone."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import sys
import traceback
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.utils import canonicalize_name

from rltune.installed import find_version, list_requirements

PACKAGES = {
    "cv2": "opencv-python",
    "PIL": "pillow",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
"""Packages that are not called as the module that they have."""

OWN = ("rltune", "gymnasium", "runpy", "__main__")
"""Who imports environments, and lacks nothing."""


def suggest_installation(error: ModuleNotFoundError) -> str:
    """Return the command that installs all that the package lacks in which a module has not been found."""
    names = list_missing(error)
    modules = "this module" if len(names) == 1 else "these modules"
    return f"pip install {' '.join(names)}, or what has {modules} under another name"


def list_missing(error: ModuleNotFoundError) -> list[str]:
    """List the packages that the importing package lacks: those that its metadata requires, and those that it imports.

    Imports inside of functions, conditions and ``try`` are left out, because they may be optional.
    """
    frames = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    importing = [name for name in frames if name and name.partition(".")[0] not in ("importlib", *OWN)]
    package = importing[-1].partition(".")[0] if importing else ""
    required = [
        requirement.name
        for owner in metadata.packages_distributions().get(package, ())
        for requirement in list_requirements(owner)
        if find_version(requirement.name) is None
    ]
    chain = [name for name in importing if name.partition(".")[0] == package]
    modules = [(error.name or "").partition(".")[0], *_list_imported(package, chain)]
    lacking = [name for name in modules if name not in sys.modules and importlib.util.find_spec(name) is None]
    names = [*required, *(PACKAGES.get(name, name) for name in lacking)]
    return list({canonicalize_name(name): name for name in reversed(names)}.values())[::-1]


def _list_imported(package: str, modules: list[str]) -> Iterator[str]:
    """Yield the packages that modules of a package import when they are imported, by themselves or by others of it."""
    spec = importlib.util.find_spec(package) if package else None
    if spec is None or not spec.origin:
        return
    folder = Path(spec.origin).parent
    folder = folder.parent if spec.submodule_search_locations else folder
    waiting, seen = list(modules), set[str]()
    while waiting:
        name = waiting.pop(0)
        if name in seen:
            continue
        seen.add(name)
        path = folder.joinpath(*name.split("."))
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        with contextlib.suppress(OSError, SyntaxError, ValueError):
            above = name if path.is_dir() else name.rpartition(".")[0]
            for imported in _read_imports(ast.parse(file.read_bytes()), above):
                if imported.partition(".")[0] == package:
                    waiting.append(imported)
                else:
                    yield imported.partition(".")[0]


def _read_imports(tree: ast.Module, package: str) -> Iterator[str]:
    """Yield the full names of what a module always imports, which may be a name inside of a module.

    Args:
        tree: The module's source.
        package: The package that it lies in, to which its relative imports refer.
    """
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            above = ".".join(parents[: len(parents) - node.level + 1]) if node.level else ""
            source = ".".join(filter(None, (above, node.module)))
            yield source
            yield from (f"{source}.{alias.name}" for alias in node.names)
