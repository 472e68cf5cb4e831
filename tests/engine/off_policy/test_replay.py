"""The replay memory against slow, obvious versions of itself."""

from __future__ import annotations

import numpy as np
import pytest
from engine_toy import dqn_config

from rltune.engine import build_algorithm
from rltune.engine.off_policy.replay import Replay, SumTree
from rltune.errors import ResourceError

RNG = np.random.default_rng(0)


def test_the_sum_tree_finds_what_a_running_sum_finds() -> None:
    tree, priorities = SumTree(5000), np.zeros(5000)
    for _ in range(20):
        index = RNG.integers(0, 5000, 300)
        values = RNG.random(300) * 10
        tree.set(index, values)
        priorities[index] = values
        np.testing.assert_allclose(tree.get(index), priorities[index])
    priorities = tree.get(np.arange(5000))
    assert tree.total == pytest.approx(priorities.sum())
    assert tree.smallest == pytest.approx(priorities[priorities > 0].min())
    mass = RNG.random(1000) * tree.total
    np.testing.assert_array_equal(tree.find(mass), np.searchsorted(np.cumsum(priorities), mass, side="right"))


def test_prioritised_sampling_draws_and_weighs_as_in_the_paper() -> None:
    """Schaul et al. 2016."""
    replay = Replay(100, 2, 64, np.random.default_rng(0), alpha=0.5, beta=0.4)
    replay.extend(np.column_stack([np.arange(4), np.arange(4)]).astype(np.float32))
    errors = np.array([1.0, 4.0, 9.0, 16.0])
    counts = np.zeros(4)
    for _ in range(300):
        drawn = replay.sample()[:, 0].astype(int)
        replay.prioritise(errors[drawn])
        counts += np.bincount(drawn, minlength=4)
    np.testing.assert_allclose(counts[1:] / counts[:3], [2.0, 1.5, 4 / 3], rtol=0.1)
    drawn = replay.sample()[:, 0].astype(int)
    chances = errors**0.5 / 10.0
    expected = (chances * 4) ** -0.4 / ((chances.min() * 4) ** -0.4)
    np.testing.assert_allclose(replay.weights, expected[drawn], rtol=1e-5)


def test_a_full_replay_memory_forgets_the_oldest() -> None:
    replay = Replay(10, 1, 500, np.random.default_rng(0))
    for start in range(0, 24, 4):
        replay.extend(np.arange(start, start + 4, dtype=np.float32)[:, None])
    assert set(replay.sample()[:, 0].astype(int)) == set(range(14, 24))
    other = Replay(10, 1, 5, np.random.default_rng(0))
    other.set_state(replay.get_state())
    np.testing.assert_array_equal(other.rows[:, 0], np.arange(14, 24))


def test_a_replay_memory_that_cannot_fit_is_refused() -> None:
    """Before any of it is taken."""
    config = dqn_config(replay_buffer_config={"type": "EpisodeReplayBuffer", "capacity": 10**12})
    with pytest.raises(ResourceError) as caught:
        build_algorithm(config)
    assert "capacity=1000000000000 needs" in caught.value.what
    assert caught.value.fix.startswith("training.replay_buffer_config.capacity=")
