"""What is known of an environment travels as JSON."""

import json

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces as S

from rltune.envs.facts import EnvFacts, describe_space, make_space
from rltune.errors import ConfigError

pytestmark = pytest.mark.fast


class Named(S.Discrete):
    """A user's own space."""


@pytest.mark.parametrize(
    "space",
    [
        S.Box(0, 255, (84, 84, 3), np.uint8),
        S.Box(np.array([0, -np.inf], np.float32), 1, (2,), np.float32),
        S.Box(-1, 1, (), np.float64),
        S.Discrete(5, start=-2),
        S.MultiDiscrete([[2, 3], [4, 5]]),
        S.MultiBinary((2, 3)),
        S.MultiBinary(4),
        S.Dict(a=S.Text(5), b=S.Tuple((S.Discrete(2), S.Box(-1, 1, (2,))))),
    ],
)
def test_a_space_comes_back_from_json(space: gymnasium.Space) -> None:
    assert make_space(json.loads(json.dumps(describe_space(space)))) == space


def test_a_users_subclass_travels_as_its_base() -> None:
    space = make_space(describe_space(Named(3)))
    assert type(space) is S.Discrete
    assert space.n == 3


def test_a_space_without_a_fixed_size_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        describe_space(S.Sequence(S.Discrete(2)))
    assert caught.value.key == "env.id"


def test_facts_come_back_from_json() -> None:
    facts = EnvFacts(S.Box(0, 1, (2,)), S.Discrete(2), 500, True, {"render_fps": 30}, False, ("a note",))
    assert EnvFacts.from_dict(json.loads(json.dumps(facts.to_dict()))) == facts
