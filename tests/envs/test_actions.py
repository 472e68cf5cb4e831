"""Each action that a network chooses lies in the space of the environment, whatever its parts are."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from rltune.envs.actions import ActionParts, split_batch
from rltune.envs.facts import describe_space
from rltune.envs.spaces import make_network_actions, read_actions
from rltune.errors import ConfigError

S = gymnasium.spaces
F = np.float32

SPACES = {
    "choice": S.Discrete(3),
    "choice from -1": S.Discrete(3, start=-1),
    "choice of 32 bits": S.Discrete(5, dtype=np.int32),
    "choices": S.MultiDiscrete([3, 2, 5]),
    "choices of one": S.MultiDiscrete([4]),
    "choices from 1": S.MultiDiscrete([[3, 2], [1, 4]], start=[[1, 0], [-5, 2]], dtype=np.int16),
    "buttons": S.MultiBinary(5),
    "a table of buttons": S.MultiBinary((2, 3)),
    "flags": S.Box(0, 1, (3,), bool),
    "numbers": S.Box(-2, 3, (2,)),
    "no bounds": S.Box(-np.inf, np.inf, (2,)),
    "no bounds in float64": S.Box(-np.inf, np.inf, (2,), np.float64),
    "some bounds": S.Box(F([-5, 0, -np.inf, -np.inf]), F([5, np.inf, 2, np.inf])),
    "the greatest float": S.Box(np.finfo(F).min, np.finfo(F).max, (2,)),
    "a table": S.Box(-1, 2, (2, 3), np.float64),
    "a number": S.Box(-1, 1, ()),
    "half precision": S.Box(-3, 0.1, (2,), np.float16),
    "one value": S.Box(F([1, -1]), F([1, 1])),
    "whole numbers": S.Box(np.array([0, -2]), np.array([6, 3]), dtype=np.int32),
    "bytes": S.Box(0, 255, (2, 2), np.uint8),
    "64 bits": S.Box(-(2**63), 2**63 - 2, (2,), np.int64),
    "64 bits, nearly": S.Box(-(2**63) + 1, 2**63 - 3, (2,), np.int64),
    "64 bits from 0": S.Box(0, 2**63 - 2, (2,), np.uint64),
    "infinite whole numbers": S.Box(-np.inf, np.inf, (2,), np.int32),
    "a dict": S.Dict(b=S.Discrete(3, start=2), a=S.Box(-1, 1, (2, 2)), c=S.Dict(d=S.MultiBinary(2))),
    "a tuple": S.Tuple((S.Box(0, 9, (2,), np.int64), S.Discrete(2), S.MultiDiscrete([2, 3]), S.Box(-np.inf, 1, ()))),
    "a tuple of choices": S.Tuple((S.Discrete(2), S.Discrete(4, start=-7), S.Tuple(()))),
    "a dict of numbers": S.Dict(x=S.Box(-1, 1, (1,)), y=S.Box(-9, 3, (2,)), z=S.Box(0, 1, (0,))),
}
WITHOUT_COMBINATIONS = {
    *("bytes", "64 bits", "64 bits, nearly", "64 bits from 0", "infinite whole numbers"),
    *("a dict", "a tuple"),
}


def draw_choices(actions: ActionParts, rng: np.random.Generator, rows: int) -> np.ndarray:
    """Draw what a network may choose: any index, and numbers of any size."""
    choices = np.stack([rng.integers(size, size=rows) for size in actions.sizes], 1) if actions.sizes else None
    if actions.is_choice:
        return choices[:, 0]
    numbers = rng.standard_normal((rows, actions.num_numbers)) * rng.choice([0.1, 1.0, 10.0, 1e10], (rows, 1))
    parts = [part for part in (choices, numbers) if part is not None and part.shape[1]]
    return np.concatenate(parts, 1).astype(actions.row_dtype)


def list_numbers(action) -> list[float]:
    """List all numbers of a nested action."""
    if isinstance(action, dict | tuple):
        values = action.values() if isinstance(action, dict) else action
        return [number for part in values for number in list_numbers(part)]
    return np.ravel(action).astype(float).tolist()


@pytest.mark.parametrize("joint", [False, True], ids=["parts", "joint"])
@pytest.mark.parametrize("name", SPACES)
def test_each_choice_of_a_network_is_in_the_space(name, joint):
    space, rng = SPACES[name], np.random.default_rng(0)
    if joint and name in WITHOUT_COMBINATIONS:
        pytest.skip("too many combinations, or both kinds")
    actions = read_actions(space, joint=joint)
    network = make_network_actions(actions)
    network.seed(0)
    chosen = draw_choices(actions, rng, 200)
    assert chosen.shape[1:] == actions.row_shape
    batch = split_batch(actions.decode(chosen), len(chosen))
    for row, decoded in zip(chosen, batch, strict=True):
        one = actions.decode_one(row)
        assert space.contains(one), one
        assert space.contains(decoded), decoded
        np.testing.assert_equal(one, decoded)
    assert space.contains(actions.decode_one(network.sample())) or actions.is_identity


@pytest.mark.parametrize("joint", [False, True], ids=["parts", "joint"])
@pytest.mark.parametrize("name", [name for name in SPACES if "64 bits" not in name])
def test_an_action_becomes_the_choice_that_gives_it(name, joint):
    space = SPACES[name]
    if joint and name in WITHOUT_COMBINATIONS:
        pytest.skip("too many combinations, or both kinds")
    actions = read_actions(space, joint=joint)
    space.seed(1)
    for _ in range(50):
        action = space.sample()
        if name == "infinite whole numbers":
            action = action % 1000
        elif name == "the greatest float":
            action = action / np.finfo(F).max
        again = actions.decode_one(actions.encode(action))
        close = 1e-2 if space.dtype == np.float16 else 1e-5
        np.testing.assert_allclose(list_numbers(again), list_numbers(action), rtol=close, atol=close)


def test_network_spaces_are_those_that_catalogs_know():
    for name, expected in {
        "choice": S.Discrete(3),
        "choice from -1": S.Discrete(3),
        "choices": S.MultiDiscrete([3, 2, 5]),
        "choices of one": S.Discrete(4),
        "buttons": S.MultiDiscrete([2] * 5),
        "numbers": S.Box(-2, 3, (2,)),
        "some bounds": S.Box(F([-1, -np.inf, -np.inf, -np.inf]), F([1, np.inf, np.inf, np.inf])),
        "bytes": S.Box(-1, 1, (4,)),
        "a dict": S.Tuple((S.MultiDiscrete([3, 2, 2]), S.Box(-1, 1, (4,)))),
        "a tuple of choices": S.MultiDiscrete([2, 4]),
    }.items():
        assert make_network_actions(read_actions(SPACES[name])) == expected, name
    assert make_network_actions(read_actions(SPACES["a tuple of choices"], joint=True)) == S.Discrete(8)
    assert make_network_actions(read_actions(SPACES["whole numbers"], joint=True)) == S.Discrete(42)


def test_each_number_is_scaled_by_its_own_bounds():
    actions = read_actions(SPACES["some bounds"])
    np.testing.assert_array_equal(actions.decode_one(F([1.0, -0.5, 7.0, -7.0])), F([5.0, 0.0, 2.0, -7.0]))
    np.testing.assert_array_equal(actions.decode_one(F([-0.5, 3.0, -7.0, 9.0])), F([-2.5, 3.0, -7.0, 9.0]))
    whole = read_actions(SPACES["whole numbers"])
    np.testing.assert_array_equal(whole.decode_one(F([0.1, -5.0])), [3, -2])
    clipped = read_actions(SPACES["some bounds"], clips=True)
    np.testing.assert_array_equal(clipped.decode_one(F([3.0, -0.5, 7.0, -7.0])), F([3.0, 0.0, 2.0, -7.0]))


def test_joint_choices_count_the_last_part_fastest():
    space = S.Dict(go=S.Discrete(3, start=2), on=S.MultiBinary(2))
    actions = read_actions(space, joint=True)
    reached = [actions.decode_one(number) for number in range(12)]
    assert reached[1]["go"] == 2
    assert reached[1]["on"].tolist() == [0, 1]
    assert reached[4]["go"] == 3
    assert len({str(each) for each in reached}) == 12


@pytest.mark.parametrize(
    ("space", "joint", "what"),
    [
        (S.Text(3), False, "no network chooses"),
        (S.Dict(a=S.Discrete(2), b=S.Sequence(S.Discrete(2))), False, "no network chooses"),
        (S.Tuple(()), False, "nothing to choose"),
        (S.Box(-1, 1, (0,)), False, "nothing to choose"),
        (S.Discrete(10**6), False, "1000000 outputs"),
        (S.Box(2**60 + 1, 2**60 + 3, (1,), np.int64), False, "no float gives"),
        (S.Box(2**64 - 5, 2**64 - 1, (2,), np.uint64), False, "no float gives"),
        (S.MultiDiscrete([100, 100]), True, "10000 combinations"),
        (S.MultiBinary(339), True, "combinations"),
        (S.Tuple((S.Discrete(2), S.Box(0, 1))), True, "choices and numbers"),
    ],
)
def test_what_no_network_chooses_is_refused(space, joint, what):
    with pytest.raises(ConfigError, match=what) as refused:
        read_actions(space, joint=joint)
    assert refused.value.allowed
    assert refused.value.fix


def test_parts_follow_from_the_json_values_of_the_space():
    import json

    for space in SPACES.values():
        actions = ActionParts(json.loads(json.dumps(describe_space(space))))
        chosen = draw_choices(actions, np.random.default_rng(0), 1)
        np.testing.assert_equal(actions.decode(chosen), read_actions(space).decode(chosen))
