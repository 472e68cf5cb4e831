"""Rollouts against what the environments did, written out by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from rltune.engine.on_policy.advantages import compute_advantages
from rltune.engine.on_policy.chunks import find_chunks
from rltune.engine.on_policy.rollout import Collector, Rollout
from rltune.engine.sampling.observation_filter import RunningMoments
from rltune.engine.sampling.vector_envs import SyncEnvs
from rltune.envs.build import make_training_env
from rltune.envs.episode import EpisodeRecord
from rltune.envs.spec import EnvSpec
from rltune.envs.step_count import STEPS, SamplingEnded
from tests.engine.engine_toy import CountEnv, make_collector


def test_a_step_after_an_episodes_end_resets_and_is_not_counted() -> None:
    rollout = make_collector(SyncEnvs(lambda i: CountEnv(length=2), 1)).collect(4)
    # obs: start, 1, 2 (last one of the episode), start of the next, 1, 2
    np.testing.assert_array_equal(rollout.obs[:, 0, 1], [0, 1, 2, 0, 1, 2])
    np.testing.assert_array_equal(rollout.valid[:, 0], [True, True, False, True, True])
    np.testing.assert_array_equal(rollout.rewards[:, 0], [1, 2, 0, 1, 2])
    assert rollout.num_steps == 4
    assert rollout.episodes == [EpisodeRecord(3.0, 2, 3.0)] * 2


def test_an_episode_runs_on_through_the_next_rollout() -> None:
    source = make_collector(SyncEnvs(lambda i: CountEnv(length=5), 1))
    assert source.collect(3).episodes == []
    second = source.collect(4)
    np.testing.assert_array_equal(second.obs[:, 0, 1], [3, 4, 5, 0, 1, 2])
    assert second.episodes == [EpisodeRecord(15.0, 5, 15.0)]


def test_a_policy_sees_normalised_observations() -> None:
    envs = SyncEnvs(lambda i: CountEnv(length=50), 4)
    rollout = make_collector(envs, RunningMoments((2,), 4)).collect(2000)
    steps = rollout.obs[200:, :, 1]
    assert abs(steps.mean()) < 0.3
    assert 0.7 < steps.std() < 1.3


def collect_parts(parts: list[int], **kwargs: Any) -> list[Rollout]:
    """Collect rollouts of so many steps in an environment that fails or truncates at given steps of a copy's life."""
    spec = EnvSpec("failing:Failing-v0", {"length": 5, **kwargs}, restarts=9)
    source = make_collector(SyncEnvs(lambda index: make_training_env(spec), 1))
    return [copy_rollout(source.collect(steps)) for steps in parts]


def copy_rollout(rollout: Rollout) -> Rollout:
    return Rollout(**{name: part.copy() if hasattr(part, "copy") else part for name, part in vars(rollout).items()})


def list_steps(rollout: Rollout, value: float = 0.5) -> list[tuple[float, ...]]:
    """List each valid step with its advantage, where an observation's value grows with its step and its episode."""
    values = (value * rollout.obs[..., 1] + 0.25 * rollout.obs[..., 0]).astype(np.float32)
    advantages = compute_advantages(rollout, values, 0.9, 0.8)
    columns = (rollout.obs[:-1, 0, 1], rollout.rewards[:, 0], rollout.terminated[:, 0], rollout.truncated[:, 0])
    rows = zip(*columns, advantages[:, 0], strict=True)
    return [
        tuple(float(number) for number in row) for row, valid in zip(rows, rollout.valid[:, 0], strict=True) if valid
    ]


@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_a_failure_trains_as_a_truncation_at_its_step_does(at: int) -> None:
    """The step before it is bootstrapped from the observation in which the copy failed; the failed one is dropped."""
    (failed,), (truncated,) = collect_parts([8], fail_at=at + 1), collect_parts([8], truncate_at=at)
    assert list_steps(failed)[:at] == list_steps(truncated)[:at]
    assert list_steps(failed)[at - 1][3] == 1.0
    assert failed.num_steps == 8
    first, second = failed.episodes[0], truncated.episodes[0]
    assert (first.cut, first.restarts) == (True, 1)
    assert (first.total, first.length) == (second.total, second.length) == (sum(range(at + 1)), at)
    chunks = find_chunks(failed)
    assert chunks.order_steps(1).tolist() == np.flatnonzero(failed.valid[:, 0]).tolist()


def test_a_copy_that_fails_in_an_episodes_first_step_adds_none() -> None:
    (rollout,) = collect_parts([8], fail_at=6)
    assert [step[0] for step in list_steps(rollout)] == [0, 1, 2, 3, 4, 0, 1, 2]
    assert [(episode.cut, episode.length) for episode in rollout.episodes] == [(False, 5), (True, 0)]
    assert find_chunks(rollout).order_steps(1).tolist() == np.flatnonzero(rollout.valid[:, 0]).tolist()


def test_a_reset_that_fails_adds_no_step_and_cuts_nothing() -> None:
    (rollout,) = collect_parts([12], fail_at=2, fail_in="reset")
    assert rollout.num_steps == 12
    assert [(episode.cut, episode.restarts) for episode in rollout.episodes] == [(False, 0), (False, 1)]


@pytest.mark.parametrize("first", [2, 3])
def test_a_failure_at_a_rollouts_begin_adds_no_step(first: int) -> None:
    """The last step of a rollout is bootstrapped anyway."""
    rollouts = collect_parts([first, 4], fail_at=first + 1)
    assert [rollout.num_steps for rollout in rollouts] == [first, 4]
    assert [step[0] for step in list_steps(rollouts[1])[:2]] == [0.0, 1.0]
    assert rollouts[1].episodes[0].cut
    assert find_chunks(rollouts[1]).first.tolist()[0] == 2


def test_records_of_an_interrupted_rollout_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = EnvSpec("failing:Failing-v0", {"fail_at": 4}, restarts=9)

    def make() -> Collector:
        return make_collector(SyncEnvs(lambda index: make_training_env(spec), 1))

    source, target = make(), make()
    policy, steps = source.policy, iter(range(6))

    def end(obs: Any) -> Any:
        if next(steps, None) is None:
            STEPS.is_ending = True
        return policy(obs)

    source.policy = end
    monkeypatch.setattr(STEPS, "is_ending", False)
    with pytest.raises(SamplingEnded):
        source.collect(20)
    monkeypatch.setattr(STEPS, "is_ending", False)
    state = source.state()
    assert state is not None
    target.load(state)
    target.envs = source.envs
    ended = target.collect(9).episodes
    assert [(episode.cut, episode.length) for episode in ended][:2] == [(True, 3), (True, 3)]


@pytest.mark.parametrize("saved_at", [2, 3, 4, 5])
def test_an_interrupted_rollout_outlives_its_environments(saved_at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their running episodes end as at a time limit where it was saved, and count in no score."""
    source = make_collector(SyncEnvs(lambda i: CountEnv(length=3), 2))
    monkeypatch.setattr(STEPS, "pause_at", STEPS.steps + 2 * saved_at)
    with pytest.raises(SamplingEnded):
        source.collect(16)
    monkeypatch.setattr(STEPS, "pause_at", math.inf)
    state = source.state()
    assert state is not None
    target = make_collector(SyncEnvs(lambda i: CountEnv(length=3), 2))
    target.load_rollout(state)
    assert target.kept_steps == source.kept_steps
    rollout = target.collect(16)
    assert rollout.num_steps == 16
    before = [1, 2, 3, 0, 1][:saved_at]
    np.testing.assert_array_equal(rollout.rewards[: saved_at + 3, 0], [*before, 0, 1, 2])
    np.testing.assert_array_equal(rollout.valid[: saved_at + 2, 0], [*map(bool, before), False, True])
    # Steps 2 and 5 are in the midst of an episode, 3 ends one, and 4 has only reset.
    assert rollout.truncated[saved_at - 1, 0] == (saved_at != 3)
    assert {(episode.total, episode.length) for episode in rollout.episodes} == {(6.0, 3)}
    chunks = find_chunks(rollout)
    assert sorted(chunks.order_steps(2).tolist()) == np.flatnonzero(rollout.valid).tolist()
