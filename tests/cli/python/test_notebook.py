"""A sweep's lines in a notebook's cell."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from rltune.cli.python.notebook import find_stream


class Handle:
    """What IPython's display returns: the handle of an output whose content changes."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def update(self, content: dict[str, str], *, raw: bool) -> None:
        assert raw
        self.lines.append(content["text/plain"])


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Handle:
    handle = Handle()
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=lambda *_, raw, display_id: handle))
    return handle


def test_in_a_notebook_progress_has_one_line_and_the_rest_its_own(cell, capsys):
    stream = find_stream()
    for text in ("2 tri", "als\n", "trial 0\n", "end"):
        assert stream.write(text) == len(text)
    for text in ("[00:15] 0 done", "[01:00:30] 1 done"):
        stream.show_progress(text)
    assert cell.lines == ["[00:15] 0 done", "[01:00:30] 1 done"]
    assert capsys.readouterr().out.splitlines() == ["2 trials", "trial 0", "end"]


@pytest.mark.parametrize("shell", [None, SimpleNamespace()], ids=["no IPython", "IPython in a terminal"])
def test_elsewhere_the_console_writes_to_standard_output(shell, monkeypatch):
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert find_stream() is None
