"""Imports in a thread."""

from __future__ import annotations

import sys

from rltune.cluster.background_imports import begin_imports


def test_modules_are_imported_once_and_broken_ones_passed_over(tmp_path, monkeypatch):
    (tmp_path / "broken_one.py").write_text("raise ValueError('no')")
    (tmp_path / "whole_one.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    thread = begin_imports("no_such_module_here", "broken_one", "whole_one")
    thread.join(30)
    assert "whole_one" in sys.modules
    assert "broken_one" not in sys.modules
    assert begin_imports("no_such_module_here", "broken_one", "whole_one") is thread
    del sys.modules["whole_one"]
