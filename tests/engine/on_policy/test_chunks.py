"""Episode chunks against a rollout written out by hand."""

from __future__ import annotations

import numpy as np

from rltune.engine.on_policy.chunks import find_chunks
from rltune.engine.sampling.vector_envs import SyncEnvs
from tests.engine.engine_toy import CountEnv, make_collector


def test_ended_chunks_come_by_time_before_running_ones() -> None:
    # Episodes of 3 and of 2 steps; one step after each end only resets.
    rollout = make_collector(SyncEnvs(lambda i: CountEnv(length=3 - i), 2)).collect(8)
    assert len(rollout.valid) == 5
    chunks = find_chunks(rollout)
    np.testing.assert_array_equal(chunks.env, [1, 0, 1, 0])
    np.testing.assert_array_equal(chunks.first, [0, 0, 3, 4])
    np.testing.assert_array_equal(chunks.last, [1, 2, 4, 4])
    np.testing.assert_array_equal(chunks.order_steps(2), [1, 3, 0, 2, 4, 7, 9, 8])
    np.testing.assert_array_equal(chunks.loss_mask(), [1, 1, 0, 1, 1, 1, 0, 1, 1, 0, 1, 0])


def test_a_chunk_begins_after_the_reset_that_begins_a_rollout() -> None:
    source = make_collector(SyncEnvs(lambda i: CountEnv(length=4), 1))
    source.collect(4)  # up to the episode's end
    chunks = find_chunks(source.collect(2))
    np.testing.assert_array_equal([chunks.first, chunks.last], [[1], [2]])


def test_an_environment_just_reset_has_no_chunk() -> None:
    source = make_collector(SyncEnvs(lambda i: CountEnv(length=2 + 5 * i), 2))
    rollout = source.collect(5)
    assert not rollout.valid[-1, 0]
    chunks = find_chunks(rollout)
    np.testing.assert_array_equal([chunks.env, chunks.last], [[0, 1], [1, 2]])
