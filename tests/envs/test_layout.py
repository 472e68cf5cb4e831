"""Rows and their columns: encoding of single observations and batches, views, JSON."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces as S

from rltune.envs.layout import IMAGE, MASK, VECTOR, Layout, Leaf
from rltune.envs.observations import make_layout

CAMERA = S.Box(0, 255, (9, 10, 3), np.uint8)
MIXED = S.Dict(
    {
        "camera": CAMERA,
        "kind": S.Discrete(3, start=-1),
        "robot": S.Dict({"arm": S.Box(-1, 1, (2, 2), np.float64), "grip": S.MultiBinary(2)}),
        "tools": S.Tuple([S.MultiDiscrete([2, 3]), S.Box(-5, 5, (1,), np.int8)]),
    }
)


def draw(space: Any, seed: int = 0) -> Any:
    space.seed(seed)
    return space.sample()


def test_a_vector_is_its_own_row_in_float32() -> None:
    space = S.Box(-np.inf, np.inf, (4,), np.float64)
    layout, obs = make_layout(space), draw(space)
    row = layout.encode(obs)
    assert row.dtype == np.float32
    assert np.array_equal(row, obs.astype(np.float32))
    assert (layout.num_vector, layout.num_bytes, layout.width) == (4, 0, 4)


def test_each_leaf_has_its_columns_vectors_first() -> None:
    layout, obs = make_layout(MIXED), draw(MIXED)
    row = layout.encode(obs)
    numbers = layout.numbers(row)
    assert np.array_equal(layout.bytes(row), obs["camera"].reshape(-1))
    vectors = np.concatenate([obs["robot"]["arm"].reshape(-1), obs["tools"][1]]).astype(np.float32)
    assert np.array_equal(numbers[: layout.num_vector], vectors)
    kind, grip, tools = np.zeros(3), obs["robot"]["grip"], np.zeros(5)
    kind[obs["kind"] + 1] = tools[obs["tools"][0][0]] = tools[2 + obs["tools"][0][1]] = 1
    assert np.array_equal(numbers[layout.num_vector :], np.concatenate([kind, grip, tools]))


def test_a_view_has_the_bytes_and_then_the_numbers() -> None:
    layout, obs = make_layout(MIXED), draw(MIXED)
    row = layout.encode(obs)
    view = layout.view(row)
    assert view.dtype == np.float32
    assert view.shape == (layout.num_columns,)
    assert np.array_equal(view, np.concatenate([layout.bytes(row), layout.numbers(row)]))
    for leaf in layout.leaves:
        part = (layout.bytes if leaf.is_bytes else layout.numbers)(row)
        assert np.array_equal(view[layout.columns(leaf)], part[leaf.begin : leaf.begin + leaf.size])


def test_numbers_beside_bytes_can_be_written() -> None:
    layout = make_layout(MIXED)
    rows = np.stack([layout.encode(draw(MIXED, seed)) for seed in range(3)])
    layout.numbers(rows)[..., :2] = 7
    assert (layout.view(rows)[:, layout.num_bytes : layout.num_bytes + 2] == 7).all()
    assert np.array_equal(layout.bytes(rows)[0], draw(MIXED)["camera"].reshape(-1))


def test_a_batch_has_the_rows_of_its_observations() -> None:
    layout = make_layout(MIXED)
    observations = [draw(MIXED, seed) for seed in range(5)]
    rows, is_single = layout.encode_batch(layout.stack(observations))
    assert not is_single
    assert np.array_equal(rows, np.stack([layout.encode(obs) for obs in observations]))
    one, is_single = layout.encode_batch(observations[3])
    assert is_single
    assert np.array_equal(one[0], rows[3])


def test_one_observation_may_have_other_shapes_as_in_training() -> None:
    layout = make_layout(S.Dict({"v": S.Box(-1, 1, (2,)), "d": S.Discrete(3), "t": S.Box(0, 1, (2, 2))}))
    obs = {"v": [[0.5, 0]], "d": [1], "t": [1, 2, 3, 4]}
    rows, single = layout.encode_batch(obs)
    assert single
    assert layout.is_single(obs)
    assert rows[0].tolist() == layout.encode(obs).tolist()
    assert np.array_equal(layout.encode_batch(layout.stack([obs, obs]))[0], np.repeat(rows, 2, axis=0))
    batch = {"v": [[0.5, 0]], "d": [1], "t": [[[1, 2], [3, 4]]]}
    assert not layout.encode_batch(batch)[1]
    assert not layout.is_single(batch)
    with pytest.raises(ValueError, match="batch"):
        layout.encode_batch({**batch, "d": [1, 2]})


def test_the_order_of_keys_does_not_matter() -> None:
    layout, obs = make_layout(MIXED), draw(MIXED)
    turned = dict(reversed(obs.items()))
    assert np.array_equal(layout.encode(obs), layout.encode(turned))


def test_a_layout_travels_as_json() -> None:
    layout, obs = make_layout(MIXED), draw(MIXED)
    again = Layout.from_dict(json.loads(json.dumps(layout.to_dict())))
    assert again == layout
    assert np.array_equal(again.encode(obs), layout.encode(obs))


@pytest.mark.parametrize(
    "damage",
    [{}, {"leaves": [{}]}, {"leaves": [{"path": [], "kind": "vector", "shape": [3], "dtype": "f", "size": 9}]}, 3],
)
def test_a_damaged_layout_is_refused(damage: Any) -> None:
    with pytest.raises(ValueError, match=r"layout|columns"):
        Layout.from_dict(damage)


def test_mask_columns_are_the_last() -> None:
    space = S.Dict({"action_mask": S.Box(0, 1, (4,), np.int8), "camera": CAMERA, "kind": S.Discrete(3)})
    layout = make_layout(space, mask=["action_mask"], num_flags=4)
    obs = draw(space)
    assert layout.mask is not None
    assert layout.columns(layout.mask) == slice(layout.num_columns - 4, layout.num_columns)
    assert np.array_equal(layout.view(layout.encode(obs))[-4:], obs["action_mask"])
    assert sum(columns.stop - columns.start for columns in layout.other_columns) == 3


def test_a_mask_beside_the_observation_is_given_with_it() -> None:
    layout = make_layout(S.Box(-1, 1, (2,), np.float32), mask=(), num_flags=5)
    flags = (np.array([1, 0], np.int8), np.array([0, 1, 1], np.int8))
    assert layout.encode([0.5, -0.5], flags).tolist() == [0.5, -0.5, 1, 0, 0, 1, 1]
    batch = np.zeros((2, 2)), (np.ones((2, 2)), np.zeros((2, 3)))
    assert layout.encode_batch(*batch)[0][1].tolist() == [0, 0, 1, 1, 0, 0, 0]
    with pytest.raises(ValueError, match="action_mask"):
        layout.encode([0.5, -0.5])


@pytest.mark.parametrize(
    ("space", "wrong"),
    [
        (S.Discrete(3, start=1), 0),
        (S.Discrete(3), 1.5),
        (S.Discrete(3), np.nan),
        (S.MultiDiscrete([2, 2]), [1, 2]),
        (S.MultiBinary(2), [0, 2]),
        (S.Box(-1, 1, (3,)), np.zeros(1)),
        (S.Box(-1, 1, (3,)), "abc"),
        (S.Dict({"a": S.Discrete(2)}), {"b": 1}),
        (CAMERA, np.full(CAMERA.shape, 0.5)),
        (CAMERA, np.full(CAMERA.shape, 256)),
        (CAMERA, np.full(CAMERA.shape, np.nan)),
    ],
)
def test_what_a_row_cannot_hold_is_refused(space: Any, wrong: Any) -> None:
    layout = make_layout(space)
    with pytest.raises(ValueError, match=r"\w"):
        layout.encode(wrong)
    with pytest.raises(ValueError, match=r"\w"):
        layout.encode_batch(wrong)


@pytest.mark.parametrize(
    ("space", "flag", "row"),
    [
        (S.Discrete(2), True, [0, 1]),
        (S.Discrete(3, start=-1), np.bool_(False), [0, 1, 0]),
        (S.MultiDiscrete([2, 3]), [True, False], [0, 1, 1, 0, 0]),
    ],
)
def test_a_flag_is_the_number_that_it_stands_for(space: Any, flag: Any, row: list[int]) -> None:
    assert make_layout(space).encode(flag).tolist() == row


def test_bytes_of_another_type_are_taken_if_they_are_whole() -> None:
    layout = make_layout(CAMERA)
    obs = draw(CAMERA)
    assert np.array_equal(layout.encode(obs.astype(np.float64)), layout.encode(obs))


def test_image_shapes_have_the_channels_last() -> None:
    first = Leaf((), IMAGE, (3, 9, 10), "uint8", 0, 270, channels="first")
    assert first.image_shape == (9, 10, 3)
    assert first._replace(shape=(9, 10), size=90, channels="none").image_shape == (9, 10, 1)
    # torch reads float32, of which there may be none, only at whole words.
    assert Layout([first]).width == Layout([first]).numbers_begin == 272


def test_names_are_paths() -> None:
    assert [leaf.name for leaf in make_layout(MIXED).leaves][2:4] == ["robot.arm", "robot.grip"]
    assert Leaf((), VECTOR, (3,), "float32").name == "observations"
    assert Leaf((), MASK, (3,), "int8").name == "action_mask"
