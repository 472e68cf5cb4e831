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
    "kind",
    ["count", "collections:Missing", "nosuchmodule:X", ":", "collections:deque", "collections:namedtuple"],
)
def test_what_is_no_such_class_is_refused_in_three_parts(kind):
    with pytest.raises(ConfigError) as refused:
        find(kind)
    assert refused.value.key == "shelf.kind"
    assert f"={kind}" in refused.value.what
    assert refused.value.allowed
    assert refused.value.fix
