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


@pytest.mark.parametrize(
    ("method", "known"),
    [
        ("def training(self, mine=1, *, yours=2): ...", {"mine", "yours", "clip_param"}),
        ("def training(self, *, mine=1, **others): ...", None),
        ("def env_runners(self, **others): ...", {"clip_param"}),
    ],
)
def test_a_users_class_may_take_arguments_of_its_own(tmp_path, monkeypatch, method, known):
    source = f"from ray.rllib.algorithms.ppo import PPOConfig\n\n\nclass Mine(PPOConfig):\n    {method}\n"
    (tmp_path / f"{tmp_path.name}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    names = list_keywords(f"{tmp_path.name}:Mine", "training")
    assert names is None if known is None else known <= set(names)
