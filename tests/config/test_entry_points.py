"""What a setting names as ``package.module:Name`` is what it is to be, or is refused in three parts."""

from __future__ import annotations

import collections

import pytest

from rltune.config.entry_points import import_entry_point, is_subclass, naming_setting
from rltune.errors import ConfigError, RltuneError


def find(target):
    return import_entry_point("shelf.kind", target, "dict", is_subclass(dict), "package.module:Class", "shelf=plain")


def test_a_class_of_the_kind_is_imported():
    assert find("collections:OrderedDict") is collections.OrderedDict


@pytest.mark.parametrize(
    ("target", "what", "fix"),
    [
        ("nosuchmodule:X", "shelf.kind=nosuchmodule:X cannot be imported: ModuleNotFoundError", "install its package"),
        (
            "collections:Nothing",
            "cannot be imported: AttributeError",
            "install its package",
        ),
        ("collections:OrderDict", "cannot be imported: AttributeError", "shelf.kind=collections:OrderedDict"),
        ("collections", "cannot be imported: AttributeError", "install its package"),
        ("collections:deque", "shelf.kind=collections:deque is no dict", "shelf=plain"),
        ("os:system", "shelf.kind=os:system is no dict", "shelf=plain"),
    ],
)
def test_what_is_missing_or_of_another_kind_is_refused(target, what, fix):
    with pytest.raises(ConfigError) as refused:
        find(target)
    assert what in refused.value.what
    assert refused.value.allowed == "package.module:Class"
    assert refused.value.fix.startswith(fix)


def test_a_module_that_exits_when_it_is_imported_is_refused(tmp_path, monkeypatch):
    (tmp_path / "leaves.py").write_text("raise SystemExit(0)")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError) as refused:
        find("leaves:Shelf")
    assert (refused.value.key, refused.value.value) == ("shelf.kind", "leaves:Shelf")


@pytest.mark.parametrize(
    ("raised", "exit_code"), [(ValueError("no"), 2), (SystemExit(0), 2), (ConnectionRefusedError(), 75)]
)
def test_what_a_users_class_raises_names_its_setting(raised, exit_code):
    with pytest.raises(RltuneError) as refused, naming_setting("shelf.args", {}, "nothing", "~shelf.args"):
        raise raised
    assert (refused.value.key, refused.value.exit_code) == ("shelf.args", exit_code)
