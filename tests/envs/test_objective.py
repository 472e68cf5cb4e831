"""What an episode is worth: read from its end, named where it cannot be, and the same wherever it is played."""

from __future__ import annotations

import math
import pickle
from typing import Any

import gymnasium as gym
import pytest

from rltune.envs.build import make_training_env
from rltune.envs.episode import RECORD, EpisodeRecord
from rltune.envs.objective import Objective, check_objective, make_score
from rltune.envs.spec import EnvSpec
from rltune.envs.validation import check_env
from rltune.errors import Cause, ConfigError, GuestError
from rltune.records import Direction

SUCCESS = {"kind": "info", "key": "is_success", "direction": "max"}


def spec(**objective: Any) -> EnvSpec:
    wrapper = {"entry_point": "judged:Judged"}
    return EnvSpec("CartPole-v1", wrappers=(wrapper,), objective={**SUCCESS, **objective})


def play(env: gym.Env[Any, Any], actions: list[int]) -> EpisodeRecord:
    for action in actions:
        *_, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            break
    record: EpisodeRecord = info[RECORD]
    return record


LEFT = [0] * 20  # falls after about nine steps
BALANCED = [0, 1] * 100


def test_training_records_returns_and_scores_side_by_side() -> None:
    env = make_training_env(spec())
    env.reset(seed=1)
    short, short_length, failed, *_ = play(env, LEFT)
    env.reset(seed=1)
    long, _, succeeded, *_ = play(env, BALANCED)
    assert short == short_length < 12 < long
    assert (failed, succeeded) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("objective", "worth"),
    [
        ({}, 7.0),
        ({"kind": "return", "key": None, "direction": "min"}, 7.0),
        ({"kind": "info", "key": "energy", "direction": "max"}, 2.5),
        ({"kind": "info", "key": "energy", "direction": "min"}, 2.5),
        ({"kind": "info", "key": "speed", "direction": "max"}, math.nan),
        ({"kind": "info", "key": "speed", "direction": "max", "missing": -1.0}, -1.0),
        ({"kind": "judged:falls_late", "key": None, "direction": "max"}, 3009.5),
    ],
)
def test_an_episode_is_worth_what_its_objective_says(objective: dict[str, Any], worth: float) -> None:
    numbers = {"energy": 2.5, "speed": math.nan}
    score = make_score(objective)(7.0, 3, {"energy": 2.5}, numbers)
    assert score == pytest.approx(worth, nan_ok=True)


def test_a_missing_key_is_told_before_the_first_trial() -> None:
    with pytest.raises(ConfigError, match="is_success") as refused:
        check_env(spec(key="succes"))
    assert (refused.value.key, refused.value.value) == ("objective.key", "succes")
    assert "objective.missing=0" in refused.value.fix
    check_env(spec())
    check_env(spec(key="succes", missing=0.0))


@pytest.mark.parametrize("function", ["reads_a_missing_key", "exits", "gives_nothing", "gives_a_huge_number"])
def test_a_function_without_a_score_is_named_and_not_the_environment(function: str) -> None:
    objective = {"kind": f"judged:{function}", "direction": "max"}
    for call in (lambda: make_score(objective)(7.0, 3, {}, {}), lambda: check_env(spec(**objective, key=None))):
        with pytest.raises(GuestError) as refused:
            call()
        assert (refused.value.key, refused.value.value) == ("objective.kind", objective["kind"])
        assert refused.value.cause is Cause.OBJECTIVE


def test_the_check_imports_an_own_function() -> None:
    with pytest.raises(ConfigError) as refused:
        check_env(spec(kind="nowhere:score", key=None))
    assert (refused.value.key, refused.value.value) == ("objective.kind", "nowhere:score")
    assert "PYTHONPATH" in refused.value.fix


@pytest.mark.parametrize(
    ("objective", "said", "fix"),
    [
        ({"kind": "sucess"}, "objective.kind=sucess", "return, info"),
        ({"key": None}, "without objective.key", "objective.key=is_success"),
        ({"kind": "return"}, "with objective.key=is_success", "objective.kind=info"),
        ({"kind": "return", "key": "shortage"}, "with objective.key=shortage", "objective.key=shortage"),
        ({"kind": "return", "key": None, "missing": 0.0}, "objective.missing=0 with", "objective.missing=null"),
    ],
)
def test_what_cannot_be_had_is_refused_with_what_to_type(objective: dict[str, Any], said: str, fix: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_objective({**SUCCESS, **objective})
    assert said in refused.value.what
    assert fix in str(refused.value)


def test_a_plain_return_is_no_own_objective() -> None:
    check_objective({})


@pytest.mark.parametrize(
    ("settings", "objective"),
    [
        (None, Objective("return", Direction.MAX)),
        ({}, Objective("return", Direction.MAX)),
        (SUCCESS, Objective("is_success", Direction.MAX)),
        ({"kind": "package.module:function"}, Objective("function", Direction.MAX)),
        ({"kind": "info", "key": "energy", "direction": "min"}, Objective("energy", Direction.MIN)),
    ],
)
def test_an_objective_has_a_name_and_a_direction(settings: dict[str, Any] | None, objective: Objective) -> None:
    assert Objective.from_settings(settings) == objective
    assert (objective.label == objective.name) == (objective.direction is Direction.MAX)


def test_scores_of_other_objectives_are_of_another_task() -> None:
    digests = {EnvSpec("CartPole-v1").digest, *(spec(key=key).digest for key in ("is_success", "energy"))}
    assert len(digests) == 3


def test_a_policy_may_not_import_its_authors_own_function() -> None:
    assert "theirs.scores" in EnvSpec("CartPole-v1", objective={"kind": "theirs.scores:cost"}).list_imports()


def test_an_environment_in_mid_episode_goes_on_scoring() -> None:
    env = make_training_env(spec())
    env.reset(seed=1)
    env.step(0)
    record = play(pickle.loads(pickle.dumps(env)), BALANCED)
    assert (record.length > 12, record.score) == (True, 1.0)
