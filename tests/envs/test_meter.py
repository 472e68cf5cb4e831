"""Numbers of one's own, one an episode, whatever the infos are."""

from __future__ import annotations

import math
import pickle
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from informing import METRICS

from rltune.envs.build import is_plain, make_training_env
from rltune.envs.episode import RECORD, EpisodeRecord
from rltune.envs.facts import EnvFacts
from rltune.envs.meter import EpisodeMeter, average, list_keys
from rltune.envs.spec import EnvSpec, name_metric, parse_metrics, spec_of, specify_env
from rltune.envs.validation import check_env
from rltune.errors import ConfigError

SPEC = EnvSpec("informing:Informing-v0", {"length": 5}, metrics=METRICS)
FIRST = (3.0, 10.0, -1.0, 2.5, 1.0, math.nan)  # of an episode of five steps


def reduce(reduction: str, *values: Any) -> float:
    meter = EpisodeMeter(EnvSpec("", metrics={"x": reduction}))
    for value in values:
        meter.add(0.0, {} if value is None else {"x": value})
    return meter.collect()["x"]


@pytest.mark.parametrize(
    ("reduction", "number"), [("last", 5.0), ("sum", 9.0), ("mean", 3.0), ("max", 5.0), ("min", 1.0)]
)
def test_values_of_all_steps_become_one_number(reduction: str, number: float) -> None:
    assert reduce(reduction, 3, None, 1, 5, None) == number
    assert math.isnan(reduce(reduction, None, None))


@pytest.mark.parametrize("value", [True, np.bool_(True), 1, np.int64(1), np.float32(1), np.array([[1]]), np.array(1)])
@pytest.mark.parametrize("reduction", ["last", "sum", "mean", "max", "min"])
def test_numbers_of_any_type_count(value: Any, reduction: str) -> None:
    assert reduce(reduction, value) == 1.0
    assert type(reduce(reduction, value)) is float


@pytest.mark.parametrize("value", [math.nan, np.float64("nan"), "1", [1, 2], {"y": 1}, np.ones(2), 10**400])
@pytest.mark.parametrize("reduction", ["sum", "mean", "max", "min"])
def test_what_is_no_number_is_no_part_of_a_number(value: Any, reduction: str) -> None:
    """A sum without one of its steps would be another number."""
    for values in ([value, 1.0], [1.0, value], [1.0, value, 2.0]):
        assert math.isnan(reduce(reduction, *values))


def test_the_last_value_counts_whatever_was_before() -> None:
    assert reduce("last", math.nan, 2.0, None) == 2.0
    assert math.isnan(reduce("last", 2.0, math.nan))
    assert math.isnan(reduce("sum", 2.0, math.inf))


@pytest.mark.parametrize("reuse", [False, True])
def test_an_episode_has_its_numbers_in_its_record(reuse: bool) -> None:
    env = make_training_env(EnvSpec("informing:Informing-v0", {"reuse": reuse}, metrics=METRICS))
    for episode in (1, 2, 3):
        env.reset(seed=0)
        infos = [env.step(0)[4] for _ in range(5)]
        assert not any(RECORD in info for info in infos[:-1])
        record = infos[-1][RECORD]
        assert record[:3] == (5.0, 5, 5.0)
        rare = 3.0 if episode == 3 else math.nan
        np.testing.assert_equal(record.metrics, (*FIRST[:-1], rare))


def test_an_episode_that_is_given_up_adds_to_no_number() -> None:
    env = make_training_env(SPEC)
    env.reset(seed=0)
    for _ in range(3):
        env.step(0)
    env.reset()
    record = [env.step(0)[4] for _ in range(5)][-1][RECORD]
    np.testing.assert_equal(record.metrics, FIRST)


def test_a_sum_goes_on_where_an_episode_does() -> None:
    env = make_training_env(SPEC)
    env.reset(seed=0)
    for _ in range(3):
        env.step(0)
    env = pickle.loads(pickle.dumps(env))
    record = [env.step(0)[4] for _ in range(2)][-1][RECORD]
    np.testing.assert_equal(record.metrics, FIRST)


@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_final_infos_of_vector_environments_have_records(kind: Any) -> None:
    """Copies end at different steps, and the next step resets them: neither adds to another episode."""
    lengths = [2, 3]
    specs = [EnvSpec("informing:Informing-v0", {"length": length}, metrics=METRICS) for length in lengths]
    envs = kind([partial(make_training_env, spec) for spec in specs])
    envs.reset(seed=0)
    records: list[list[EpisodeRecord]] = [[], []]
    for _ in range(12):
        infos = envs.step(np.zeros(2, np.int64))[4]
        for index, record in enumerate(infos.get(RECORD, [])):
            if record is not None:
                records[index].append(record)
    envs.close()
    for index, length in enumerate(lengths):
        assert {record.metrics[1] for record in records[index]} == {2.0 * length}
        assert {record.length for record in records[index]} == {length}


def test_means_leave_out_episodes_without_a_number() -> None:
    records = [EpisodeRecord(metrics=(1.0, math.nan)), EpisodeRecord(metrics=(3.0, math.nan))]
    assert average(records, ["a", "b"]) == {"a": (2.0, 2), "b": (pytest.approx(math.nan, nan_ok=True), 0)}
    assert average([records[0], EpisodeRecord()], ["a"]) == {"a": (1.0, 1)}
    assert average([], ["a"]) == {"a": (pytest.approx(math.nan, nan_ok=True), 0)}


def test_the_keys_of_infos_are_listed_with_points() -> None:
    assert list_keys({"a": 1, 2: 3, "b": {"c": {"d": 1}, "e": 2}}) == ["a", "2", "b.c.d", "b.e"]


@pytest.mark.parametrize(
    ("declared", "metrics"),
    [
        (None, {}),
        ({}, {}),
        ([], {}),
        (["success", "rewards.forward"], {"success": "last", "rewards.forward": "last"}),
        ({"energy": "sum", "rewards": {"forward": "mean"}}, {"energy": "sum", "rewards.forward": "mean"}),
    ],
)
def test_a_list_means_the_last_value(declared: Any, metrics: dict[str, str]) -> None:
    assert parse_metrics(declared) == metrics
    spec = spec_of({"id": "CartPole-v1", "metrics": metrics})
    assert spec_of(spec.to_dict()) == spec


@pytest.mark.parametrize(
    ("declared", "key", "fix"),
    [
        ({"energy": "summ"}, "metrics.energy", "metrics.energy=sum"),
        ("success", "metrics", "metrics=[success]"),
        (["../up"], "metrics", "wrapper"),
        (["a.b", "a/b"], "metrics", "leave one out"),
    ],
)
def test_metrics_that_cannot_be_had_are_refused(declared: Any, key: str, fix: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_metrics(declared)
    assert refused.value.key == key
    assert fix in refused.value.fix


def test_a_metric_is_named_alike_everywhere() -> None:
    assert name_metric("success") == "episode/success"
    assert name_metric("rewards.forward") == "episode/rewards/forward"


def objective(key: str, **other: Any) -> Any:
    from rltune.config.schema import ObjectiveConfig

    return ObjectiveConfig("info", key, **other)


@pytest.mark.parametrize("key", ["energy", "episode/energy"])
def test_an_objective_may_name_a_metric(key: str) -> None:
    env = {"id": "informing:Informing-v0"}
    spec = specify_env(env, objective(key), {"energy": "sum", "force": "max"})
    assert spec.objective["reduce"] == "sum"
    assert spec.digest != specify_env(env, objective("energy")).digest
    assert specify_env(env, objective("energy"), ["speed"]).digest == specify_env(env, objective("energy")).digest
    made = make_training_env(spec)
    made.reset(seed=0)
    assert [made.step(0)[4] for _ in range(5)][-1][RECORD].score == 10.0


def test_an_objective_names_no_metric_that_is_none() -> None:
    with pytest.raises(ConfigError) as refused:
        specify_env({"id": "CartPole-v1"}, objective("episode/energie"), ["energy"])
    assert (refused.value.key, "did you mean 'episode/energy'" in refused.value.allowed) == ("objective.key", True)


def test_metrics_leave_the_digest_of_the_task_alone() -> None:
    assert SPEC.digest == EnvSpec("informing:Informing-v0", {"length": 5}).digest


def test_an_environment_with_metrics_is_stepped_copy_by_copy() -> None:
    plain, box = EnvSpec("CartPole-v1"), gym.spaces.Box(-1, 1, (4,), np.float32)
    facts = EnvFacts(box, gym.spaces.Discrete(2))
    assert is_plain(plain, facts)
    assert not is_plain(EnvSpec("CartPole-v1", metrics={"x": "last"}), facts)


def test_the_check_names_metrics_that_a_random_episode_lacks() -> None:
    facts = check_env(EnvSpec("informing:Informing-v0", metrics={"energie": "sum", "speed": "mean"}))
    (note,) = [note for note in facts.notes if note.startswith("metrics: ")]
    assert "did you mean energy?" in note
    assert "episodes_with/energie" in note


@pytest.mark.parametrize(("key", "fix"), [("note", "leave note out"), ("rewards", "metrics=[rewards.forward]")])
def test_the_check_refuses_metrics_that_are_no_numbers(key: str, fix: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_env(EnvSpec("informing:Informing-v0", metrics={key: "last"}))
    assert (refused.value.key, refused.value.value) == ("metrics", key)
    assert fix in refused.value.fix


@pytest.mark.parametrize(
    ("settings", "is_noted"),
    [
        ({"metrics": {"speed": "last"}}, True),
        ({"objective": {"kind": "return", "key": None, "direction": "min"}}, True),
        ({}, False),
        ({"metrics": {"speed": "last"}, "wrappers": ({"entry_point": "FlattenObservation"},)}, False),
    ],
)
def test_a_vector_version_that_gives_way_is_noted(settings: dict[str, Any], is_noted: bool) -> None:
    notes = [note for note in check_env(EnvSpec("CartPole-v1", **settings)).notes if "vector version" in note]
    assert len(notes) == is_noted


def test_standard_atari_gives_way_to_single_copies() -> None:
    from rltune.envs.atari import DEFAULTS, FRAME_STACK, PREPROCESSING, make_native_atari

    frames = {"entry_point": PREPROCESSING, "kwargs": DEFAULTS}
    wrappers = (frames, {"entry_point": FRAME_STACK, "kwargs": {"stack_size": 4}})
    for needed in ({"metrics": {"lives": "last"}}, {"restarts": 1}, {"rewards": {"normalise": True}}):
        assert make_native_atari(EnvSpec("ale_py:ALE/Pong-v5", {"frameskip": 1}, wrappers, **needed), 2) is None
