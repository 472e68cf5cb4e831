"""A class in a file's ``kind``: what it is, or why it is refused. The rules' and the samplers' tests ask the same."""

from __future__ import annotations

import pytest

from rltune.errors import ConfigError
from rltune.search.class_names import import_class

SHORT = {"ordered": "collections:OrderedDict", "counter": "collections:Counter"}


def find(kind):
    return import_class("shelf", kind, SHORT, "mapping", lambda cls: issubclass(cls, dict))


def test_a_short_name_and_a_class_name_mean_the_same():
    assert find("counter") is find("collections:Counter")


@pytest.mark.parametrize(
    ("kind", "what", "allowed", "fix"),
    [
        ("count", "shelf.kind=count is unknown", "did you mean 'counter'?", "shelf=ordered"),
        ("collections:Missing", "cannot be imported: AttributeError", "package.module:Class of a mapping", "install"),
        ("nosuchmodule:X", "cannot be imported: ModuleNotFoundError", "package.module:Class of a mapping", "install"),
        (":", "shelf.kind=: cannot be imported: ValueError", "package.module:Class of a mapping", "install"),
        ("collections:deque", "shelf.kind=collections:deque is no mapping", "a name, or", "shelf=ordered"),
        ("collections:namedtuple", "shelf.kind=collections:namedtuple is no mapping", "a name, or", "shelf=ordered"),
    ],
)
def test_what_is_no_such_class_is_refused_in_three_parts(kind, what, allowed, fix):
    with pytest.raises(ConfigError) as refused:
        find(kind)
    assert what in refused.value.what
    assert allowed in refused.value.allowed
    assert refused.value.fix.startswith(fix)
