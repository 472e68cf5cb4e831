"""Modules are imported before they are needed, but not before it is time."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import time
from pathlib import Path

import pytest

from rltune.background import start_in_thread
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


def test_the_end_imports_parts_of_a_package_of_which_another_part_is_being_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    twins = tmp_path / "slow_package" / "twins"
    twins.mkdir(parents=True)
    (twins.parent / "__init__.py").write_text("import time; time.sleep(0.1)")
    (twins / "__init__.py").write_text("from slow_package.twins import first, second")
    for name in ("first", "second"):
        (twins / f"{name}.py").write_text("")
    (tmp_path / "needs_second.py").write_text("import time; time.sleep(0.05); import slow_package.twins.second")
    (tmp_path / "never_needed.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    imports = ImportAhead(("needs_second", "never_needed"), lambda: True)
    try:
        ahead = start_in_thread("ahead", imports.import_next)
        while "needs_second" not in sys.modules:
            time.sleep(0.001)
        imports.finish()
        assert importlib.import_module("slow_package.twins.first")
        ahead.result()
        imports.import_next()
        assert "never_needed" not in sys.modules
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] in ("slow_package", "needs_second")]:
            del sys.modules[name]


@pytest.mark.parametrize("name", LOADED_BEFORE_FORK)
def test_each_module_that_is_loaded_before_a_fork_exists(name: str) -> None:
    module, _, function = name.partition(":")
    assert importlib.util.find_spec(module)
    assert not function or callable(getattr(importlib.import_module(module), function))
