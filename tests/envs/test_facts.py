"""What is known of an environment travels as JSON."""

import json
from collections import OrderedDict
from enum import Enum
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces as S

from rltune.envs.facts import EnvFacts, describe_space, make_space, select_json
from rltune.envs.masks import MaskSource
from rltune.envs.observations import make_layout
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


class Side(Enum):
    LEFT = "left"


@pytest.mark.parametrize(
    ("key", "has_it"), [("a b", True), (2, True), (np.int64(2), True), ((0, 1), False), (Side.LEFT, False)]
)
def test_keys_come_back_from_json_or_are_refused(key: Any, has_it: bool) -> None:
    space = S.Dict(OrderedDict([(key, S.Discrete(2))]))
    if has_it:
        again = make_space(json.loads(json.dumps(describe_space(space))))
        assert key in again.spaces
        assert make_layout(space).encode({key: 1}).tolist() == [0, 1]
        json.dumps(make_layout(space).to_dict())
        return
    for read in (describe_space, make_layout):
        with pytest.raises(ConfigError, match="key"):
            read(space)


def test_facts_come_back_from_json() -> None:
    facts = EnvFacts(
        S.Box(0, 1, (2,)), S.Discrete(2), 500, MaskSource("info", (2,)), {"render_fps": 30}, notes=("a note",)
    )
    assert EnvFacts.from_dict(json.loads(json.dumps(facts.to_dict()))) == facts


def test_facts_of_several_agents_keep_their_order() -> None:
    agents = ("agent_2", "agent_10")
    seen, taken = S.Dict({agent: S.Box(0, 1, (2,)) for agent in agents}), S.Dict(dict.fromkeys(agents, S.Discrete(2)))
    facts = EnvFacts.from_dict(json.loads(json.dumps(EnvFacts(seen, taken, agents=agents).to_dict())))
    assert list(facts.spaces_by_agent) == list(agents)
    assert facts.spaces_by_agent["agent_10"] == (S.Box(0, 1, (2,)), S.Discrete(2))
    assert facts.find_policy_spaces() is None


def test_parts_are_flattened_in_the_environments_order() -> None:
    space = S.Dict(OrderedDict(z=S.Box(0, 1, (2,)), a=S.Box(0, 9, (1,))))
    again = make_space(json.loads(json.dumps(describe_space(space))))
    assert S.flatten_space(again) == S.flatten_space(space)


def test_the_greatest_integers_come_back() -> None:
    ends = np.iinfo(np.int64)
    space = make_space(json.loads(json.dumps(describe_space(S.Box(ends.min, ends.max, (2,), np.int64)))))
    assert space.high.tolist() == [ends.max] * 2


def test_metadata_that_json_cannot_hold_stays_behind() -> None:
    assert select_json({"render_fps": 30, "render_modes": ["human"], "mode": object()}) == {
        "render_fps": 30,
        "render_modes": ["human"],
    }
