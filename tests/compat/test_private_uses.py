"""Private names of other libraries stand in compat/ and engine/, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compat.private_uses import Source, read_source

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("compat", "engine")  # where they may stand
ALLOWED: set[str] = set()  # "path: what", for one that has no other place; there is none


@pytest.mark.xdist_group("source")
def test_no_private_name_of_another_library_stands_elsewhere():
    outside = [use for use in read_source(ROOT).uses if not set(ROOMS) & set(use.path.parts)]
    misplaced = [use for use in outside if f"{use.path}: {use.what}" not in ALLOWED]
    assert not misplaced, "\n" + "\n".join(map(str, misplaced))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("from ray._private import services", "import of ray._private.services"),
        ("def f():\n    import ray._private.worker", "import of ray._private.worker"),
        ("from ray.tune.registry import _Registry", "import of ray.tune.registry._Registry"),
        ("import ray\nray._private.worker", "ray._private"),
        ("class A:\n    def f(self):\n        self._mine = 1\n        return self.group._mine", "self.group._mine"),
        ("class A(B):\n    def f(self):\n        return self._theirs", "self._theirs"),
        ("class A(B):\n    def f(self):\n        return self._n\nclass C:\n    _n = 1", "self._n"),
        ("class C:\n    _n = 1\nclass B:\n    def f(self, a: B):\n        return a._n", "a._n"),
        ("def f(group):\n    return group._theirs", "group._theirs"),
        ("def f(group):\n    return getattr(group, '_theirs', None)", "getattr(group, '_theirs', None)"),
        ("import ray\nray.init(_system_config={})", "argument _system_config"),
        ("def f(trial):\n    trial._Trial__config = {}", "trial._Trial__config"),
    ],
)
def test_a_private_name_is_found(text, what, tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "module.py").write_text(text)
    assert what in [use.what for use in Source(tmp_path).foreign(Path("src/module.py"))]


@pytest.mark.parametrize(
    "text",
    [
        "class A:\n    def _f(self): ...\n    def g(self, a: A):\n        return self._f(), a._f(), super()._f()",
        "class A:\n    _n = 1\nclass B(m.A[int]):\n    def f(self, b: 'B'):\n        return self._n, super()._n",
        "class A:\n    _n = 1\ndef f(self: A):\n    return self._n",
        "import os\nos._exit(0)",
        "from rltune.ledger import _entry",
        "class A:\n    def f(self):\n        self._n: int = 0\n        return self._n, self.__dict__",
    ],
)
def test_our_own_private_names_are_let_through(text, tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "module.py").write_text(text)
    assert list(Source(tmp_path).foreign(Path("src/module.py"))) == []
