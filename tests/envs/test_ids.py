"""Ids that are written in another way lead to those that are registered."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import gymnasium as gym
import pytest

from rltune.envs.build import is_plain, make_env
from rltune.envs.ids import find_meant
from rltune.envs.spec import EnvSpec
from rltune.envs.validation import check_env
from rltune.errors import ConfigError

SOURCE = """
import gymnasium as gym
import numpy as np

class Splits(gym.Env):
    observation_space, action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32), gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 1.0, True, False, {}

class Bare(Splits):
    def __init__(self, size=1):
        self.size = size

class Slotted(Bare):
    metadata = property(lambda self: {"render_fps": self.size})

gym.register("Splits-v0", entry_point=Splits)
gym.register("my_team/Walker-v0", entry_point=Splits)
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    before = dict(gym.registry)
    folder = tmp_path / "project"
    (folder / "envs_of_mine").mkdir(parents=True)
    (folder / "splits.py").write_text(SOURCE)
    (folder / "envs_of_mine/inner.py").write_text(SOURCE.replace("Splits", "Inner").replace("my_team", "other"))
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    yield folder
    for name in ("splits", "envs_of_mine", "envs_of_mine.inner"):
        sys.modules.pop(name, None)
    gym.registry.clear()
    gym.registry.update(before)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("splits.Splits", "splits:Splits-v0"),
        ("splits.Splits-v0", "splits:Splits-v0"),
        ("splits/Splits-v0", "splits:Splits-v0"),
        ("splits:Splits-v1", "splits:Splits-v0"),
        ("splits:splits-v0", "splits:Splits-v0"),
        ("splits:Split-v0", "splits:Splits-v0"),
        ("splits.py:Splits-v0", "splits:Splits-v0"),
        ("./splits.py:Splits", "splits:Splits-v0"),
        ("{here}/splits.py:Splits-v0", "splits:Splits-v0"),
        ("splits:Walker-v0", "splits:my_team/Walker-v0"),
        ("splits:walker", "splits:my_team/Walker-v0"),
        ("envs_of_mine/inner.py:Inner-v0", "envs_of_mine.inner:Inner-v0"),
        ("envs_of_mine.inner.Inner", "envs_of_mine.inner:Inner-v0"),
        ("splits.Bare", "splits:Bare"),
        ("splits:bare", "splits:Bare"),
        ("splits:Bare-v0", "splits:Bare"),
        ("splits.py:Bare", "splits:Bare"),
    ],
)
def test_an_id_in_another_form_names_the_one_to_type(typed: str, meant: str, project: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        check_env(EnvSpec(typed.format(here=project)))
    assert (refused.value.key, refused.value.fix) == ("env.id", f"env.id={meant}")
    check_env(EnvSpec(meant))


def test_rllib_is_not_given_a_class_by_its_name() -> None:
    """Other processes know a class by `make_env` alone, because Gymnasium's registry does not have it."""
    specs = [EnvSpec("splits:Splits-v0"), EnvSpec("splits:Bare")]
    assert [is_plain(spec, check_env(spec)) for spec in specs] == [True, False]


def test_metadata_may_be_of_instances_alone() -> None:
    assert check_env(EnvSpec("splits:Slotted", {"size": 3})).metadata == {"render_fps": 3}


def test_classes_of_one_name_are_two_environments() -> None:
    """No class is registered, so that neither hides the other, nor an id that is registered later."""
    before = set(gym.registry)
    Path("other.py").write_text(
        SOURCE.replace("Splits-v0", "Other-v0").replace("my_team", "else").replace("1.0, True", "2.0, True")
    )
    specs = [EnvSpec(f"{module}:Bare", {"size": 3, "max_episode_steps": 5}) for module in ("splits", "other")]
    assert [check_env(spec).time_limit for spec in specs] == [5, 5]
    envs = [make_env(spec) for spec in specs * 2]
    assert [env.unwrapped.size for env in envs] == [3] * 4
    assert [env.reset(seed=1) and env.step(0)[1] for env in envs] == [1.0, 2.0] * 2
    assert {env.spec.id for env in envs} == {"splits:Bare", "other:Bare"}
    assert not [env_id for env_id in set(gym.registry) - before if "Bare" in env_id]
    sys.modules.pop("other")


def test_a_file_alone_names_the_id_that_it_registers() -> None:
    with pytest.raises(ConfigError) as refused:
        check_env(EnvSpec("splits.py"))
    assert refused.value.fix == "env.id=splits:Splits-v0"


def test_a_file_elsewhere_names_its_folder(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "else").mkdir()
    (tmp_path / "else/far.py").write_text(SOURCE)
    monkeypatch.chdir(project)
    with pytest.raises(ConfigError) as refused:
        check_env(EnvSpec(f"{tmp_path}/else/far.py:Splits-v0"))
    assert f"PYTHONPATH={tmp_path}/else" in refused.value.fix
    assert refused.value.fix.endswith("env.id=far:Splits-v0")


def test_a_name_of_nothing_has_no_meaning() -> None:
    for typed in ("CartPole-v9", "nothing.Here", "..", "a..b.C", ":", "", "no module:X-v0"):
        assert find_meant(typed) == ""
