"""What a setting names as ``package.module:Name`` is what it is to be, or is refused in three parts."""

from __future__ import annotations

import collections

import pytest

from rltune.config.entry_points import import_entry_point, is_subclass
from rltune.errors import ConfigError


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
