"""Every seed's episode counts once, and what was seen is summed up honestly."""

from __future__ import annotations

import json
import math
import random
import time

import few_copies
import gymnasium
import numpy as np
import pytest
import torch
from failing import Failing
from informing import METRICS

from rltune.envs.facts import describe_space
from rltune.errors import Cause, ConfigError, GuestError, PolicyError
from rltune.policies.evaluation import Copies, _digest_observation, environment_of, evaluate, evaluate_checkpoint
from rltune.policies.policy import load_policy
from rltune.policies.result import Evaluation
from rltune.records import EVALUATION_STEPS
from tests.policies.bundles import BOX, DISCRETE, write_linear


class Countdown(gymnasium.Env):
    """An episode's length is drawn from its seed, 1 to 50 steps; every step pays 1."""

    observation_space = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 1 + seed % 50
        return np.zeros(4, np.float32), {}

    def step(self, action):
        self.left -= 1
        return np.zeros(4, np.float32), 1.0, self.left == 0, False, {}


gymnasium.register("Countdown-v0", Countdown)


@pytest.mark.parametrize("episodes", [1, 7, 100])
def test_every_seeds_episode_counts_once_however_long(checkpoint, episodes, monkeypatch):
    monkeypatch.setattr("rltune.policies.evaluation.PROGRESS_S", math.inf)
    done = []
    result = evaluate(checkpoint, episodes, seed=3, env="Countdown-v0", progress=lambda n, of: done.append((n, of)))
    expected = [1 + (3 + i) % 50 for i in range(episodes)]
    assert list(result.lengths) == expected
    assert list(result.returns) == expected
    assert done == [(i + 1, episodes) for i in range(episodes)]


def test_a_sweeps_own_checkpoint_tells_of_its_episodes_too(checkpoint, monkeypatch):
    monkeypatch.setattr("rltune.policies.evaluation.PROGRESS_S", math.inf)
    done = []
    evaluate_checkpoint(checkpoint, 3, 0, progress=lambda n, of: done.append((n, of)))
    assert done == [(1, 3), (2, 3), (3, 3)]


def test_long_episodes_are_no_silence(checkpoint, monkeypatch):
    """Whoever waits for a sign of progress would end an evaluation of slow environments before its first episode."""
    monkeypatch.setattr("rltune.policies.evaluation.PROGRESS_S", 0.0)
    done = []
    evaluate(checkpoint, 1, seed=29, env="Countdown-v0", progress=lambda n, of: done.append(n))
    assert done[:29] == [0] * 29, "of 30 steps"
    assert done[-1] == 1


def test_an_evaluation_equals_playing_episodes_one_by_one(checkpoint):
    policy = load_policy(checkpoint)
    env, returns = policy.env(), []
    for i in range(5):
        obs, _ = env.reset(seed=11 + i)
        total, over = 0.0, False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(policy.act(obs))
            total, over = total + reward, terminated or truncated
        returns.append(total)
    assert list(evaluate(policy, 5, seed=11).returns) == returns


def test_a_seed_gives_the_same_evaluation_another_does_not(checkpoint):
    policy = load_policy(checkpoint)
    for deterministic in (True, False):
        first = evaluate(policy, 20, seed=1, deterministic=deterministic)
        assert evaluate(policy, 20, seed=1, deterministic=deterministic) == first
        assert evaluate(policy, 20, seed=2, deterministic=deterministic) != first


def test_a_hundred_episodes_take_a_few_seconds_of_cpu(checkpoint):
    began = time.process_time()
    result = evaluate(checkpoint, episodes=100)
    assert time.process_time() - began < 10
    assert len(result.returns) == 100
    assert result.low < result.mean < result.high <= result.max
    assert json.loads(json.dumps(result.to_dict()))["mean"] == result.mean


@pytest.mark.parametrize(
    ("arguments", "what"),
    [({"episodes": 0}, "episodes=0"), ({"env": "Pendulum-v1"}, r"Box\(3,\)")],
)
def test_an_evaluation_that_cannot_be_is_refused(checkpoint, arguments, what):
    with pytest.raises(PolicyError, match=what):
        evaluate(checkpoint, **arguments)


class Endless(gymnasium.Env):
    """No episode ends by itself; every step pays ``pay``."""

    observation_space = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, pay=1.0):
        self.pay = pay

    def reset(self, *, seed=None, options=None):
        return np.zeros(4, np.float32), {}

    def step(self, action):
        return np.zeros(4, np.float32), self.pay, False, False, {}


class Global(Countdown):
    """Rewards are drawn from the global generators, which the environment itself does not seed."""

    def step(self, action):
        obs, _, *rest = super().step(action)
        return obs, random.random() + np.random.random() + torch.rand(1).item(), *rest


gymnasium.register("Global-v0", Global)


def test_global_generators_repeat_and_are_restored(tmp_path):
    policy = load_policy(write_linear(tmp_path, BOX, {"id": "Global-v0"}))
    first = evaluate(policy, 5, seed=3)
    before = random.getstate(), torch.get_rng_state()
    assert evaluate(policy, 5, seed=3) == first != evaluate(policy, 5, seed=4)
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])


class Doubled(gymnasium.Wrapper):
    """Rewards count double."""

    def step(self, action):
        obs, reward, *rest = self.env.step(action)
        return obs, 2 * reward, *rest


class Noisy(gymnasium.Wrapper):
    """Observations follow the seed."""

    def reset(self, *, seed=None, options=None):
        obs, info = self.env.reset(seed=seed)
        return obs + np.float32(seed % 7), info


gymnasium.register("Endless-v0", Endless)
DOUBLED = {"entry_point": f"{__name__}:Doubled"}


def test_an_episode_that_never_ends_is_cut_and_named(tmp_path):
    policy = load_policy(write_linear(tmp_path, BOX, {"id": "Endless-v0", "evaluation_steps": 50}))
    result = evaluate(policy, 3, seed=7)
    assert (result.lengths, result.returns, result.cut) == ((50,), (50.0,), (7,)), "all of them are equal"
    assert all(word in result.explain_cut() for word in ("+env.kwargs.max_episode_steps", "TimeLimit", "seeds 7"))
    noisy = evaluate(policy, 3, seed=7, env={"wrappers": [{"entry_point": f"{__name__}:Noisy"}]})
    assert (noisy.lengths, noisy.cut) == ((50,) * 3, (7, 8, 9))
    for limit in (10, 80):
        limited = evaluate(policy, 3, env={"kwargs": {"max_episode_steps": limit}})
        assert (limited.lengths, limited.cut, limited.explain_cut()) == ((limit,), (), "")


def test_the_limit_can_be_typed_and_has_a_default(tmp_path):
    policy = load_policy(write_linear(tmp_path, BOX, {"id": "Endless-v0"}))
    assert evaluate(policy, 1).lengths == (EVALUATION_STEPS,)
    assert evaluate(policy, 1, env={"evaluation_steps": 7}).lengths == (7,)
    for wrong in (0, "seven"):
        with pytest.raises(PolicyError, match=r"env\.evaluation_steps"):
            evaluate(policy, 1, env={"evaluation_steps": wrong})


@pytest.mark.parametrize(
    ("objective", "key"),
    [({"kind": "info", "key": "is_success"}, "is_success"), ({"kind": "judged:reads_a_missing_key"}, "profit")],
)
def test_a_cut_episode_without_a_score_names_the_limit(tmp_path, objective, key):
    spec = {"id": "Endless-v0", "objective": {**objective, "direction": "max"}, "evaluation_steps": 5}
    policy = load_policy(write_linear(tmp_path, BOX, spec), trust=True)
    with pytest.raises(PolicyError, match="max_episode_steps") as refused:
        evaluate(policy, 1)
    assert key in refused.value.what


@pytest.mark.fast
def test_per_copy_is_added_to_that_of_the_training(tmp_path):
    trained = {"port": ["port", 5005], "workdir": "folder", "pay": "number"}
    policy = load_policy(write_linear(tmp_path, BOX, {"id": "Endless-v0", "kwargs": {"size": 3}, "per_copy": trained}))
    env = {"kwargs": {"pay": 2}, "per_copy": {"port": ["port", 6005], "size": "number"}}
    spec = environment_of(policy, env)
    assert spec["per_copy"] == {"port": ["port", 6005], "workdir": "folder", "size": "number"}
    assert spec["kwargs"] == {"pay": 2}
    assert environment_of(policy, {"id": "Other-v0", "per_copy": {"a": "number"}})["per_copy"] == {"a": "number"}


def test_changes_of_the_environment_leave_the_rest_of_it(tmp_path):
    spec = {"id": "Endless-v0", "kwargs": {"max_episode_steps": 5, "pay": 1.0}, "wrappers": [DOUBLED]}
    policy = load_policy(write_linear(tmp_path, BOX, spec), trust=True)

    def play(env):
        result = evaluate(policy, 1, env=env)
        return result.returns[0], result.lengths[0]

    assert play(None) == play("Endless-v0") == (10.0, 5)
    assert play({"kwargs": {"pay": 3.0}}) == play({"id": "Endless-v0", "kwargs": {"pay": 3.0}}) == (30.0, 5)
    assert play({"wrappers": []}) == (5.0, 5)
    assert play("Countdown-v0") == (2.0, 1), "another environment has arguments of its own"
    with pytest.raises(PolicyError, match=r"env\.nonsense=3"):
        play({"nonsense": 3})


class Surveyed(Countdown):
    """Reads a map when it is made."""

    def __init__(self, file):
        with open(file) as map_file:
            self.map = map_file.read()


gymnasium.register("Surveyed-v0", Surveyed)


def test_a_file_that_is_missing_here_names_its_argument(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "map.txt").touch()
    policy = load_policy(write_linear(tmp_path / "p", BOX, {"id": "Surveyed-v0", "kwargs": {"file": "map.txt"}}))
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(ConfigError) as refused:
        evaluate(policy, 1)
    assert (refused.value.key, refused.value.value) == ("env.kwargs.file", "map.txt")
    assert str(tmp_path / "elsewhere") in refused.value.what
    assert evaluate(policy, 1, env={"kwargs": {"file": str(tmp_path / "map.txt")}}).lengths == (1,)


def load_few(folder, most=1, **info):
    """A policy for an environment of which so many copies may be open."""
    about = {"env": {"id": "FewCopies-v0", "kwargs": {"most": most}}, **info}
    return load_policy(write_linear(folder, describe_space(few_copies.FewCopies.observation_space), info=about))


def test_episodes_do_not_depend_on_the_number_of_copies(tmp_path):
    policy = load_policy(write_linear(tmp_path, BOX, {"id": "Countdown-v0"}))
    results = [evaluate(policy, 20, seed=3, deterministic=False, copies=copies) for copies in (1, 3, 20, None)]
    assert [result.lengths for result in results] == [results[0].lengths] * 4
    assert [result.returns for result in results] == [results[0].returns] * 4


@pytest.mark.parametrize(("trained", "copies", "opened"), [(1, None, 1), (2, None, 2), (4, 3, 3), (None, None, 5)])
def test_as_many_copies_play_as_the_training_had(tmp_path, trained, copies, opened):
    few_copies.forget()
    policy = load_few(tmp_path, opened, **({"copies": trained} if trained else {}))
    assert len(evaluate(policy, 5, copies=copies).returns) == 5
    assert list(range(1, opened + 1)) == few_copies.STARTED, "the first that plays is the one that is looked at"
    assert not few_copies.OPEN


def test_several_evaluations_share_their_copies(tmp_path):
    few_copies.forget()
    policy = load_few(tmp_path)
    with Copies(1) as copies:
        shared = [evaluate(policy, 4, seed, copies=copies) for seed in (0, 9)]
    assert few_copies.STARTED == [1]
    assert not few_copies.OPEN
    assert shared == [evaluate(policy, 4, seed, copies=1) for seed in (0, 9)]


def test_copies_are_closed_if_one_cannot_be_made(tmp_path):
    few_copies.forget()
    policy = load_few(tmp_path, 2)
    with pytest.raises(GuestError):
        evaluate(policy, 5, copies=3)
    assert not few_copies.OPEN
    with pytest.raises(PolicyError) as refused:
        evaluate(policy, 5, copies=0)
    assert refused.value.key == "copies"


class ByType(Countdown):
    """Looks actions up by their type, and pays arrays."""

    def step(self, action):
        assert type(action) is int
        obs, reward, *rest = super().step(action)
        return obs, np.array([reward]), *rest


gymnasium.register("ByType-v0", ByType)


class Late(Countdown):
    """Returns something else than before in its third step, or in its second reset."""

    begun = 0

    def __init__(self, fault):
        self.fault = fault

    def reset(self, **kwargs):
        obs, info = super().reset(**kwargs)
        self.begun, self.steps = self.begun + 1, 0
        return obs, None if self.fault == "reset" and self.begun == 2 else info

    def step(self, action):
        self.steps += 1
        obs, reward, over, truncated, info = super().step(action)
        if self.steps == 3:
            obs = obs * np.nan if self.fault == "nan" else obs
            reward = None if self.fault == "reward" else reward
            info = None if self.fault == "step" else info
        return obs, reward, over, truncated, info


gymnasium.register("Late-v0", Late)
LATE = {
    "step": (Cause.ENVIRONMENT, "step 3 of copy 1"),
    "reset": (Cause.ENVIRONMENT, "reset of copy 1"),
    "nan": (Cause.OBSERVATION, "step 3 of copy 1"),
    "reward": (Cause.REWARD, "step 3 of copy 1"),
}


@pytest.mark.parametrize("fault", LATE)
def test_a_late_fault_in_an_evaluation_names_its_call(checkpoint, fault):
    with pytest.raises(GuestError) as caught:
        evaluate(checkpoint, 3, seed=9, env={"id": "Late-v0", "kwargs": {"fault": fault}}, copies=1)
    assert (caught.value.cause, caught.value.call) == LATE[fault]


class States(Countdown):
    """Leaves its five states in the third step."""

    observation_space = gymnasium.spaces.Discrete(5)

    def reset(self, **kwargs):
        super().reset(**kwargs)
        self.state = 2
        return self.state, {}

    def step(self, action):
        self.state += 1
        return self.state, *super().step(action)[1:]


gymnasium.register("States-v0", States)


def test_a_state_that_an_evaluation_meets_must_exist(tmp_path):
    policy = load_policy(write_linear(tmp_path, DISCRETE), trust=True)
    with pytest.raises(GuestError) as caught:
        evaluate(policy, 3, seed=9, env="States-v0", copies=1)
    assert (caught.value.cause, caught.value.call) == (Cause.OBSERVATION, "step 3 of copy 1")
    assert "5" in caught.value.what


def test_an_evaluation_sends_and_takes_what_training_does(checkpoint):
    assert evaluate(checkpoint, 3, seed=3, env="ByType-v0").returns == (4.0, 5.0, 6.0)


def test_an_episode_in_which_the_copy_fails_is_played_again(tmp_path):
    """From its seed, in a copy that was made again, and never counted half."""
    Failing.made.clear()
    spec = {"id": "failing:Failing-v0", "kwargs": {"length": 5, "fail_at": 8}, "restarts": 3}
    policy = load_policy(write_linear(tmp_path, describe_space(Failing.observation_space), spec), trust=True)
    result = evaluate(policy, 4, seed=3, copies=1)
    assert (result.returns, result.lengths, result.cut) == ((15.0,) * 4, (5,) * 4, ())
    assert [copy.seeds for copy in Failing.made] == [[3, 4], [4, 5], [5, 6], [6]]
    assert all(copy.is_closed for copy in Failing.made)
    with pytest.raises((ConnectionResetError, GuestError)):
        evaluate(policy, 5, seed=3, copies=1)


class Prices(gymnasium.Env):
    """Data that are the same in each episode, unless ``seen`` or ``paid`` follow the seed."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, seen=0, paid=0, length=5):
        self.seen, self.paid, self.length = seen, paid, length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.start = 0, seed
        return self._observe(), {}

    def _observe(self):
        late = self.seen and self.t == self.length - 1 and self.start % self.seen == 0
        return np.full(4, self.t + 100 * bool(late), np.float32)

    def step(self, action):
        self.t += 1
        noise = self.start % self.paid if self.paid else 0
        return self._observe(), 1.0 + noise, self.t >= self.length, False, {}


gymnasium.register("Prices-v0", Prices)


@pytest.mark.parametrize(
    ("kwargs", "num_played"),
    [({}, 1), ({"seen": 2}, 20), ({"seen": 20}, 20), ({"paid": 20}, 20), ({"length": 1}, 1)],
)
@pytest.mark.parametrize("copies", [1, 8, None])
def test_equal_episodes_are_one_without_an_interval(tmp_path, kwargs, num_played, copies):
    """Also if only one of 20 differs, at its last step alone; two that are equal may be so by chance."""
    policy = load_policy(write_linear(tmp_path, BOX, {"id": "Prices-v0", "kwargs": kwargs}))
    result = evaluate(policy, 20, seed=1, copies=copies)
    assert (len(result.returns), result.are_equal) == (num_played, num_played == 1)
    assert (result.low is None) == (num_played == 1)


def test_equal_observations_of_any_space_have_equal_digests():
    nested = {"a": np.arange(3), "b": (1, {"text": "x"}), "c": [np.float32(2)]}
    again = {"a": np.arange(3), "b": (1, {"text": "x"}), "c": [np.float32(2)]}
    assert _digest_observation(nested) == _digest_observation(again)
    for other in ({**again, "b": (1, {"text": "y"})}, {**again, "a": np.arange(1, 4)}, {**again, "c": []}):
        assert _digest_observation(nested) != _digest_observation(other)


THREE = {"type": "Box", "shape": [3], "dtype": "float32", "low": -1.0, "high": 1.0}


def write_informing(folder, **spec):
    return load_policy(write_linear(folder, THREE, {"id": "informing:Informing-v0", **spec}), trust=True)


@pytest.mark.fast
def test_an_evaluation_has_the_metrics_of_each_episode(tmp_path):
    policy = write_informing(tmp_path, metrics=METRICS)
    for copies in (1, 4):
        result = evaluate(policy, 6, copies=copies)
        assert result.metrics["episode/energy"] == (10.0,) * 6
        assert result.metrics["episode/rewards/forward"] == (2.5,) * 6
    alone = evaluate(policy, 6, copies=1)
    assert alone.metrics["episode/rare"] == (None, None, 3.0, None, None, 6.0)
    assert alone.measure()["episode/rare"] == {"mean": 4.5, "low": None, "high": None, "episodes": 2}
    assert alone.measure()["episode/energy"]["mean"] == 10.0
    assert Evaluation.from_dict(json.loads(json.dumps(alone.to_dict()))) == alone


@pytest.mark.fast
def test_an_episode_without_a_score_is_left_out(tmp_path):
    objective = {"kind": "info", "key": "rare", "direction": "max"}
    result = evaluate(write_informing(tmp_path, objective=objective), 6, copies=1)
    assert (result.mean, result.scores, result.unscored) == (4.5, [3.0, 6.0], (0, 1, 3, 4))
    result = evaluate(write_informing(tmp_path, objective=objective | {"missing": 0.0}), 6, copies=1)
    assert (result.mean, result.unscored) == (1.5, ())
    with pytest.raises(PolicyError) as refused:
        evaluate(write_informing(tmp_path, objective=objective), 2, copies=1)
    assert (refused.value.key, "objective.missing=0" in refused.value.fix) == ("objective.key", True)


@pytest.mark.fast
def test_a_cut_episode_has_the_metrics_of_its_steps(tmp_path):
    policy = write_informing(tmp_path, metrics={"energy": "sum"}, evaluation_steps=3, kwargs={"length": 99})
    result = evaluate(policy, 2, copies=1)
    assert (result.metrics["episode/energy"], len(result.cut)) == ((6.0, 6.0), 2)


@pytest.mark.fast
def test_an_objective_may_be_a_sum(tmp_path):
    objective = {"kind": "info", "key": "energy", "direction": "min", "reduce": "sum"}
    assert evaluate(write_informing(tmp_path, objective=objective), 3).mean == 10.0
