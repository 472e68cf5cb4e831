"""What RLlib's source says of its arguments is what its classes take."""

from __future__ import annotations

import pytest

from rltune.algorithms.build import _list_keywords, import_config_class
from rltune.algorithms.rllib_source import _parse, list_keywords
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


@pytest.mark.parametrize(
    ("training", "names"),
    [
        ("self, *, bonus=0, **kwargs):\n        super().training(**kwargs)", {"bonus", "lr", "clip_param"}),
        ("self, bonus=0, **kwargs):\n        super().training(**kwargs)", {"bonus", "lr", "clip_param"}),
        ("self, **kwargs):\n        self.bonus = kwargs.pop('bonus', 0)", None),
    ],
)
def test_a_class_of_the_users_has_all_its_own_arguments(tmp_path, monkeypatch, training, names):
    source = (
        f"from ray.rllib.algorithms.ppo import PPOConfig\n\n\nclass Mine(PPOConfig):\n    def training({training}\n"
    )
    (tmp_path / "users_own_config.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    _parse.cache_clear()
    keywords = list_keywords("users_own_config:Mine", "training")
    assert keywords is None if names is None else names <= set(keywords)
