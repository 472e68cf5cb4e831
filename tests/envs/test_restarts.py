"""A copy of an environment that fails is made again, and its episode is cut honestly."""

from __future__ import annotations

import pickle
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from failing import Failing

from rltune.config.schema import EnvConfig
from rltune.config.validation import check_pair
from rltune.envs import restarts
from rltune.envs.build import is_plain, make_training_env
from rltune.envs.episode import RECORD, EpisodeRecord, was_cut
from rltune.envs.guest import FOLLOWS_SEED
from rltune.envs.restarts import RestartingEnv
from rltune.envs.spec import EnvSpec, spec_of
from rltune.envs.validation import check_env
from rltune.errors import Cause, ConfigError, GuestError

FAULT = "ConnectionResetError: the simulator has closed the connection"


@pytest.fixture(autouse=True)
def forget() -> None:
    Failing.made.clear()


def spec(restarts: int = 2, **kwargs: Any) -> EnvSpec:
    return EnvSpec("failing:Failing-v0", kwargs, restarts=restarts)


def test_a_failed_step_cuts_its_episode_and_a_new_copy_goes_on() -> None:
    env = make_training_env(spec(fail_at=3))
    env.reset(seed=7)
    first, _ = env.step(0)[:2]
    last = env.step(0)[0]
    obs, reward, terminated, truncated, info = env.step(0)
    assert (obs is last, reward, terminated, truncated) == (True, 0.0, False, True)
    assert info[RECORD] == EpisodeRecord(3.0, 2, 0.0, True, 1, FAULT)
    assert [copy.is_closed for copy in Failing.made] == [True, False]
    env.reset()
    assert [env.step(0)[1] for _ in range(2)] == [1.0, 2.0]
    assert Failing.made[1].seeds != [None], "a run with this seed can be repeated"
    assert len(first) == 2


@pytest.mark.parametrize("exits", [False, True])
def test_a_reset_that_fails_is_repeated_with_its_seed(exits: bool) -> None:
    env = make_training_env(spec(fail_at=1, fail_in="reset", exits=exits, length=2))
    # Each copy fails at its first reset, and there are only two more of them.
    with pytest.raises(GuestError) as raised:
        env.reset(seed=7)
    assert (raised.value.cause, raised.value.call) == (Cause.REPEATED, "reset of the episode of seed 7")
    assert [copy.seeds for copy in Failing.made] == [[7], [7], [7]]
    assert [copy.is_closed for copy in Failing.made] == [True, True, False]


def test_a_failed_reset_without_a_seed_gets_another_one() -> None:
    env = make_training_env(spec(fail_at=1, fail_in="reset"))
    Failing.made[0].fail_at = 0
    env.reset(seed=7)
    Failing.made[0].fail_at = 2
    with pytest.raises(ConnectionResetError):
        env.reset()
    seeds = [copy.seeds[-1] for copy in Failing.made]
    assert len({7, *seeds}) == 4


def test_repairs_at_a_reset_are_counted_with_the_next_episode() -> None:
    env = make_training_env(spec(fail_at=2, fail_in="reset", length=1))
    env.reset(seed=7)
    assert env.step(0)[4][RECORD] == EpisodeRecord(1.0, 1, 1.0)
    env.reset()
    assert env.step(0)[4][RECORD] == EpisodeRecord(1.0, 1, 1.0, False, 1, FAULT)


def play_again(env: RestartingEnv, seed: int) -> int:
    """Play an episode from its seed until it is whole; return how often that took."""
    for count in range(1, 30):
        env.reset(seed=seed)
        over = False
        while not over:
            _, _, terminated, truncated, info = env.step(0)
            over = terminated or truncated
        if not was_cut(info):
            return count
    raise AssertionError("it is played for ever")


@pytest.mark.parametrize("limit", [1, 40])
def test_an_episode_that_fails_by_its_seed_ends_the_repeats(limit: int) -> None:
    env = RestartingEnv(partial(Failing, length=5, fail_at=3), limit)
    with pytest.raises(GuestError) as raised:
        play_again(env, 7)
    assert (raised.value.cause, raised.value.call) == (Cause.REPEATED, "step 3 of the episode of seed 7")
    assert len(Failing.made) == min(limit + 1, restarts.MAX_EQUAL)
    assert raised.value.fix == FOLLOWS_SEED[1]


def test_failures_at_other_steps_and_of_other_seeds_are_chance() -> None:
    lives = iter([3, 4, 3, 4, 0])
    env = RestartingEnv(lambda: Failing(length=5, fail_at=next(lives)), 40)
    assert play_again(env, 7) == 5
    lives = iter([1, 1, 0])
    env.env.life, env.env.fail_at = 0, 1  # type: ignore[attr-defined]
    for seed in (8, 9, 10):
        env.reset(seed=seed)
        assert was_cut(env.step(0)[4])


def play(env: RestartingEnv, num_steps: int) -> bool:
    """Play an episode of so many steps; whether a failure has cut it."""
    env.reset()
    return was_cut([env.step(0) for _ in range(num_steps)][-1][4])


def test_the_limit_holds_for_any_ten_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(restarts.time, "monotonic", lambda: clock[0])
    env = RestartingEnv(partial(Failing, length=2, fail_at=3), 2)
    for clock[0] in (0.0, 300.0, 601.0, 901.0):
        assert [play(env, 2), play(env, 1)] == [False, True]
    clock[0] = 902.0
    assert not play(env, 2)
    with pytest.raises(ConnectionResetError):
        play(env, 1)


def test_the_limit_holds_until_an_episode_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow copy that fails in each episode stays below any limit by time."""
    clock = [0.0]
    monkeypatch.setattr(restarts.time, "monotonic", lambda: clock[0])
    env = RestartingEnv(partial(Failing, fail_at=1), 2)
    for clock[0] in (0.0, 1000.0):
        assert play(env, 1)
    clock[0] = 2000.0
    with pytest.raises(ConnectionResetError):
        play(env, 1)


def test_errors_of_our_own_make_no_copy_again() -> None:
    def refuse(action: Any) -> Any:
        raise ConfigError("objective.key", "x", "is missing", "", "")

    env = RestartingEnv(Failing, 3)
    env.reset()
    env.env.step = refuse  # type: ignore[method-assign]
    with pytest.raises(ConfigError):
        env.step(0)
    assert len(Failing.made) == 1


def test_a_copy_that_cannot_be_made_again_ends_with_its_error() -> None:
    calls = []

    def make() -> Any:
        calls.append(1)
        if len(calls) > 1:
            raise OSError("no licence")
        return Failing(fail_at=1)

    env = RestartingEnv(make, 3)
    env.reset()
    with pytest.raises(OSError, match="no licence"):
        env.step(0)
    assert len(calls) == 4


def test_a_copy_in_mid_episode_goes_on_after_a_pickle() -> None:
    env = make_training_env(spec(fail_at=4))
    env.reset(seed=1)
    env.step(0)
    copy = pickle.loads(pickle.dumps(env))
    assert [copy.step(0)[1] for _ in range(2)] == [2.0, 3.0]
    assert copy.step(0)[4][RECORD] == EpisodeRecord(6.0, 3, 0.0, True, 1, FAULT)


def test_restarts_are_no_part_of_the_task() -> None:
    plain, restarting = spec(restarts=0), spec(restarts=3)
    assert plain.digest == restarting.digest
    assert "restarts" not in plain.to_dict()
    assert spec_of(restarting.to_dict()) == restarting
    simple = EnvSpec("CartPole-v1")
    facts = check_env(simple)
    assert is_plain(simple, facts)
    assert not is_plain(replace(simple, restarts=3), facts)


def test_only_copies_of_one_agent_are_made_again() -> None:
    with pytest.raises(ConfigError) as refused:
        check_pair({}, EnvConfig(name="x", id="x", restarts=3, policies="shared"))
    assert (refused.value.key, refused.value.fix) == ("env.restarts", "env.restarts=0")
