"""Every kind of environment follows one contract."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import few_copies
import gymnasium as gym
import living_copies
import numpy as np
import pytest
from ray.tune import register_env

from rltune.algorithms.rllib_env import register_for_rllib
from rltune.engine.sampling.vector_envs import SyncEnvs, VectorEnvs, make_envs
from rltune.envs.facts import EnvFacts
from rltune.envs.guest import ARGUMENTS
from rltune.envs.observations import RowObservation, make_layout
from rltune.envs.spec import EnvSpec
from rltune.envs.validation import check_env
from rltune.errors import Cause, GuestError, RewardError
from tests.engine.engine_toy import CountEnv, make_collector, ppo_config

SEEN: list[tuple[int, int]] = []


def create_indexed(config: Any) -> CountEnv:  # at module level: Ray's registry pickles closures by value
    SEEN.append((config["length"], config.vector_index))
    return CountEnv(length=config["length"])


def create_unrewarding(config: Any) -> CountEnv:
    return CountEnv(reward=float("nan"))


@pytest.mark.parametrize("mode", ["native", "async", "vector"])
def test_vector_environments_follow_the_same_contract(mode: str) -> None:
    config = ppo_config("CartPole-v1", envs=12 if mode == "native" else 2)
    if mode != "native":
        config.env_runners(gym_env_vectorize_mode="async" if mode == "async" else "vector_entry_point")
    envs = make_envs(config)
    try:
        assert isinstance(envs, VectorEnvs)
        rollout = make_collector(envs).collect(400)
    finally:
        envs.close()
    over = rollout.terminated | rollout.truncated
    assert over.any()
    np.testing.assert_array_equal(rollout.valid[1:], ~over[:-1])
    assert (rollout.rewards[~rollout.valid] == 0).all()
    assert all(episode.total == episode.length for episode in rollout.episodes)
    starts = rollout.obs[1:][~rollout.valid]
    assert (np.abs(starts) <= 0.05).all()


def test_few_environments_are_stepped_one_by_one() -> None:
    """Many are native, where the arguments allow."""
    assert isinstance(make_envs(ppo_config(envs=2)), SyncEnvs)
    unknown = ppo_config(envs=16).environment(env_config={"render_mode": None, "max_episode_steps": 7})
    native = make_envs(unknown)
    assert isinstance(native, VectorEnvs)
    assert max(episode.length for episode in make_collector(native).collect(500).episodes) <= 7


NATIVE = """
import gymnasium
gymnasium.register("Native-v0", "gymnasium.envs.classic_control:CartPoleEnv", vector_entry_point="{}:Vector")
"""


@pytest.mark.parametrize("is_vector", [False, True])
def test_a_native_versions_module_is_a_guest(is_vector: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It sees the command line that guests see, and its end is a fault."""
    monkeypatch.syspath_prepend(tmp_path)
    name = f"native_{is_vector:d}"
    module = f"vector_of_{name}" if is_vector else name
    (tmp_path / f"{module}.py").write_text("import sys\nsys.exit(sys.argv[1])\n")
    if is_vector:
        (tmp_path / f"{name}.py").write_text(NATIVE.format(module))
    with pytest.raises(GuestError) as caught:
        make_envs(ppo_config(f"{name}:Native-v0", envs=16))
    assert caught.value.call == f"import of {module}"
    assert ARGUMENTS[1] in caught.value.what


def test_a_registered_environment_receives_its_config_and_index() -> None:
    register_env("indexed", create_indexed)
    SEEN.clear()
    make_envs(ppo_config("indexed", envs=3).environment(env_config={"length": 4})).close()
    assert SEEN == [(4, 0), (4, 1), (4, 2)]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_reward_that_is_no_number_ends_the_sampling(mode: str) -> None:
    register_env("unrewarding", create_unrewarding)
    envs = make_envs(ppo_config("unrewarding", envs=2).env_runners(gym_env_vectorize_mode=mode))
    with pytest.raises(RewardError) as caught:
        make_collector(envs).collect(4)
    assert caught.value.call.startswith("step 1 of copy ")
    envs.close()


class Guest(CountEnv):
    """Does something wrong at a step or a reset, in its second copy."""

    def __init__(self, fault: Any, at: int = 2) -> None:
        super().__init__()
        self.fault, self.at = fault, at
        if at == -1:
            self.fault()

    def reset(self, **kwargs: Any) -> Any:
        obs, info = super().reset(**kwargs)
        return (self.fault(obs, 1.0)[0], info) if self.at == 0 and callable(self.fault) else (obs, info)

    def step(self, action: Any) -> Any:
        obs, reward, *ends = super().step(action)
        if self.count == self.at:
            obs, reward = self.fault(obs, reward)
        return obs, reward, *ends


def leave(*args: Any) -> Any:
    raise SystemExit(3)


def divide(*args: Any) -> Any:
    return 1 / 0, 0.0


FAULTS = {
    "exit": (leave, Cause.ENVIRONMENT),
    "exception": (divide, Cause.ENVIRONMENT),
    "nothing": (lambda obs, reward: (obs, None), Cause.REWARD),
    "list": (lambda obs, reward: (obs, [reward]), Cause.REWARD),
    "pair": (lambda obs, reward: (obs, np.array([reward, 1.0])), Cause.REWARD),
    "text": (lambda obs, reward: (obs, "1.0"), Cause.REWARD),
    "huge": (lambda obs, reward: (obs, 10**400), Cause.REWARD),
    "nan": (lambda obs, reward: (obs * np.nan, reward), Cause.OBSERVATION),
    "infinite": (lambda obs, reward: (obs - [0.0, np.inf], reward), Cause.OBSERVATION),
    "shape": (lambda obs, reward: (obs[:1], reward), Cause.OBSERVATION),
    "scalar": (lambda obs, reward: (0.0, reward), Cause.OBSERVATION),
    "state": (lambda obs, reward: ("state", reward), Cause.OBSERVATION),
}

RETURNED = [
    lambda returned: (*returned[:-1], None),
    lambda returned: (*returned[:-1], [{}]),
    lambda returned: returned[:-1],
    lambda returned: None,
]


class Odd(CountEnv):
    """Returns something else than Gymnasium's tuple from its second reset or the fifth of its steps.

    Args:
        change: Makes it from what is right.
        call: ``reset`` or ``step``.
    """

    def __init__(self, change: Callable[[Any], Any], call: str) -> None:
        super().__init__()
        self.change, self.call, self.steps = change, call, 0

    def reset(self, **kwargs: Any) -> Any:
        returned = super().reset(**kwargs)
        return self.change(returned) if self.call == "reset" and self.episode else returned

    def step(self, action: Any) -> Any:
        self.steps += 1
        returned = super().step(action)
        return self.change(returned) if self.call == "step" and self.steps == 5 else returned


@pytest.mark.parametrize("call", ["reset", "step"])
@pytest.mark.parametrize("change", RETURNED)
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_what_is_no_tuple_of_gymnasiums_is_a_fault(mode: str, change: Callable[[Any], Any], call: str) -> None:
    register_env("odd", lambda config: Odd(change, call) if config.vector_index == 1 else CountEnv())
    envs = make_envs(ppo_config("odd", envs=2).env_runners(gym_env_vectorize_mode=mode))
    with pytest.raises(GuestError) as caught:
        make_collector(envs).collect(40)
    envs.close()
    assert caught.value.cause is Cause.ENVIRONMENT
    assert caught.value.call.startswith(call)
    assert caught.value.call.endswith("of copy 2")
    assert "info, a dict" in caught.value.allowed


OBSERVATIONS = [
    (gym.spaces.Discrete(5), 2, 5),
    (gym.spaces.Discrete(5), 2, -1),
    (gym.spaces.MultiDiscrete([3, 3]), [1, 1], [3, 1]),
    (gym.spaces.MultiDiscrete([3, 3]), [1, 1], [0, -1]),
    (gym.spaces.Dict(a=gym.spaces.Discrete(3, start=1)), {"a": 1}, {"a": 0}),
    (gym.spaces.Tuple([gym.spaces.Discrete(3), gym.spaces.MultiDiscrete([2])]), (1, [1]), (1, [2])),
    (gym.spaces.Dict(a=gym.spaces.Discrete(3)), {"a": 1}, {"b": 1}),
    (gym.spaces.Dict(a=gym.spaces.Box(0, 1, (2,))), {"a": [0.0, 1.0]}, {"a": None}),
]


class Places(gym.Env[Any, Any]):
    """Shows the second observation from its third step on, and ends no episode."""

    action_space = gym.spaces.Discrete(2)

    def __init__(self, space: Any, right: Any, wrong: Any) -> None:
        self.observation_space, self.seen, self.wrong, self.steps = space, right, wrong, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.seen, {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self.wrong if self.steps >= 3 else self.seen, 1.0, False, False, {}


@pytest.mark.parametrize(("space", "right", "wrong"), OBSERVATIONS)
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_an_observation_outside_its_space_is_named(mode: str, space: Any, right: Any, wrong: Any) -> None:
    register_env("places", lambda config: RowObservation(Places(space, right, wrong), make_layout(space)))
    envs = make_envs(ppo_config("places", envs=2).env_runners(gym_env_vectorize_mode=mode))
    with pytest.raises(GuestError) as caught:
        make_collector(envs).collect(40)
    envs.close()
    assert caught.value.cause is Cause.OBSERVATION
    assert caught.value.call.startswith("step 3 of ")
    assert "step 3" in caught.value.what


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_number_beyond_float32_is_the_environments(mode: str) -> None:
    space, wrong = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64), np.array([0.5, -1e39])
    register_env("places", lambda config: Places(space, np.full(2, 3e38), wrong))
    envs = make_envs(ppo_config("places", envs=2).env_runners(gym_env_vectorize_mode=mode))
    with pytest.raises(GuestError, match=r"observation\[1\] is -1e\+39 by step 3") as caught:
        make_collector(envs).collect(40)
    envs.close()
    assert caught.value.cause is Cause.OBSERVATION


CALLS = {2: "step 2 of copy 2", 0: "reset of copy 2", -1: "make of copy 2"}
CASES = [*((2, fault) for fault in FAULTS), (0, "exit"), (0, "nan"), (0, "shape"), (-1, "exit"), (-1, "exception")]


@pytest.mark.parametrize(("at", "fault"), CASES)
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_fault_names_its_cause_and_its_call(mode: str, fault: str, at: int) -> None:
    act, cause = FAULTS[fault]
    register_env("guest", lambda config: Guest(act, at) if config.vector_index == 1 else CountEnv())
    envs: Any = None

    def sample() -> None:
        nonlocal envs
        envs = make_envs(ppo_config("guest", envs=2).env_runners(gym_env_vectorize_mode=mode))
        make_collector(envs).collect(20)

    with pytest.raises(GuestError) as caught:
        sample()
    if envs is not None:
        envs.close()
    assert caught.value.cause is cause
    assert caught.value.call.startswith(CALLS[at])
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_unusual_but_right_numbers_are_taken(mode: str) -> None:
    register_env("guest", lambda config: Guest(lambda obs, reward: (obs.tolist(), np.array([reward])), 2))
    envs = make_envs(ppo_config("guest", envs=2).env_runners(gym_env_vectorize_mode=mode))
    rollout = make_collector(envs).collect(20)
    envs.close()
    assert {episode[0] for episode in rollout.episodes} == {6.0}


def test_a_failed_build_closes_the_copies_it_made() -> None:
    closed: list[int] = []

    class Closing(CountEnv):
        def close(self) -> None:
            closed.append(1)

    def make(index: int) -> Any:
        return Closing() if index < 2 else divide()

    with pytest.raises(GuestError):
        SyncEnvs(make, 3)
    assert len(closed) == 2


def test_copies_that_are_too_many_are_closed_and_counted() -> None:
    few_copies.forget()
    config = ppo_config("FewCopies-v0", envs=4).environment(env_config={"most": 2})
    with pytest.raises(GuestError) as refused:
        make_envs(config)
    assert refused.value.fix.startswith("algo.env_runners.num_envs_per_env_runner=2, or ")
    assert "3 of 4" in refused.value.call
    assert not few_copies.OPEN


def test_copies_in_other_processes_are_not_looked_at(tmp_path: Path) -> None:
    """Gymnasium would make one more, in the process that steps them."""
    spec = EnvSpec("FewCopies-v0", {"log": str(tmp_path / "log")}, ({"entry_point": "FlattenObservation"},))
    few_copies.forget()
    facts = check_env(spec)
    config = ppo_config(register_for_rllib(spec, facts), envs=2).env_runners(gym_env_vectorize_mode="async")
    (tmp_path / "log").unlink()
    envs = make_envs(config)
    envs.reset([1, 2])
    envs.close()
    started = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    assert [number for _, number in started] == ["1", "1"]
    assert str(os.getpid()) not in {pid for pid, _ in started}


class StrictEnv(CountEnv):
    """Takes nothing but Python ints, and pays an array, or at its third step what a test says."""

    def __init__(self, third: Any = None) -> None:
        super().__init__(length=5)
        self.third = third

    def step(self, action: Any) -> Any:
        assert type(action) is int
        obs, reward, *rest = super().step(action)
        return obs, self.third if reward == 3 and self.third is not False else np.array([reward]), *rest


def create_strict(config: Any) -> StrictEnv:
    return StrictEnv(False)


def create_silent(config: Any) -> StrictEnv:
    return StrictEnv(None)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_copies_get_python_ints_and_may_pay_arrays(mode: str) -> None:
    register_env("strict", create_strict)
    envs = make_envs(ppo_config("strict", envs=2).env_runners(gym_env_vectorize_mode=mode))
    rollout = make_collector(envs).collect(10)
    assert {episode.total for episode in rollout.episodes} == {15.0}
    envs.close()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_late_reward_of_another_form_is_named(mode: str) -> None:
    register_env("silent", create_silent)
    envs = make_envs(ppo_config("silent", envs=2).env_runners(gym_env_vectorize_mode=mode))
    with pytest.raises(RewardError, match="reward is None") as refused:
        make_collector(envs).collect(10)
    assert "return float(reward)" in refused.value.fix
    envs.close()


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("is_stock", [False, True])
def test_copies_have_numbers_and_places_of_their_own(mode, is_stock, tmp_path, monkeypatch):
    """Of two vector environments that live side by side."""
    monkeypatch.setenv("RLTUNE_COPIES", str(tmp_path))
    kwargs = {"log": str(tmp_path / "log"), "env_config": {"length": 8}}
    spec = EnvSpec("LivingCopies-v0", kwargs, per_copy={"number": "number", "workdir": "folder"})
    config = ppo_config(envs=3).environment(register_for_rllib(spec, _facts_of(mode)))
    config.env_runners(gym_env_vectorize_mode=mode)
    both = [_make_stock(config) if is_stock else make_envs(config) for _ in range(2)]
    copies = [getattr(envs, "env", envs) for envs in both]
    numbers = [number for envs in copies for number in envs.get_attr("number")]
    assert sorted(numbers) == [0, 1, 2, 3, 4, 5]
    assert [place for envs in copies for place in envs.get_attr("place")] == [(0, 0), (0, 1), (0, 2)] * 2
    for envs in both:
        envs.close()
    assert living_copies.count_most_alive(tmp_path / "log") == 6
    assert sorted(path.name for path in tmp_path.iterdir()) == ["locks", "log"]


def _make_stock(config: Any) -> Any:
    from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner

    return SingleAgentEnvRunner(config=config, worker_index=0, num_workers=0).env


def _facts_of(mode: str) -> Any:
    kind = living_copies.LivingCopies
    return EnvFacts(kind.observation_space, kind.action_space) if mode == "async" else None
