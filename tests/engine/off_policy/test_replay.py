"""The replay memory against slow, obvious versions of itself."""

from __future__ import annotations

import numpy as np
import pytest
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils.replay_buffers.prioritized_episode_buffer import PrioritizedEpisodeReplayBuffer

from rltune.engine import build_algorithm
from rltune.engine.off_policy.replay import Replay, SumTree
from rltune.engine.off_policy.transitions import RowLayout, TransitionPacker
from rltune.errors import ResourceError
from tests.engine.engine_toy import dqn_config

RNG = np.random.default_rng(0)
LAYOUT = RowLayout((1,), 1)


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


def test_more_transitions_than_a_memory_holds_leave_the_newest() -> None:
    replay = Replay(4, 1, 2, np.random.default_rng(0), 0.6)
    replay.extend(np.zeros((3, 1), np.float32))
    replay.extend(np.arange(1, 10, dtype=np.float32)[:, None])
    assert sorted(replay.rows[:, 0]) == [6, 7, 8, 9]
    assert replay.size == 4


@pytest.mark.parametrize(("capacity", "newest"), [(4, 4), (10, 10), (16, 10)])
def test_a_memory_of_another_size_takes_the_newest(capacity: int, newest: int) -> None:
    replay = Replay(10, 1, 5, np.random.default_rng(0), alpha=1.0)
    replay.extend(np.arange(10, dtype=np.float32)[:, None])
    replay.extend(np.arange(10, 14, dtype=np.float32)[:, None])
    replay.tree.set(np.arange(10), replay.rows[:, 0].astype(float))
    other = Replay(capacity, 1, 5, np.random.default_rng(0), alpha=1.0)
    other.set_state(replay.get_state())
    assert sorted(other.rows[: other.size, 0]) == list(range(14 - newest, 14))
    np.testing.assert_array_equal(other.tree.get(np.arange(other.size)), other.rows[: other.size, 0])
    other.extend(np.array([[99.0]], np.float32))
    assert {99.0, 13.0} <= set(other.rows[: other.size, 0])
    assert (14 - newest in other.rows[: other.size, 0]) == (capacity > 10), "the oldest goes first"


def test_a_replay_memory_that_cannot_fit_is_refused() -> None:
    """Before any of it is taken."""
    config = dqn_config(replay_buffer_config={"type": "EpisodeReplayBuffer", "capacity": 10**12})
    with pytest.raises(ResourceError) as caught:
        build_algorithm(config)
    assert caught.value.key == "training.replay_buffer_config.capacity"
    assert caught.value.fix.startswith("training.replay_buffer_config.capacity=")


class Pair:
    """RLlib's prioritised buffer and ours, filled with the same episodes of drawn lengths and ends.

    An observation is the number of its step, by which a row of ours and a node of RLlib's tree are found. RLlib's
    buffer has full windows alone: the packer is not told that an episode ended, so that it adds no shortened ones.
    """

    def __init__(self, n_step: int, alpha: float, beta: float) -> None:
        self.n_step, self.gamma, self.beta, self.steps = n_step, 0.9, beta, 0
        self.theirs = PrioritizedEpisodeReplayBuffer(capacity=1000, alpha=alpha)
        self.ours = Replay(1000, LAYOUT.width, 32, np.random.default_rng(0), alpha=alpha, beta=beta)
        self.rng = np.random.default_rng(n_step)

    def add_episode(self) -> None:
        length, how = int(self.rng.integers(1, 9)), self.rng.choice(["terminated", "truncated", "cut"])
        obs = np.arange(self.steps, self.steps + length + 1, dtype=np.float32)[:, None]
        actions, rewards = self.rng.integers(0, 4, length), self.rng.normal(size=length)
        self.theirs.add(SingleAgentEpisode(
            observations=list(obs), actions=list(actions), rewards=list(rewards), terminated=how == "terminated",
            truncated=how == "truncated", len_lookback_buffer=0,
        ))  # fmt: skip
        packer = TransitionPacker(LAYOUT, 1, self.n_step, self.gamma)
        for t in range(length):
            end = np.array([how == "terminated" and t == length - 1])
            over, valid = np.array([False]), np.array([True])
            step = (obs[t : t + 1], actions[t : t + 1], rewards[t : t + 1], end, over, valid, obs[t + 1 : t + 2])
            self.ours.extend(packer.add(*step))
        self.steps += length + 1

    def find_rows(self, sampled: list[SingleAgentEpisode]) -> np.ndarray:
        """Our rows of RLlib's transitions."""
        of = {number: row for row, number in enumerate(self.ours.rows[: self.ours.size, 0])}
        return np.array([of[float(one.get_observations(0)[0])] for one in sampled])


@pytest.mark.slow  # RLlib's own buffer draws again what does not fit, a thousand times.
@pytest.mark.parametrize("n_step", [1, 3])
def test_priorities_weights_and_windows_are_those_of_rllibs_buffer(
    n_step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for alpha, beta in ((0.6, 0.4), (1.0, 1.0), (0.3, 0.7)):
        pair = Pair(n_step, alpha, beta)
        ours, theirs = pair.ours, pair.theirs
        for _ in range(15):  # RLlib draws again what does not fit: with the spread of priorities, a thousand times
            for _ in range(int(pair.rng.integers(1, 4))):
                pair.add_episode()
            sampled = theirs.sample(num_items=32, n_step=n_step, beta=beta, gamma=pair.gamma)
            rows, nodes = pair.find_rows(sampled), list(theirs._last_sampled_indices)
            monkeypatch.setattr(ours.tree, "find", lambda mass, rows=rows: rows)  # the same draw
            obs, after, action, reward, discount = LAYOUT.views(ours.sample())
            for index, one in enumerate(sampled):
                assert [obs[index], after[index]] == list(one.get_observations())
                assert action[index] == one.get_actions(0)
                assert reward[index] == pytest.approx(one.get_rewards(0), rel=1e-5, abs=1e-6)
                assert discount[index] == pytest.approx(0.0 if one.is_terminated else pair.gamma**n_step)
            # RLlib draws the last steps of an episode, too, and draws again where n steps do not fit: of what can be
            # drawn the chances are the same.
            priorities = np.array([theirs._sum_segment[node] for node in nodes])
            np.testing.assert_allclose(ours.tree.get(rows), priorities, rtol=1e-6)  # RLlib's are float32
            # It scales the weights by the least priority of all steps, those that cannot be drawn included: with n_step
            # above 1 all weights of a batch are smaller than ours by one factor.
            weights = np.array([one.get_extra_model_outputs("weights", 0) for one in sampled])
            factor = (theirs._min_segment.min() / ours.tree.smallest) ** beta
            assert factor == pytest.approx(1.0) if n_step == 1 else factor <= 1.0 + 1e-9
            np.testing.assert_allclose(ours.weights * factor, weights, rtol=1e-5)
            errors = 10.0 ** pair.rng.uniform(-14, 2, 32).astype(np.float32)
            errors[pair.rng.integers(32)] = 0.0
            _, first = np.unique(rows, return_index=True)  # of a row that was drawn twice, one of its values counts
            errors = errors[first][np.searchsorted(rows[first], rows)]
            theirs.update_priorities(errors)
            ours.prioritise(errors)
            assert ours._max_priority == pytest.approx(theirs._max_priority)
        valid = sum(theirs._sum_segment[node] for node in theirs._tree_idx_to_sample_idx) if n_step == 1 else None
        assert valid is None or ours.tree.total == pytest.approx(valid)
