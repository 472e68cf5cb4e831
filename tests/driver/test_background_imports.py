"""Modules are imported before they are needed, but not before it is time."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from rltune.driver.background_imports import LOADED_BEFORE_FORK, ImportAhead

pytestmark = pytest.mark.fast


def test_broken_modules_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_one.py").write_text("raise ValueError('no')")
    (tmp_path / "whole_one.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    answers = [False, True, True, True, True]
    imports = ImportAhead(("no_such_module_here", "broken_one", "whole_one"), lambda: answers.pop(0))
    for _ in range(3):
        imports.import_next()
        assert "whole_one" not in sys.modules
    imports.import_next()
    assert "whole_one" in sys.modules
    assert "broken_one" not in sys.modules
    del sys.modules["whole_one"]


@pytest.mark.parametrize("name", LOADED_BEFORE_FORK)
def test_each_module_that_is_loaded_before_a_fork_exists(name: str) -> None:
    module, _, function = name.partition(":")
    assert importlib.util.find_spec(module)
    assert not function or callable(getattr(importlib.import_module(module), function))
