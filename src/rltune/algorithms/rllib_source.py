"""Read from RLlib's source which arguments a config takes, and which are whole numbers.

RLlib is not imported for it, which would take seconds.
"""

from __future__ import annotations

import ast
import contextlib
import functools
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

ROOT = "AlgorithmConfig"  # The config from which all others derive.
MODEL_CONFIG = "ray.rllib.core.rl_module.default_model_config:DefaultModelConfig"
REPLAY_MODULE = "ray.rllib.utils.replay_buffers"


def list_keywords(target: str, section: str) -> list[str] | None:
    """List the arguments of a config's method, including those that it passes to parent classes.

    Args:
        target: The config's class, ``module:Class``.
        section: The method.

    Returns:
        Their names; None if the source of the class or of a parent is not found, if none of them has the method, and if
        one of them looks for further arguments in its ``**kwargs``.
    """
    try:
        methods = [
            node
            for cls in _list_classes(*target.split(":"))
            for node in cls.body
            if isinstance(node, ast.FunctionDef) and node.name == section
        ]
    except (LookupError, OSError, ValueError, SyntaxError):
        return None
    if any(map(_reads_kwargs, methods)):
        return None
    arguments = [argument for method in methods for argument in (*method.args.args[1:], *method.args.kwonlyargs)]
    return sorted({argument.arg for argument in arguments}) or None


def list_whole_numbers(target: str, section: str | None) -> set[str]:
    """List the arguments that are whole numbers: those whose annotations allow integers and no floats.

    Args:
        target: The class, ``module:Class``.
        section: Its method that takes the arguments; None for the fields of a dataclass.

    Returns:
        Their names. A class counts only if all of its parents that annotate the argument agree with it. Without a
        source, none.
    """
    types: dict[str, list[set[str]]] = {}
    with contextlib.suppress(LookupError, OSError, ValueError, SyntaxError):
        for cls in _list_classes(*target.split(":")):
            for name, annotation in _list_annotations(cls, section):
                words = {node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)}
                types.setdefault(name, []).append(words)
    return {
        name for name, all_words in types.items() if all("int" in words and "float" not in words for words in all_words)
    }


def _list_annotations(cls: ast.ClassDef, section: str | None) -> Iterator[tuple[str, ast.expr]]:
    """Yield the annotated arguments of a class's method, or its annotated fields."""
    for node in cls.body:
        if section is None and isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node.annotation
        elif isinstance(node, ast.FunctionDef) and node.name == section:
            for argument in (*node.args.args[1:], *node.args.kwonlyargs):
                if argument.annotation is not None:
                    yield argument.arg, argument.annotation


def _reads_kwargs(method: ast.FunctionDef) -> bool:
    """Return whether a method does more with its ``**kwargs`` than pass them on, as RLlib's own methods do."""
    if method.args.kwarg is None:
        return False
    nodes = list(ast.walk(method))
    passed_on = {id(node.value) for node in nodes if isinstance(node, ast.keyword) and node.arg is None}
    uses = [node for node in nodes if isinstance(node, ast.Name) and node.id == method.args.kwarg.arg]
    return any(id(node) not in passed_on for node in uses)


def _list_classes(module: str, name: str) -> Iterator[ast.ClassDef]:
    """Yield the definitions of a class and of its parents.

    Raises:
        LookupError: One of them is defined in a way that is not understood.
    """
    classes, imports = _parse(module)
    if name in imports:
        yield from _list_classes(*imports[name])
        return
    yield classes[name]
    for base in classes[name].bases if name != ROOT else ():
        if not isinstance(base, ast.Name):
            raise LookupError(ast.unparse(base))
        yield from _list_classes(module, base.id)


@functools.cache
def _parse(module: str) -> tuple[dict[str, ast.ClassDef], dict[str, tuple[str, str]]]:
    """Return the classes that a module defines, and the module and name of each thing that it imports, by name."""
    tree = ast.parse(_find_file(module).read_text())
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    imports = {
        alias.asname or alias.name: (node.module, alias.name)
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module and not node.level
        for alias in node.names
    }
    return classes, imports


def _find_file(module: str) -> Path:
    """Find the source of a module. Only the specification of its first package is looked up, which imports nothing."""
    first, *parts = module.split(".")
    spec = find_spec(first)
    if spec is None or spec.origin is None:
        raise LookupError(module)
    path = Path(spec.origin)
    if parts:
        path = path.parent.joinpath(*parts)
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return path
