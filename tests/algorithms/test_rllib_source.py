"""What RLlib's source says of its arguments is what its classes take."""

from __future__ import annotations

import pytest

from rltune.algorithms.build import _list_keywords, import_config_class
from rltune.algorithms.rllib_source import list_keywords
from rltune.config.capabilities import SECTIONS


@pytest.mark.parametrize("name", ["ppo", "a2c", "dqn", "sac", "rainbow", "appo", "impala"])
def test_the_keywords_are_those_of_the_imported_class(algo, name):
    cls = import_config_class(algo(name))
    for section in SECTIONS:
        assert list_keywords(algo(name)["class"], section) == (_list_keywords(cls, section) or None)


@pytest.mark.parametrize(
    "target", ["no_such_module:Mine", "json:NoSuchClass", "ray.no_such.module:Mine", "json.tool:x"]
)
def test_of_a_class_without_source_nothing_is_known(target):
    assert list_keywords(target, "training") is None
