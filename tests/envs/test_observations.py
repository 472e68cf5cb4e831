"""Which layout a space has, what is refused by name, and what a person may say otherwise."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces as S

from rltune.envs.layout import IMAGE, ONE_HOT, VECTOR
from rltune.envs.observations import RowObservation, describe_leaf, encode_observation, make_layout
from rltune.envs.spaces import Without, read_actions
from rltune.errors import Cause, ConfigError, GuestError


def bytes_of(*shape: int) -> S.Box:
    return S.Box(0, 255, shape, np.uint8)


class Mine(S.Box):
    """A user's subclass."""


@pytest.mark.parametrize(
    ("space", "kind", "channels", "scale"),
    [
        (bytes_of(84, 84, 4), IMAGE, "last", 255),
        (bytes_of(4, 84, 84), IMAGE, "first", 255),
        (bytes_of(84, 84), IMAGE, "none", 255),
        (bytes_of(9, 9, 17), IMAGE, "last", 255),
        (bytes_of(17, 9, 9), IMAGE, "first", 255),
        (bytes_of(210, 160, 3), IMAGE, "last", 255),
        (S.Box(0, 1, (40, 40, 3), np.float32), IMAGE, "last", 1),
        (S.Box(0, 255, (40, 40, 3), np.float64), IMAGE, "last", 255),
        (S.Box(-1, 1, (40, 40, 3), np.float32), IMAGE, "last", 1),
        (S.Box(-np.inf, np.inf, (40, 40, 3), np.float32), IMAGE, "last", 1),
        (S.Box(-128, 127, (40, 40, 3), np.int8), IMAGE, "last", 128),
        (S.Box(0, np.finfo(np.float32).max, (40, 40, 3), np.float32), IMAGE, "last", 1),
        (S.Box(-np.inf, np.inf, (40, 40, 3), np.float16), IMAGE, "last", 1),
        (bytes_of(7, 7, 3), VECTOR, "", 1),
        (bytes_of(3, 3, 40), VECTOR, "", 1),
        (bytes_of(128), VECTOR, "", 1),
        (S.Box(0, 1, (84, 84), np.float32), VECTOR, "", 1),
        (bytes_of(2, 84, 84, 3), IMAGE, "last", 255),
        (bytes_of(4, 3, 84, 84), IMAGE, "first", 255),
        (bytes_of(16, 16, 16, 1), VECTOR, "", 1),
        (bytes_of(2, 2, 84, 84, 3), VECTOR, "", 1),
        (S.Box(-1, 1, (), np.float32), VECTOR, "", 1),
        (Mine(-1, 1, (5,)), VECTOR, "", 1),
        (S.Discrete(500), ONE_HOT, "", 1),
        (S.MultiDiscrete([[2, 3], [4, 5]]), ONE_HOT, "", 1),
        (S.MultiBinary([2, 3]), ONE_HOT, "", 1),
    ],
)
def test_each_space_has_its_kind(space: Any, kind: str, channels: str, scale: float) -> None:
    (leaf,) = make_layout(space).leaves
    assert (leaf.kind, leaf.channels, leaf.scale) == (kind, channels, scale)
    assert make_layout(space).encode(space.sample()).shape == (make_layout(space).width,)
    assert describe_leaf(leaf).startswith("observations: ")


def test_an_image_without_pixels_has_no_columns() -> None:
    layout = make_layout(S.Dict({"none": bytes_of(8, 9, 0), "map": bytes_of(0, 84, 84), "at": S.Discrete(2)}))
    assert [(leaf.kind, leaf.size) for leaf in layout.leaves] == [(ONE_HOT, 2), (VECTOR, 0), (VECTOR, 0)]


@pytest.mark.parametrize(
    ("space", "name"),
    [
        (S.Dict({"mission": S.Text(9), "grid": S.Discrete(2)}), "mission"),
        (S.Dict({"a": S.Dict({"graph": S.Graph(S.Box(0, 1), None)})}), "a.graph"),
        (S.Tuple([S.Discrete(2), S.Sequence(S.Discrete(2))]), "1"),
        (S.Dict({"time": S.Box(0, 2**25, (1,), np.int64)}), "time"),
        (S.Dict({"ids": S.Box(0, 2**25, (9, 9, 1), np.int64)}), "ids"),
        (S.Dict({"state": S.Discrete(4097)}), "state"),
        (S.Dict({"board": S.MultiDiscrete(np.full((30, 30), 5))}), "board"),
    ],
)
def test_what_has_no_columns_is_refused_by_its_name(space: Any, name: str) -> None:
    with pytest.raises(ConfigError, match=f"leaf {name} of its observations") as refusal:
        make_layout(space)
    assert f"rltune.envs.spaces:Without', kwargs: {{keys: [{name}]}}" in refusal.value.fix


def test_what_is_to_become_of_a_leaf_can_be_said() -> None:
    space = S.Dict({"board": bytes_of(7, 7, 3), "camera": bytes_of(3, 40, 40), "state": S.Discrete(9000)})
    wanted = {"board": ONE_HOT, "camera": "channels_last", "state": "flat"}
    with pytest.raises(ConfigError, match="env"):
        make_layout(space, {**wanted, "cam": "flat"})
    codes = S.Box(0, np.array([10, 5, 2]), (3,), np.uint8)
    board, camera, state = make_layout(S.Dict({**space.spaces, "board": codes}), wanted).leaves
    assert (board.kind, board.sizes) == (ONE_HOT, (11, 6, 3))
    assert camera.image_shape == (3, 40, 40)
    assert (state.kind, state.size) == (VECTOR, 1)
    assert make_layout(space, {"board": IMAGE, "state": "flat"}).leaves[0].kind == IMAGE


@pytest.mark.parametrize(
    ("space", "value"), [(S.Discrete(3), IMAGE), (bytes_of(9), "channels_first"), (S.Box(0, 1, (2,)), ONE_HOT)]
)
def test_what_a_leaf_cannot_become_is_refused(space: Any, value: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        make_layout(space, {"observations": value})
    assert refusal.value.key == "env.encode.observations"


class Room(gymnasium.Env[Any, Any]):
    """Gives what it is told to."""

    action_space = S.Discrete(2)

    def __init__(self, space: Any, given: Any) -> None:
        self.observation_space, self.given = space, given

    def reset(self, **kwargs: Any) -> Any:
        return self.given, {}


def test_leaves_can_be_left_out() -> None:
    inner = S.Dict({"log": S.Text(5), "arm": S.Box(0, 1, (2,))})
    space = S.Dict({"mission": S.Text(9), "robot": S.Tuple([inner, S.Discrete(2)])})
    given = {"mission": "go", "robot": ({"log": "x", "arm": np.ones(2)}, 1)}
    env = Without(Room(space, given), ["mission", "robot.0.log"])
    layout = make_layout(env.observation_space)
    assert layout.encode(env.reset()[0]).tolist() == [1, 1, 0, 1]
    with pytest.raises(ConfigError, match="wind"):
        Without(Room(space, given), ["wind"])


def test_a_leaf_is_left_out_by_the_name_that_the_check_prints() -> None:
    space = S.Dict({"log.raw": S.Text(5), "at": S.Dict({"7": S.Text(2), "x": S.Discrete(2)})})
    with pytest.raises(ConfigError) as refusal:
        make_layout(space)
    for name in ("at.7", "log.raw"):
        assert name in refusal.value.fix
        env = Without(Room(space, {"log.raw": "a", "at": {"7": "b", "x": 1}}), [name])
        space = env.observation_space
        if name == "at.7":
            with pytest.raises(ConfigError) as refusal:
                make_layout(space)
    assert [leaf.name for leaf in make_layout(Without(env, []).observation_space).leaves] == ["at.x"]
    with pytest.raises(ConfigError, match=r"no leaf at\.y"):
        Without(Room(space, None), ["at.y"])


def test_a_state_outside_of_its_space_is_refused() -> None:
    """The one-hot vector of -1 would be that of the last state."""
    for state in (-1, 5):
        with pytest.raises(GuestError) as refused:
            RowObservation(Room(S.Discrete(5), state), make_layout(S.Discrete(5))).reset()
        assert str(state) in refused.value.what
        assert "Discrete(5)" in refused.value.what
        assert refused.value.cause is Cause.OBSERVATION


def test_a_number_that_is_not_finite_is_named_by_its_leaf() -> None:
    space = S.Dict({"camera": bytes_of(9, 9, 3), "speed": S.Box(-1, 1, (2,))})
    given = {**space.sample(), "speed": np.float32([0, np.nan])}
    with pytest.raises(GuestError, match=r"observation\['speed'\]\[1\] is nan"):
        RowObservation(Room(space, given), make_layout(space)).reset()


def test_a_number_beyond_float32_is_named_by_its_leaf() -> None:
    space = S.Dict({"at": S.Box(-np.inf, np.inf, (2,), np.float64)})
    with pytest.raises(GuestError, match=r"observation\['at'\]\[1\] is 1e\+39"):
        encode_observation(space, make_layout(space), {"at": np.array([3e38, 1e39])})


def test_two_leaves_of_one_name_are_refused_by_it() -> None:
    space = S.Dict({"a.b": S.Discrete(2), "a": S.Dict({"b": S.Discrete(3)})})
    with pytest.raises(ConfigError, match=r"two leaves named a\.b"):
        make_layout(space)
    with pytest.raises(ConfigError, match=r"two leaves named a\.b"):
        read_actions(space)
    with pytest.raises(ConfigError, match="two leaves named observations"):
        make_layout(S.Dict({"": S.Discrete(2), "observations": S.Discrete(3)}))


def test_an_environment_gives_rows_or_their_view() -> None:
    space = S.Dict({"camera": bytes_of(9, 9, 3), "speed": S.Box(-1, 1, (2,))})
    layout = make_layout(space)
    given = space.sample()
    rows, seen = (RowObservation(Room(space, given), layout, view=view) for view in (False, True))
    assert rows.reset()[0] in rows.observation_space
    assert rows.observation_space.dtype == np.uint8
    assert seen.reset()[0] in seen.observation_space
    assert np.array_equal(layout.view(rows.reset()[0]), seen.reset()[0])
    with pytest.raises(GuestError, match=r"speed"):
        RowObservation(Room(space, {**given, "speed": np.zeros(3)}), layout).reset()
