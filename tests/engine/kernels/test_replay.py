"""Kernels of the replay memory where test_replay.py and test_transitions.py of off_policy do not look."""

from __future__ import annotations

import numpy as np
import pytest

from rltune.engine.off_policy.replay import SumTree
from rltune.engine.off_policy.transitions import RowLayout, TransitionPacker


@pytest.mark.parametrize("capacity", [1, 8, 9, 64, 65, 3000])
@pytest.mark.parametrize("bad", [np.nan, np.inf, 0.0])
def test_what_is_not_finite_finds_an_index_of_the_memory(capacity: int, bad: float) -> None:
    tree = SumTree(capacity)
    tree.set(np.arange(capacity), np.ones(capacity))
    assert tree.total == capacity
    rounded = np.array([capacity, np.nextafter(capacity, np.inf), np.inf, np.nan, 0.0])
    assert tree.find(rounded).tolist() == [capacity - 1, capacity - 1, capacity - 1, 0, 0]
    tree.set(np.array([capacity // 2]), np.array([bad]))
    assert tree.total == pytest.approx(capacity - 1 + bad, nan_ok=True)
    indices = tree.find(np.array([0.0, capacity / 2, tree.total]))
    assert ((indices >= 0) & (indices < capacity)).all()


def test_of_an_index_set_twice_the_last_value_counts() -> None:
    tree = SumTree(100)
    tree.set(np.array([70, 3, 70]), np.array([5.0, 1.0, 2.0]))
    assert tree.total == 3.0
    assert tree.smallest == 1.0
    assert tree.get(np.array([70])) == 2.0


@pytest.mark.parametrize("n_step", [1, 2])
def test_images_and_numbers_of_other_types_become_rows(n_step: int) -> None:
    layout = RowLayout((2, 3), 2)
    packer = TransitionPacker(layout, 1, n_step, 0.5)
    obs, action = np.arange(6.0, dtype=np.float32).reshape(1, 2, 3), np.array([[0.25, -0.25]], np.float32)
    no, yes = np.zeros(1, bool), np.ones(1, bool)
    for _ in range(n_step):
        rows = packer.add(obs, action, np.array([np.nan], np.float32), no, no, yes, obs + 6.0)
    assert rows[0, :12].tolist() == list(range(12))
    assert rows[0, 12:14].tolist() == [0.25, -0.25]
    assert np.isnan(rows[0, 14])
    assert rows[0, 15] == 0.5**n_step
