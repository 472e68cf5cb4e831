"""What evaluations may change of an environment, and that its spaces and its mask stay."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from rltune.envs.changes import change_spec, check_changes
from rltune.envs.spec import EnvSpec
from rltune.envs.validation import check_env
from rltune.errors import ConfigError


class Priced(gymnasium.Env):
    """Its bounds follow from its data, as those of prices do."""

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, split="train", size=2, masked=False):
        self.observation_space = gymnasium.spaces.Box(0, {"train": 1, "test": 9}[split], (size,), np.float32)
        self._info = {"action_mask": np.ones(2, np.int8)} if masked else {}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.low + 1, self._info

    def step(self, action):
        return self.observation_space.low + 1, 0.0, True, False, self._info


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(
        gymnasium.registry, "Priced-v0", gymnasium.envs.registration.EnvSpec("Priced-v0", Priced, max_episode_steps=9)
    )


SPEC = EnvSpec("Priced-v0", {"size": 2}, per_copy={"folder": "folder"})


def test_changed_arguments_join_those_of_the_same_environment():
    changed = change_spec(SPEC, {"kwargs": {"split": "test"}})
    assert (changed.kwargs, changed.per_copy) == ({"size": 2, "split": "test"}, {"folder": "folder"})
    assert change_spec(SPEC, {"id": "Other-v0"}).kwargs == {}
    assert change_spec(SPEC, {"kwargs": {"folder": "/tmp"}}).per_copy == {}
    assert change_spec(SPEC, {}) is SPEC
    assert change_spec(SPEC, {"kwargs": {"split": "test"}}).digest != SPEC.digest


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"kwarg": {}}, "score.env.kwarg"),
        ({"rewards": {"scale": 2}}, "score.env.rewards"),
        ({"policies": "shared"}, "score.env.policies"),
        ({"kwargs": "test"}, "score.env.kwargs"),
        ({"kwargs": {"size": 3}}, "score.env"),
        ({"kwargs": {"masked": True}}, "score.env"),
        ({"kwargs": {"sizes": 3}}, "score.env"),
        ({"id": "CartPole-v1"}, "score.env"),
        ({"max_copies": 0}, "score.env"),
    ],
)
def test_what_policies_could_not_play_in_is_refused(changes, key):
    spec = EnvSpec("Priced-v0")
    with pytest.raises(ConfigError) as refused:
        check_changes("score.env", changes, spec, check_env(spec), check_env)
    assert refused.value.key == key


def test_bounds_that_follow_from_the_data_may_differ():
    spec = EnvSpec("Priced-v0")
    assert check_changes("certify.env", {"kwargs": {"split": "test"}}, spec, check_env(spec), check_env) == []
