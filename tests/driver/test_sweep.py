"""A sweep is narrow: few objects, and few functions that take all of them."""

from __future__ import annotations

import ast
from dataclasses import fields
from pathlib import Path

import rltune.driver
from rltune.driver.sweep import Sweep

MAX_OBJECTS, MAX_FUNCTIONS = 12, 8


def test_a_sweep_is_handed_on_whole_by_few_functions() -> None:
    takers = []
    for path in Path(rltune.driver.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                arguments = [*node.args.args, *node.args.kwonlyargs]
                kinds = [ast.unparse(each.annotation) for each in arguments if each.annotation]
                takers += [f"{path.name}: {node.name}"] * ("Sweep" in kinds)
    assert 0 < len(takers) <= MAX_FUNCTIONS, takers
    assert len(fields(Sweep)) <= MAX_OBJECTS
