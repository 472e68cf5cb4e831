"""Where an environment says which actions are legal, and how its flags are read."""

from __future__ import annotations

import json
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces as S

from rltune.envs.layout import join_flags, read_flags
from rltune.envs.masks import INFO, METHOD, OBSERVATION, LegalActions, MaskReader, MaskSource, draw_legal, find_mask
from rltune.envs.spaces import read_actions
from rltune.errors import ConfigError, GuestError

pytestmark = pytest.mark.fast

FLAGS = [0, 1, 1, 0, 1]
PAIR = ([0, 1], [1, 0, 1])
COMBINATIONS = [0, 0, 0, 1, 0, 1]


class Say(gymnasium.Env[Any, Any]):
    """Says which actions are legal in the ways that it is given."""

    action_space: Any = S.Discrete(5)
    observation_space: Any = S.Discrete(2)

    def __init__(self, **ways: Any) -> None:
        self.ways = ways
        if "method" in ways:
            self.action_masks = ways["method"]

    def reset(self, **kwargs: Any) -> Any:
        return self.ways.get("observation", 0), dict(self.ways.get("info", {}))

    def step(self, action: Any) -> Any:
        return self.ways.get("observation", 0), 0.0, False, False, dict(self.ways.get("info", {}))


def find(sizes: list[int], **ways: Any) -> MaskSource | None:
    env = Say(**ways)
    return find_mask(env, *env.reset(), sizes)


def test_a_mask_is_found_in_three_places():
    as_flags = np.array(FLAGS, np.int8)
    assert find([5], observation={"at": 0, "action_mask": as_flags}) == MaskSource(OBSERVATION, (5,))
    assert find([5], info={"action_mask": as_flags}) == MaskSource(INFO, (5,))
    assert find([5], method=lambda: FLAGS) == MaskSource(METHOD, (5,))
    assert find([5], info={"mask": as_flags}, observation={"mask": as_flags}) is None
    assert find([], info={"action_mask": as_flags}) is None


def test_the_observation_comes_first_and_the_method_last():
    everywhere = {"observation": {"action_mask": FLAGS}, "info": {"action_mask": FLAGS}, "method": lambda: FLAGS}
    assert find([5], **everywhere) == MaskSource(OBSERVATION, (5,))
    everywhere.pop("observation")
    assert find([5], **everywhere) == MaskSource(INFO, (5,))


@pytest.mark.parametrize(
    "mask", [np.concatenate(PAIR), tuple(map(np.array, PAIR)), [*PAIR], {"a": PAIR[0], "b": PAIR[1]}]
)
def test_flags_of_choices_may_be_flat_or_in_parts(mask: Any):
    source = find([2, 3], info={"action_mask": mask})
    assert source == MaskSource(INFO, (2, 3))
    reader = MaskReader(Say(), source)
    assert reader.read(0, {"action_mask": mask}).tolist() == [False, True, True, False, True]


GO, ALL = np.array([0, 1, 0], np.int8), None
HYBRID: Any = S.Dict({"force": S.Box(-1, 1, (2,)), "go": S.Discrete(3)})
TWO: Any = S.Dict({"b": S.Discrete(2), "a": S.Discrete(3)})  # Gymnasium sorts these keys.
GRID: Any = S.MultiDiscrete([[2, 3], [1, 2]])


@pytest.mark.parametrize(
    ("space", "mask", "flags"),
    [
        (HYBRID, {"go": GO, "force": ALL}, [0, 1, 0]),
        (HYBRID, {"go": GO}, [0, 1, 0]),
        (S.Tuple([S.Discrete(3), S.Box(-1, 1, (2,))]), (GO, ALL), [0, 1, 0]),
        (S.Tuple([S.Discrete(3), S.Discrete(2)]), [GO, ALL], [0, 1, 0, 1, 1]),
        (TWO, {"b": [0, 1], "a": [0, 0, 1]}, [0, 0, 1, 0, 1]),
        (S.Tuple([TWO, S.MultiDiscrete([2, 1])]), ({"b": ALL, "a": GO}, (PAIR[0], [1])), [0, 1, 0, 1, 1, 0, 1, 1]),
        (GRID, (((1, 0), (0, 1, 1)), ((1,), (0, 1))), [1, 0, 0, 1, 1, 1, 0, 1]),
    ],
)
def test_flags_may_have_the_form_of_the_actions(space: Any, mask: Any, flags: list[int], monkeypatch: Any):
    monkeypatch.setattr(Say, "action_space", space)
    sizes = read_actions(space).sizes
    source = find(list(sizes), info={"action_mask": mask})
    assert source == MaskSource(INFO, sizes)
    assert MaskReader(Say(), source).read(0, {"action_mask": mask}).astype(int).tolist() == flags
    batch = read_actions(space).flatten_mask(mask)
    assert np.size(read_flags(batch)) == len(flags)


def test_a_mask_may_lie_within_an_observation():
    observation = {"agent": ({"at": 1, "action_mask": FLAGS}, 2)}
    source = find([5], observation=observation)
    assert source is not None
    assert source.path == ("agent", 0, "action_mask")
    assert MaskSource.parse(json.loads(json.dumps(source.to_dict()))) == source
    assert MaskReader(Say(), source).read(observation, {}).tolist() == list(map(bool, FLAGS))
    with pytest.raises(ConfigError, match=r"a\.action_mask, b\.action_mask"):
        find([5], observation={"a": {"action_mask": FLAGS}, "b": {"action_mask": FLAGS}})


@pytest.mark.parametrize("wrong", [np.nan, 2, -1e9])
def test_what_becomes_no_flag_later_is_a_fault(wrong: float, monkeypatch: Any):
    reader = MaskReader(Say(), MaskSource(INFO, (5,)))
    with pytest.raises(GuestError, match="value"):
        reader.read(0, {"action_mask": [0, 1, 1, 0, wrong]})
    monkeypatch.setattr(Say, "action_space", HYBRID)
    with pytest.raises(GuestError, match="there is no go"):
        MaskReader(Say(), MaskSource(INFO, (3,))).read(0, {"action_mask": {"force": None}})


def test_flags_of_combinations_are_joint():
    assert find([2, 3], info={"action_mask": COMBINATIONS}) == MaskSource(INFO, (2, 3), joint=True)
    # With as many flags either way, there is one for each value.
    assert find([2, 2], info={"action_mask": [1, 1, 0, 1]}) == MaskSource(INFO, (2, 2))


def test_flags_of_choices_become_those_of_combinations():
    assert join_flags(np.concatenate(PAIR), [2, 3]).astype(int).tolist() == COMBINATIONS
    batch = np.stack([np.concatenate(PAIR), np.ones(5)])
    assert join_flags(batch, [2, 3]).astype(int).tolist() == [COMBINATIONS, [1] * 6]


def fail() -> Any:
    raise RuntimeError("not in this version")


@pytest.mark.parametrize(
    "ways",
    [
        {"info": {"action_mask": [1, 1]}},
        {"info": {"action_mask": [1, 1, 1, 1, 0.5]}},
        {"info": {"action_mask": "all"}},
        {"observation": {"action_mask": np.ones((7, 7))}},
        {"method": fail},
    ],
)
def test_what_only_has_the_name_of_a_mask_is_refused(ways: dict[str, Any]):
    with pytest.raises(ConfigError) as caught:
        find([5], **ways)
    assert (caught.value.key, caught.value.value) == ("env.action_mask", "auto")
    assert "env.action_mask=off" in caught.value.fix


def test_a_mask_without_a_legal_action_is_a_fault():
    reader = MaskReader(Say(), MaskSource(INFO, (5,)))
    for info in ({"action_mask": [0] * 5}, {}, {"action_mask": [1] * 4}):
        with pytest.raises(GuestError):
            reader.read(0, info)
    parts = MaskReader(Say(), MaskSource(INFO, (2, 3)))
    with pytest.raises(GuestError, match="choice 1"):
        parts.read(0, {"action_mask": [1, 1, 0, 0, 0]})


def test_after_an_episode_everything_is_legal():
    reader = MaskReader(Say(), MaskSource(INFO, (5,)))
    for info in ({"action_mask": [0] * 5}, {"action_mask": []}, {}):
        assert reader.read(0, info, is_over=True).all()
    assert reader.read(0, {"action_mask": FLAGS}, is_over=True).tolist() == list(map(bool, FLAGS))


def test_legal_values_are_drawn_alike():
    rng, source = np.random.default_rng(0), MaskSource(INFO, (2, 3))
    drawn = np.array([draw_legal(np.concatenate(PAIR), source, rng) for _ in range(600)])
    joint = [draw_legal(np.array(COMBINATIONS), source._replace(joint=True), rng) for _ in range(60)]
    assert set(map(tuple, joint)) == {(1, 0), (1, 2)}
    assert set(map(tuple, drawn.tolist())) == {(1, 0), (1, 2)}
    assert 250 < (drawn[:, 1] == 0).sum() < 350


class Listed(Say):
    """Lists the legal actions, which begin at 2, as some board games do."""

    action_space = S.Discrete(5, start=2)


@pytest.mark.parametrize(
    ("env", "arguments", "flags"),
    [
        (Listed(info={"moves": [3, 4, 6]}), {"key": "moves", "lists": True}, FLAGS),
        (Listed(observation={"at": 0, "moves": np.array([3, 4, 6, -1])}), {"key": "moves", "lists": True}, FLAGS),
        (Say(info={"is_legal": FLAGS}), {"key": "is_legal"}, FLAGS),
    ],
)
def test_other_conventions_become_the_infos_mask(env: Any, arguments: dict[str, Any], flags: list[int]):
    if isinstance(env.ways.get("observation"), dict):
        env.observation_space = S.Dict(at=S.Discrete(2), moves=S.Box(-1, 6, (4,), np.int64))
    wrapped = LegalActions(env, **arguments)
    observation, info = wrapped.reset()
    assert np.asarray(info["action_mask"]).tolist() == flags
    assert wrapped.observation_space.contains(observation)
    assert find_mask(wrapped, observation, info, [5]) == MaskSource(INFO, (5,))
    assert np.asarray(wrapped.step(3)[4]["action_mask"]).tolist() == flags


class Methodical(Say):
    def valid_action_mask(self) -> Any:
        return FLAGS


def test_a_method_of_another_name_becomes_the_infos_mask():
    wrapped = LegalActions(Methodical(), key="valid_action_mask")
    assert wrapped.reset()[1]["action_mask"] == FLAGS


class Pairs(Say):
    action_space = S.MultiDiscrete([2, 3])


def test_listed_combinations_are_joint():
    wrapped = LegalActions(Pairs(info={"moves": [(1, 0), (1, 2)]}), key="moves", lists=True)
    observation, info = wrapped.reset()
    assert info["action_mask"].tolist() == COMBINATIONS
    assert find_mask(wrapped, observation, info, [2, 3]) == MaskSource(INFO, (2, 3), joint=True)


def test_a_method_that_fails_after_an_episode_does_no_harm():
    env = Say(method=fail)
    assert MaskReader(env, MaskSource(METHOD, (5,))).read(0, {}, is_over=True).all()
    wrapped, env.step = LegalActions(env, key="action_masks"), lambda action: (0, 0.0, True, False, {"at": 1})
    assert wrapped.step(0)[4] == {"at": 1}
    with pytest.raises(RuntimeError):
        MaskReader(env, MaskSource(METHOD, (5,))).read(0, {})


class Squares(Say):
    action_space = S.MultiDiscrete([2, 2])


@pytest.mark.parametrize(("moves", "arguments"), [([(0, 1), (1, 0)], {"lists": True}), ([0, 1, 1, 0], {"joint": True})])
def test_combinations_stay_joint_where_values_are_as_many(moves: Any, arguments: dict[str, bool]):
    wrapped = LegalActions(Squares(info={"moves": moves}), key="moves", **arguments)
    observation, info = wrapped.reset()
    assert np.asarray(info["action_mask"]).tolist() == [0, 1, 1, 0]
    assert find_mask(wrapped, observation, info, [2, 2]) == MaskSource(INFO, (2, 2), joint=True)


def test_a_name_that_is_nowhere_is_a_fault():
    with pytest.raises(GuestError, match="valid_move") as caught:
        LegalActions(Say(info={"valid_moves": FLAGS}), key="valid_move").reset()
    assert "valid_moves" in caught.value.fix


def test_a_source_is_read_back_and_other_words_are_refused():
    source = MaskSource(METHOD, (2, 3), joint=True)
    assert MaskSource.parse(json.loads(json.dumps(source.to_dict()))) == source
    assert MaskSource.parse("auto") is MaskSource.parse("off") is None
    for wrong in ("on", {"place": "sky", "sizes": [2]}, {"place": "info"}):
        with pytest.raises(ConfigError) as caught:
            MaskSource.parse(wrong)
        assert caught.value.key == "env.action_mask"
