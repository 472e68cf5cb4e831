"""A sweep's lines in a notebook's cell."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from rltune.interactive.notebook import find_stream


class Place:
    """What IPython's display gives back: a place in the cell whose content changes."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def update(self, what: object) -> None:
        self.shown.append(repr(what))


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Place:
    place = Place()
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=lambda *_, display_id: place))
    return place


def test_in_a_notebook_progress_has_one_line_and_the_rest_its_own(cell, capsys):
    with find_stream() as stream:
        for text in ("2 tri", "als\n[00:15] 0 done\n", "trial 0\n[01:00:30] 1 done\n", "end"):
            assert stream.write(text) == len(text)
    assert cell.shown == ["[00:15] 0 done", "[01:00:30] 1 done"]
    assert capsys.readouterr().out.splitlines() == ["2 trials", "trial 0", "end"]


@pytest.mark.parametrize("shell", [None, SimpleNamespace()], ids=["no IPython", "IPython in a terminal"])
def test_elsewhere_the_console_writes_to_standard_output(shell, monkeypatch):
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    with find_stream() as stream:
        assert stream is None
