"""Running moments against NumPy's, and against RLlib's filter."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.connectors.env_to_module import MeanStdFilter

from rltune.algorithms import far_values
from rltune.algorithms.connectors import NormaliseObservations
from rltune.engine.sampling.observation_filter import RunningMoments, make_normaliser, merge_moments
from rltune.envs.observations import make_layout, make_row_space

RNG = np.random.default_rng(0)


def filter_all(data: Any, moments: RunningMoments | None = None) -> tuple[RunningMoments, Any]:
    """Return the normaliser after observations [steps, envs, columns], and them as it gave them."""
    moments = moments or RunningMoments(data.shape[2:], data.shape[1])
    out = np.zeros(data.shape, np.float32)
    for raw, row in zip(data, out, strict=True):
        moments(raw, row)
    moments.flush()
    return moments, out


def spread(moments: RunningMoments, column: int = 1) -> float:
    """Return how far apart the networks see the values -1 and 1 of a column."""
    out = np.zeros((2, *moments.shape), np.float32)
    moments.apply(np.array([[-1.0] * 3, [1.0] * 3]), out)
    return float(out[1, column] - out[0, column])


def test_running_moments_equal_numpys_and_survive_rllibs_filter() -> None:
    moments = RunningMoments((3,), 4)
    data = RNG.normal([1.0, -5.0, 300.0], [1.0, 0.1, 50.0], size=(700, 4, 3))
    out = np.zeros((4, 3), np.float32)
    for raw in data:
        moments(raw, out)
    stats, flat = moments.stats(), data.reshape(-1, 3).astype(np.float32)
    np.testing.assert_allclose(stats["mean"], flat.mean(0), rtol=1e-5)
    np.testing.assert_allclose(stats["var"], flat.var(0, ddof=1), rtol=1e-4)
    assert stats["count"] == 2800
    connector = MeanStdFilter()
    connector.input_action_space = gym.spaces.Discrete(2)
    connector.input_observation_space = gym.spaces.Box(-1, 1, (3,))
    moments.to_filter(connector)
    expected = connector._filters[None](data[0, 0], update=False)
    moments.apply(data[0], out)
    np.testing.assert_allclose(out[0], expected, atol=1e-4)
    other = RunningMoments((3,), 2)
    other.from_filter(connector)
    np.testing.assert_allclose(other.stats()["mean"], stats["mean"])


@pytest.mark.parametrize("envs", [1, 3, 16, 300])
@pytest.mark.parametrize("far", [1e8, -1e8, 1e30])
@pytest.mark.parametrize("place", [0, 1, 2, 100, 130, 255, 300, 2900])
def test_one_far_value_does_not_blind_its_column(envs: int, far: float, place: int) -> None:
    data = RNG.normal(0, 1, (-(-3000 // envs), envs, 3)).astype(np.float32)
    data.reshape(-1, 3)[place, 1] = far
    moments, _ = filter_all(data)
    assert 0.4 < spread(moments) < 2.5
    assert moments.far is not None
    assert (moments.far.column, moments.far.value) == (1, float(np.float32(far)))
    assert abs(moments.mean[1]) < 1


def test_glitches_now_and_then_do_not_blind() -> None:
    data = RNG.normal(0, 1, (40_000, 1, 3))
    data[RNG.random(len(data)) < 1 / 500, 0, 1] = 1e30
    assert spread(filter_all(data)[0]) > 1


def test_values_that_have_moved_for_good_are_learned() -> None:
    """A column that was constant, and then is another one, is data and no glitch."""
    data = np.zeros((6000, 1, 3))
    data[1000:, 0, 1] = RNG.normal(1e5, 1e4, 5000)
    moments, _ = filter_all(data)
    assert moments.mean[1] > 1e4


def odd_columns(steps: int, envs: int) -> Any:
    """Return observations without a far value: constant, rare, growing and large ones."""
    clock = np.arange(steps * envs).reshape(steps, envs)
    rare = (RNG.random((steps, envs)) < 1e-3).astype(float)
    return np.stack([np.ones_like(rare), rare, 1.005 ** (clock % 3000), RNG.normal(1e9, 1e7, rare.shape)], axis=-1)


@pytest.mark.parametrize("envs", [1, 3, 300])
def test_without_a_far_value_nothing_changes_by_a_bit(envs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data = odd_columns(6000 // envs, envs)
    moments, out = filter_all(data)
    assert moments.far is None
    monkeypatch.setattr(far_values, "FAR", np.inf)
    plain, expected = filter_all(data)
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(moments.sum_squares, plain.sum_squares)


def test_what_a_runner_has_learned_has_no_far_value_in_it() -> None:
    total, runner = RunningMoments((3,), 1), RunningMoments((3,), 1)
    data = RNG.normal(0, 1, (1200, 1, 3))
    data[5, 0, 1] = data[700, 0, 1] = 1e8
    for part in np.split(data, 4):
        runner.load(*total.moments)
        filter_all(part, runner)
        total.load(*merge_moments(total.moments, runner.delta))
    assert total.count == 1200
    assert spread(total) > 1
    assert total.far is not None
    assert total.far.column == 1


def test_infinite_values_are_no_far_values() -> None:
    """They end the trial, and so must reach the networks."""
    data = RNG.normal(0, 1, (600, 1, 3))
    data[400, 0, 1] = np.inf
    with np.errstate(invalid="ignore"):
        moments, _ = filter_all(data)
    assert not np.isfinite(moments.mean[1])


@pytest.mark.parametrize("has_image", [False, True])
def test_a_row_is_normalised_in_its_vectors_alone(has_image: bool) -> None:
    parts = {"state": spaces.Discrete(3), "arm": spaces.Box(-9, 9, (2,)), "flags": spaces.MultiBinary(2)}
    image = {"image": spaces.Box(0, 255, (9, 9, 1), np.uint8)} if has_image else {}
    space = spaces.Dict(parts | image)
    layout, num_envs = make_layout(space), 2
    columns = layout.vector_columns
    config = PPOConfig().env_runners(env_to_module_connector=NormaliseObservations(columns.start, columns.stop))
    moments = make_normaliser(config, make_row_space(layout), num_envs)
    assert moments is not None
    assert moments.shape == (2,)
    seen = []
    for _ in range(100):
        rows = np.stack([layout.encode(space.sample()) for _ in range(num_envs)])
        out = np.zeros_like(rows)
        moments(rows, out)
        seen.append(layout.view(out)[:, columns])
        others = np.delete(layout.view(out), columns, axis=1), np.delete(layout.view(rows), columns, axis=1)
        np.testing.assert_array_equal(*others)
    assert 0.5 < np.std(seen[20:]) < 1.5
    assert abs(np.mean(seen[20:])) < 0.5
