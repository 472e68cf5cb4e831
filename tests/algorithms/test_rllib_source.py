"""What RLlib's source says of its arguments is what its classes take."""

from __future__ import annotations

import pytest

from rltune.algorithms.build import _list_keywords, import_config_class
from rltune.algorithms.rllib_source import MODEL_CONFIG, list_fields, list_keywords
from rltune.config.validation import SECTIONS


@pytest.mark.parametrize("name", ["ppo", "a2c", "dqn", "sac", "rainbow", "appo", "impala"])
def test_the_keywords_are_those_of_the_imported_class(algo, name):
    cls = import_config_class(algo(name))
    for section in SECTIONS:
        assert list_keywords(algo(name)["class"], section) == (_list_keywords(cls, section) or None)


def test_the_model_settings_are_those_of_the_imported_class():
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    assert list_fields(MODEL_CONFIG) == list(DefaultModelConfig.__dataclass_fields__)


@pytest.mark.parametrize(
    "target", ["no_such_module:Mine", "json:NoSuchClass", "ray.no_such.module:Mine", "json.tool:x"]
)
def test_of_a_class_without_source_nothing_is_known(target):
    assert list_keywords(target, "training") is None
    assert list_fields(target) is None
