"""What the first steps of an environment tell: what is refused, and what becomes a note."""

from __future__ import annotations

import decimal
import math
import re
import sys
import time
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces as S

from rltune.envs import first_steps
from rltune.envs.spec import EnvSpec
from rltune.envs.validation import check_env
from rltune.errors import Cause, ConfigError, GuestError, RltuneError
from tests.envs.walk import VECTOR, Walk, check, refuse

FREE = np.random.default_rng()  # Numbers that no reset seeds.


# -- Seeds ----------------------------------------------------------------------------------------------------------


class FreeStart(Walk):
    def reset(self, **kwargs: Any) -> Any:
        super().reset(**kwargs)
        self.x = FREE.uniform(-0.5, 0.5)
        return self.look(), {}


class FreeLeaf(Walk):
    observation_space = S.Dict(place=VECTOR, parts=S.Tuple((S.Discrete(1000), S.Box(0, 255, (2, 2, 3), np.uint8))))

    def look(self) -> Any:
        parts = int(self.x * 0), FREE.integers(0, 256, (2, 2, 3)).astype(np.uint8)
        return {"place": super().look(), "parts": parts}


class FreeFlags(Walk):
    observation_space = S.MultiBinary(64)

    def look(self) -> Any:
        return FREE.random(64) < 0.5


class FreeMove(Walk):
    def take(self, action: Any) -> None:
        self.x = float(np.clip(self.x + FREE.normal(0, 0.1), -1, 1))


class FreeReward(Walk):
    def reward(self) -> float:
        return float(FREE.normal())


class FreeEnd(Walk):
    """Ends its first episode alone after three steps."""

    taken = 0

    def step(self, action: Any) -> Any:
        self.taken += 1
        observation, reward, *_, info = super().step(action)
        return observation, reward, self.taken == 3, False, info


class FreeBuffer(FreeStart):
    """Writes all observations into one array."""

    buffer = np.zeros(2, np.float32)

    def look(self) -> Any:
        self.buffer[:] = super().look()
        return self.buffer


class FreeRules(Walk):
    """Permits other actions in each episode, and raises at the others."""

    episodes = 0

    def reset(self, **kwargs: Any) -> Any:
        self.episodes += 1
        return super().reset(**kwargs)

    def tell(self) -> dict[str, Any]:
        return {"action_mask": np.arange(3) == self.episodes % 3}

    def take(self, action: Any) -> None:
        assert action == self.episodes % 3


def test_other_rules_after_the_same_seed_are_no_refusal():
    notes = check(FreeRules).notes
    assert sum("seed" in note for note in notes) == 1


@pytest.mark.parametrize("made", [FreeStart, FreeBuffer, FreeLeaf, FreeFlags, FreeMove, FreeReward, FreeEnd])
def test_what_ignores_the_seed_gets_one_note(made):
    assert sum("seed" in note for note in check(made).notes) == 1


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "MountainCarContinuous-v0", "Acrobot-v1"])
def test_what_follows_its_seed_gets_no_note(env_id):
    facts = check_env(EnvSpec(env_id))
    assert facts is not None
    assert facts.notes == ()
    assert check().notes == ()


class Rounding(Walk):
    """A simulation whose last digits differ each time, as on a GPU."""

    def look(self) -> Any:
        return super().look() + FREE.uniform(0, 1e-7, 2).astype(np.float32)


class Blank(Walk):
    """An observation of NaN is refused, so that it is not compared."""

    observation_space = S.Box(-np.inf, np.inf, (2,), np.float32)

    def look(self) -> Any:
        return np.array([np.nan, 0.0], np.float32)


def test_rounding_is_no_ignored_seed():
    assert check(Rounding).notes == ()
    assert "nan" in refuse(Blank).what


class Slow(FreeStart):
    resets = 0

    def reset(self, **kwargs: Any) -> Any:
        Slow.resets += 1
        return super().reset(**kwargs)


def test_a_slow_simulator_is_reset_once(monkeypatch):
    monkeypatch.setattr(first_steps, "REPEAT_S", 0.0)
    assert check(Slow).notes == ()
    assert Slow.resets == 1


class Long(Walk):
    """Ends no episode."""

    def step(self, action: Any) -> Any:
        obs, reward, _, _, info = super().step(action)
        return obs, reward, False, False, info


@pytest.mark.parametrize(
    ("name", "bound", "steps", "objective"),
    [
        ("EPISODE_STEPS", 50, 50, {"kind": "info", "key": "won"}),
        ("MEASURED_S", 0.0, 10, {"kind": "info", "key": "won"}),
        ("EPISODE_S", 0.0, 10, {}),
    ],
)
def test_the_random_episode_is_bounded_in_steps_and_time(name, bound, steps, objective, monkeypatch):
    monkeypatch.setattr(first_steps, name, bound)
    facts = check(Long, objective=objective)
    assert (facts.episode_steps, facts.episode_is_over) == (steps, False)


def test_what_is_searched_shares_the_time_of_one_random_episode(monkeypatch):
    """In a slow simulator; each value of a choice is checked."""
    monkeypatch.setattr(first_steps, "EPISODE_S", 0.8)

    def step(call: str) -> tuple[float, bool, dict[str, Any]]:
        time.sleep(0.01)
        return 0.0, False, {}

    whole, part, least = (first_steps.play_episode(EnvSpec(""), step, share).steps for share in (1, 1 / 4, 0))
    assert 10 == least < part < whole


class Breaking(Walk):
    """Returns something else from its 15th step on."""

    def look(self) -> Any:
        return super().look() if self.at < 15 else self.late()

    def late(self) -> Any:
        return super().look()


def fail() -> None:
    raise KeyError("late")


@pytest.mark.parametrize(
    ("parts", "what"),
    [
        ({"reward": lambda: None}, "step 15"),
        ({"reward": lambda: math.nan}, "step 15"),
        ({"late": lambda: np.zeros(3)}, "step 15"),
        ({"late": lambda: np.array([math.inf, 0.0])}, "step 15"),
        ({"late": fail}, "KeyError"),
    ],
)
def test_what_is_wrong_late_in_an_episode_is_refused(parts, what):
    late = Breaking(**{name: value for name, value in parts.items() if name == "late"})
    if reward := parts.get("reward"):
        late.reward = lambda: reward() if late.at >= 15 else 1.0
    with pytest.raises(RltuneError) as refused:
        check(lambda: late)
    assert refused.value.key == "env.id"
    assert what in refused.value.what


def test_a_seldom_failure_is_noted_where_copies_are_made_again():
    with pytest.raises(GuestError) as refused:
        check(lambda: Breaking(late=fail))
    (restarts,) = re.findall(r"env\.restarts=(\d+)", refused.value.fix)
    (note,) = check(lambda: Breaking(late=fail), restarts=int(restarts)).notes
    assert "step 15" in note
    assert "KeyError" in note


def test_the_length_of_a_random_episode_is_known():
    facts = check()
    assert (facts.episode_steps, facts.episode_is_over) == (20, True)


# -- Bounds -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("space", "observation", "is_noted"),
    [
        (VECTOR, np.array([1.002, 0.0], np.float32), True),
        (VECTOR, np.array([0.0, -1.15]), True),
        (VECTOR, np.array([1.0, 1.0000001]), False),
        (VECTOR, [0.5, 1], False),
        (S.Box(0, 1000, (1,)), np.array([1080.0]), True),
        (S.Box(0, np.inf, (1,)), np.array([-0.05]), True),
        (S.Dict(a=VECTOR, b=S.Box(0, 1, (1,))), {"a": np.zeros(2), "b": 1.05}, True),
        (S.Dict(a=VECTOR), {"a": np.zeros(2), "more": None}, False),
        (S.Tuple((VECTOR, S.MultiBinary(2))), (np.zeros(2), [1.0, 0.0]), False),
        (S.Box(0, 255, (2,), np.uint8), np.array([3.0, 255.0]), False),
        (VECTOR, np.array([255.0, 0.0], np.float32), True),
        (S.Box(0, 1, (2,), np.uint8), np.array([0, 255], np.uint8), True),
        (S.Dict(a=S.Dict(b=VECTOR)), {"a": {"b": np.array([0.0, 9.0])}}, True),
    ],
)
def test_numbers_of_a_box_that_leave_their_bounds_are_noted(space, observation, is_noted):
    notes = check(lambda: Walk(observation_space=space, look=lambda: observation)).notes
    notes = tuple(note for note in notes if "[" in note or "bounds" in note)
    assert len(notes) == is_noted
    assert all("observation" in note for note in notes)


@pytest.mark.parametrize(
    ("space", "observation", "place"),
    [
        (S.Dict(a=VECTOR), {"b": np.zeros(2)}, "observation"),
        (S.Dict(a=VECTOR), {"a": np.zeros(3)}, "observation['a']"),
        (S.Tuple((VECTOR, VECTOR)), (np.zeros(2),), "observation"),
        (S.Tuple((VECTOR, S.Discrete(3))), (np.zeros(2), 3), "observation[1]"),
        (S.Dict(a=S.MultiDiscrete([2, 3])), {"a": [1, 3]}, "observation['a'][1]"),
        (VECTOR, np.zeros((2, 1), np.float32), "observation"),
        (VECTOR, None, "observation"),
        (VECTOR, [[0.0], [0.0, 1.0]], "observation"),
        (S.Box(0, 255, (2,), np.uint8), np.array([0.5, 1.0]), "observation"),
    ],
)
def test_observations_of_another_form_are_refused(space, observation, place):
    refusal = refuse(lambda: Walk(observation_space=space, look=lambda: observation))
    assert (refusal.key, refusal.value) == ("env.id", "Walk-v0")
    assert place in refusal.what
    assert refusal.allowed
    assert refusal.fix


# -- Rewards ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reward",
    [
        *(1, True, np.float32(1), np.array(2.0), np.array([1.0]), np.array([[1]]), decimal.Decimal("0.5")),
        *(torch.tensor([1.0]), torch.tensor(1.0), np.True_),
    ],
)
def test_a_reward_of_one_number_is_taken(reward):
    assert check(lambda: Walk(reward=lambda: reward)).notes == ()


@pytest.mark.parametrize(
    ("reward", "what", "fix"),
    [
        (None, "None", "return float(reward)"),
        ("1.0", "str", "return float(reward)"),
        ([1.0], "list of 1 number", "return float(reward)"),
        ((1.0, 2.0), "tuple of 2 numbers", "env=pettingzoo"),
        ({"left": 1.0, "right": 0.0}, "left, right", "env=pettingzoo"),
        (np.array([1.0, 2.0], np.float32), "(2,) and type float32", "SummedReward"),
        (torch.ones(2, 2), "(2, 2) and type torch.float32", "SummedReward"),
        (np.array([]), "(0,)", "return float(reward)"),
        (1j, "complex", "return float(reward)"),
        (np.array([math.nan]), "nan", "division by zero"),
        (10**400, "int", "return float(reward)"),
        (math.inf, "inf", "division by zero"),
    ],
)
def test_a_reward_that_is_no_number_is_named_with_its_step(reward, what, fix):
    refusal = refuse(lambda: Walk(reward=lambda: reward))
    assert refusal.key == "env.id"
    assert "reward" in refusal.what
    assert "step 1" in refusal.what
    assert what in refusal.what
    assert fix in refusal.fix


# -- Actions ----------------------------------------------------------------------------------------------------------


class ByType(Walk):
    def take(self, action: Any) -> None:
        assert type(action) is int


class ByForm(Walk):
    action_space = S.Box(-1.0, 1.0, (2, 3), np.float32)

    def take(self, action: Any) -> None:
        assert isinstance(action, np.ndarray)
        assert action.shape == (2, 3)


class Scaling(ByForm):
    """Works on the array that it gets."""

    def take(self, action: Any) -> None:
        super().take(action)
        action *= 0.5
        self.x = float(action[0, 0])


class Finishing(Walk):
    """Is not reset before an episode has ended, as training never does it."""

    at = 20

    def reset(self, **kwargs: Any) -> Any:
        assert self.at == 20
        return super().reset(**kwargs)


class Shadowed(Walk):
    """Keeps its seed where its space has a method."""

    def __init__(self) -> None:
        self.action_space = S.Discrete(3, start=1)
        self.observation_space = S.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        for space in (self.action_space, self.observation_space):
            space.seed = space.sample = space.contains = seed
        return super().reset(seed=seed)

    def take(self, action: Any) -> None:
        assert action in (1, 2, 3)


@pytest.mark.parametrize("made", [ByType, ByForm, Scaling, Finishing, Shadowed])
def test_what_training_does_not_need_is_not_demanded(made):
    assert check(made).notes == ()


class Once(Walk):
    """Its first episode ends at once, and it cannot be reset."""

    at = 0

    def reset(self, **kwargs: Any) -> Any:
        assert not self.at
        answer = super().reset(**kwargs)
        self.at = 19
        return answer


def test_a_reset_that_fails_after_an_episode_is_refused():
    with pytest.raises(GuestError) as refused:
        check(Once)
    assert refused.value.call == "reset"


class Exits(Walk):
    def take(self, action: Any) -> None:
        sys.exit(3)


def test_a_step_that_exits_is_named():
    with pytest.raises(GuestError) as refused:
        check(Exits)
    fault = refused.value
    assert (fault.key, fault.value, fault.call, fault.cause) == ("env.id", "Walk-v0", "step 1", Cause.ENVIRONMENT)
    assert "sys.exit(3)" in fault.what
    assert fault.place.startswith("test_first_steps.py")


# -- Masks ------------------------------------------------------------------------------------------------------------


class Masked(Walk):
    """Raises at a forbidden action. Every second choice is permitted, in turn."""

    action_space: Any = S.Discrete(4)

    @property
    def mask(self) -> Any:
        return np.array([(self.at + place) % 2 for place in range(4)], np.int8)

    def take(self, action: Any) -> None:
        self.at -= 1
        assert self.mask[action - getattr(self.action_space, "start", 0)]
        self.at += 1


class MaskedInObservation(Masked):
    observation_space = S.Dict(observations=VECTOR, action_mask=S.Box(0, 1, (4,), np.int8))

    def look(self) -> Any:
        return {"observations": super().look(), "action_mask": self.mask}


class MaskedInInfo(Masked):
    action_space = S.Discrete(4, start=2)

    def tell(self) -> dict[str, Any]:
        return {"action_mask": self.mask}


class MaskedByMethod(Masked):
    def action_masks(self) -> Any:
        return self.mask.astype(bool).tolist()


class MaskedParts(Masked):
    """The form of Stable-Baselines3: the flags of all parts after each other."""

    action_space = S.MultiDiscrete([2, 3])
    flags = np.array([0, 1, 1, 0, 0], bool)

    def action_masks(self) -> Any:
        return self.flags

    def take(self, action: Any) -> None:
        assert list(action) == [1, 0]


class MaskedTuple(MaskedParts):
    """The form of Gymnasium: the flags of each part by themselves."""

    def action_masks(self) -> Any:
        return self.flags[:2], self.flags[2:]


MASKED = [MaskedInObservation, MaskedInInfo, MaskedByMethod, MaskedParts, MaskedTuple]


@pytest.mark.parametrize("made", MASKED)
def test_only_permitted_actions_are_drawn(made):
    facts = check(made)
    assert facts.mask
    note = facts.notes[-1]
    assert "mask" in note


class Picture(Walk):
    observation_space = S.Dict(mask=S.Box(0, 1, (5, 5), np.int8))

    def look(self) -> Any:
        return {"mask": np.zeros((5, 5), np.int8)}


def test_what_is_no_mask_of_the_actions_is_none():
    assert not check(Picture).mask


class Unable(Walk):
    def action_masks(self) -> Any:
        raise RuntimeError("not in this version")


def test_a_mask_that_cannot_be_read_is_refused_until_it_is_off():
    with pytest.raises(ConfigError) as caught:
        check(Unable)
    assert caught.value.key == "env.action_mask"
    assert check(Unable, action_mask="off").mask is None


class Rules(Walk):
    action_space = S.Discrete(5)

    def legal_moves(self) -> Any:
        return [0]

    def step(self, action: Any) -> Any:
        if action not in self.legal_moves():
            raise ValueError(f"{action} is illegal")
        return super().step(action)


def test_a_refused_action_is_answered_with_the_wrapper_to_type():
    with pytest.raises(GuestError, match="is illegal") as caught:
        check(Rules)
    assert "rltune.envs.masks:LegalActions', kwargs: {key: legal_moves, lists: true}" in caught.value.fix
    with pytest.raises(GuestError, match="is illegal") as caught:
        check(Rules, action_mask="off")
    assert "LegalActions" not in caught.value.fix


class Blocked(MaskedInInfo):
    """Has no legal action after two steps, which is no end of its episode."""

    @property
    def mask(self) -> Any:
        return super().mask * (self.at < 2)


class Late(MaskedInInfo):
    def reset(self, **kwargs: Any) -> Any:
        return super().reset(**kwargs)[0], {}


@pytest.mark.parametrize(("made", "named"), [(Blocked, "step 2"), (Late, "step 1")])
def test_a_mask_that_is_not_always_there_names_the_step(made, named):
    with pytest.raises((GuestError, ConfigError), match=named):
        check(made)


# -- Who has failed ---------------------------------------------------------------------------------------------------


class Broken(Walk):
    """Raises an error of its own at a step, or in its reset."""

    def __init__(self, at: int) -> None:
        self.failing = at

    def take(self, action: Any) -> None:
        if self.at == self.failing:
            raise OSError("no answer")

    def reset(self, **kwargs: Any) -> Any:
        if self.failing == 0:
            raise OSError("no answer")
        return super().reset(**kwargs)


class Weighing(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Raises an error of its own, in its constructor or at a step."""

    def __init__(self, env: Any, weights: Any = 1.0, resets: bool = False) -> None:
        super().__init__(env)
        self.weights = weights
        if resets:
            env.reset(seed=0)

    def step(self, action: Any) -> Any:
        observation, reward, *rest = self.env.step(action)
        return observation, reward * self.weights.mean() if isinstance(self.weights, list) else reward, *rest


def refuse_wrapped(made: Any, kwargs: dict[str, Any], **arguments: Any) -> RltuneError:
    wrapper = {"entry_point": f"{__name__}:Weighing", "kwargs": arguments}
    with pytest.raises(RltuneError) as refused:
        check(made, kwargs=kwargs, wrappers=(wrapper,))
    return refused.value


@pytest.mark.parametrize(
    ("at", "arguments"),
    [(0, {}), (0, {"weights": [1, 1], "resets": True}), (1, {"weights": [1, 1]}), (12, {})],
)
def test_a_failing_environment_is_named_and_not_its_wrappers(at, arguments):
    refused = refuse_wrapped(Broken, {"at": at}, **arguments)
    assert refused.key == "env.id"
    assert "numpy.array" not in refused.fix
    assert ("env.restarts" in refused.fix) == (at == 12)


def test_a_failing_wrapper_is_named_with_its_list():
    refused = refuse_wrapped(Walk, {}, weights=[1, 1])
    assert refused.key == "env.wrappers"
    assert refused.fix.startswith("weights: {_target_: numpy.array")


class LateWrapper(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Raises an error of its own at its twelfth step."""

    steps = 0

    def step(self, action: Any) -> Any:
        self.steps += 1
        return fail() if self.steps == 12 else self.env.step(action)


def test_a_wrapper_that_fails_late_is_named_without_a_value():
    with pytest.raises(GuestError) as refused:
        check(Walk, wrappers=({"entry_point": f"{__name__}:LateWrapper"},))
    assert (refused.value.key, refused.value.value) == ("env.wrappers", None)
    assert "env.restarts=" in refused.value.fix
    assert refused.value.what.startswith("env.wrappers of ")


# -- Numbers of several agents ----------------------------------------------------------------------------------------


class Bidding(Walk):
    """Has a number for each of its agents, as the infos of several agents are by agent."""

    def tell(self) -> dict[str, Any]:
        return {name: {"paid": 1.0, "bid": 2.0} for name in ("ann", "bob", "cid")}


def test_a_number_that_each_agent_has_is_named_by_agent():
    (note,) = check(Bidding, metrics={"paid": "sum"}).notes
    assert note.endswith("; did you mean ann.paid, bob.paid, cid.paid?")
    objective = {"kind": "info", "key": "paid", "direction": "max", "reduce": "sum"}
    fix = refuse(Bidding, objective=objective).fix
    assert fix.startswith("objective.key=ann.paid or objective.key=bob.paid or objective.key=cid.paid, or ")
