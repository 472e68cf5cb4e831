"""What specifies an environment: settings, mappings and JSON mean the same."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from rltune.config.schema import EnvConfig
from rltune.envs.build import is_plain, make_env, make_training_env
from rltune.envs.spec import EnvSpec, spec_of
from rltune.envs.validation import check_env
from rltune.errors import ConfigError, RltuneError

SHORT = {"entry_point": "gymnasium.wrappers:TimeLimit", "kwargs": {"max_episode_steps": 5}}


def test_settings_and_mappings_mean_the_same_environment():
    """The settings and a mapping and a specification mean the same environment."""
    expected = EnvSpec("Pendulum-v1", {"g": 9.81}, (SHORT,), evaluation_steps=10_000)
    config = EnvConfig(name="pendulum", id="Pendulum-v1", kwargs={"g": 9.81}, wrappers=[SHORT])
    assert spec_of(config) == expected
    given = {"id": "Pendulum-v1", "kwargs": {"g": 9.81}, "wrappers": [SHORT]}
    assert spec_of({**given, "evaluation_steps": 10_000}) == expected
    assert spec_of(expected) is expected
    assert spec_of({"id": "CartPole-v1"}) == EnvSpec("CartPole-v1")


def test_a_specification_can_be_kept_as_json_and_built_from_it():
    spec = EnvSpec("Pendulum-v1", {"g": 9.81}, (SHORT,))
    again = spec_of(json.loads(json.dumps(spec.to_dict())))
    assert again == spec
    assert make_env(again).unwrapped.g == 9.81


def test_only_a_limit_of_episodes_that_applies_tells_environments_apart():
    spec = spec_of(EnvConfig(name="x", id="X-v0"))
    assert spec.step_limit == 10_000
    assert spec.digest == EnvSpec("X-v0").digest == replace(spec, evaluation_steps=None).digest
    other = replace(spec, evaluation_steps=500)
    assert other.digest != spec.digest
    assert spec_of(other.to_dict()) == other


def test_a_variable_is_read_where_the_environment_is_built(monkeypatch):
    wrapper = {
        "entry_point": "gymnasium.wrappers:TimeLimit",
        "kwargs": {"max_episode_steps": "${oc.decode:${oc.env:N}}"},
    }
    spec = EnvSpec("Pendulum-v1", {"g": "${oc.decode:${oc.env:G}}"}, (wrapper,))
    monkeypatch.setenv("G", "9.81")
    monkeypatch.setenv("N", "3")
    env = make_training_env(spec)
    assert env.unwrapped.g == 9.81
    assert env.get_wrapper_attr("_max_episode_steps") == 3
    assert "9.81" not in json.dumps(spec.to_dict())
    assert not is_plain(spec, check_env(spec))  # RLlib would pass the arguments on as they are.
    monkeypatch.delenv("G")
    with pytest.raises(ConfigError) as refused:
        make_env(spec)
    assert refused.value.key == "env.kwargs"


ARRAY = {"_target_": "numpy.array", "object": [0.7, 0.3]}


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (ARRAY, np.array([0.7, 0.3])),
        ({**ARRAY, "dtype": "float32"}, np.array([0.7, 0.3], np.float32)),
        ({"_target_": "numpy.array", "_args_": [[[1, 2], [3, 4]]]}, np.array([[1, 2], [3, 4]])),
    ],
)
def test_an_argument_may_be_an_array(written, expected):
    wrapper = {"entry_point": "knobs:Bonus", "kwargs": {"bonus": written}}
    spec = EnvSpec("knobs:Knobs-v0", {"weight": {"each": [written]}}, (wrapper,))
    env = make_env(spec_of(json.loads(json.dumps(spec.to_dict()))))
    for array in (env.bonus, env.unwrapped.weight["each"][0]):
        assert array.dtype == expected.dtype
        assert array.tolist() == expected.tolist()
    env.close()
    knobs = EnvSpec("knobs:Knobs-v0", {"weight": written})
    assert not is_plain(knobs, check_env(EnvSpec("knobs:Knobs-v0")))


def test_other_descriptions_of_objects_stay_as_they_are():
    """Environments that make objects of them do so themselves."""
    other = {"_target_": "os.system", "command": "true"}
    env = make_env(EnvSpec("knobs:Knobs-v0", {"weight": other}))
    assert env.unwrapped.weight == other
    with pytest.raises(ConfigError) as refused:
        make_env(EnvSpec("knobs:Knobs-v0", {"weight": {**ARRAY, "shape": 3}}))
    assert refused.value.allowed.startswith("{_target_: numpy.array")


@pytest.mark.parametrize(
    "settings",
    [
        {"id": "knobs:Knobs-v0", "kwargs": {"repeat": [1, 2]}},
        {"id": "knobs:Knobs-v0", "kwargs": {"weight": [0.7, 0.3]}},
        {"id": "CartPole-v1", "wrappers": ({"entry_point": "knobs:Bonus", "kwargs": {"bonus": [0.7, 0.3], "to": 1}},)},
        {"id": "CartPole-v1", "wrappers": ({"entry_point": "knobs:Bonus", "kwargs": {"bonus": [[1, 2]]}},)},
    ],
)
def test_where_a_list_fails_an_array_is_suggested(settings):
    with pytest.raises(RltuneError) as refused:
        check_env(spec_of(settings))
    assert "{_target_: numpy.array, object: [" in refused.value.fix
