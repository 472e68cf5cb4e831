"""What is logged of a trial: read from RLlib's result, merged over seeds, picked for MLflow."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from typing import Any

import pytest

from rltune.config.capabilities import TABLE
from rltune.config.criteria import Criteria, parse_constraints
from rltune.errors import ConfigError, NonFiniteError
from rltune.trial.metrics import (
    METRICS,
    TRIAL_NUMBERS,
    Progress,
    check_criteria,
    merge_seeds,
    read_result,
    select_logged,
)

SAMPLED = {
    "num_env_steps_sampled_lifetime": 300.0,
    "num_episodes_lifetime": 7,
    "episode_return_mean": 2.0,
}


def read(sampled: dict[str, Any], **learners: dict[str, Any]) -> Progress:
    return read_result({"env_runners": sampled, "learners": learners}, ["total_loss", "entropy"])


def test_each_number_comes_from_rllibs_key() -> None:
    progress = read(SAMPLED, default_policy={"total_loss": 0.5, "other": 1.0})
    assert (progress.env_steps, progress.episodes, progress.learner) == (300, 7, {"total_loss": 0.5})
    assert isinstance(progress.env_steps, int)


def test_rllibs_own_averages_over_episodes_are_not_taken() -> None:
    """They are over an iteration, however few steps that has."""
    for progress in (read(SAMPLED), read({})):
        numbers = (progress.return_mean, progress.return_min, progress.score, progress.episode_length_mean)
        assert all(map(math.isnan, numbers))
    assert (read({}).env_steps, read({}).episodes, read({}).learner) == (0, 0, {})


def test_a_statistic_is_the_mean_over_several_agents_policies() -> None:
    progress = read(
        SAMPLED, one={"total_loss": 1.0}, two={"total_loss": 3.0, "entropy": 5.0}, __all_modules__={"total_loss": 99.0}
    )
    assert progress.learner == {"total_loss": 2.0, "entropy": 5.0}


def test_seeds_are_merged_each_number_in_its_own_way() -> None:
    seeds = [
        Progress(200, 4, 1.0, 0.0, 2.0, 10.0, {"loss": 1.0}, 15.0),
        Progress(100, 6, 3.0, -5.0, 7.0, 30.0, {"loss": 3.0}, 90.0),
    ]
    assert merge_seeds(seeds, 1.5) == {
        "env_steps": 100,
        "episodes": 10,
        "return_mean": 2.0,
        "score": 2.0,
        "return_min": -5.0,
        "return_max": 7.0,
        "episode_length_mean": 20.0,
        "episode_length_max": 90.0,
        "return_std_over_seeds": statistics.pstdev([1.0, 3.0]),
        "train_s": 1.5,
        "learner/loss": 2.0,
        "env_restarts": 0,
    }


def test_a_trial_that_has_not_begun_has_a_report_too() -> None:
    report = merge_seeds([], 0.0)
    assert report["env_steps"] == 0
    assert math.isnan(report["score"])
    assert "return_std_over_seeds" not in report


def test_one_seed_without_an_episode_leaves_no_spread() -> None:
    report = merge_seeds([Progress(1, 1, 1.0), Progress(1, 0)], 0.0)
    assert math.isnan(report["return_std_over_seeds"])


def test_mlflow_gets_every_merged_number_and_no_bookkeeping() -> None:
    numbers = merge_seeds([Progress(1, 1, 1.0, learner={"total_loss": 0.5})] * 2, 1.0) | dict.fromkeys(
        TRIAL_NUMBERS, 3.0
    )
    logged = select_logged(numbers | {"records": {}, "worker_pid": 7, "done": False})
    assert set(logged) == set(numbers)
    assert set(logged) == {*METRICS, "learner/total_loss"}


@pytest.mark.parametrize("mean", [math.nan, math.inf])
def test_an_episode_whose_return_is_no_number_ends_the_trial(mean: float) -> None:
    with pytest.raises(NonFiniteError, match=f"return_mean={mean}"):
        Progress(200, 6, mean).require_finite_returns()
    Progress(200, 0).require_finite_returns()
    Progress(200, 6, 1.0).require_finite_returns()


@pytest.mark.parametrize(
    "name", ["train_s", "episode_length_mean", "learner/entropy", "system/process_memory_megabytes"]
)
def test_a_bound_is_put_on_what_trials_report(name: str) -> None:
    check_criteria(Criteria(parse_constraints({name: "< 1"}), name))


def test_a_bound_on_what_no_trial_reports_is_refused() -> None:
    with pytest.raises(ConfigError) as refused:
        check_criteria(Criteria(parse_constraints({"tran_s": "> 2.5"})))
    assert refused.value.what.startswith("constraints.tran_s")
    assert "'train_s'" in refused.value.allowed
    assert refused.value.fix == "'+constraints.train_s=> 2.5'"
    with pytest.raises(ConfigError) as refused:
        check_criteria(Criteria(second="learner/entropi"))
    assert refused.value.fix == "objective.second.key=learner/entropy"
    with pytest.raises(ConfigError) as refused:
        check_criteria(Criteria(parse_constraints({"fuel": "< 40"})), metrics=["energy", "fuel"])
    assert refused.value.fix == "'+constraints.episode.fuel=< 40'"
    with pytest.raises(ConfigError) as refused:
        parse_constraints({"episode": {"fuel": 40}})
    assert refused.value.fix == "'+constraints.episode.fuel=< 40'", "a key of Hydra has no slash"


@pytest.mark.parametrize("name", ["learner/qf_loss", "return_std_over_seeds"])
def test_a_bound_on_what_this_sweeps_trials_do_not_report_is_refused(name: str) -> None:
    """PPO has no such loss, and one seed no such spread."""
    ppo = next(row for row in TABLE.values() if row.name == "ppo")
    with pytest.raises(ConfigError, match=f"constraints.{name}"):
        check_criteria(Criteria(parse_constraints({name: "< 1"})), ppo, replicates=1)


def test_a_slash_is_typed_as_a_point() -> None:
    with pytest.raises(ConfigError) as refused:
        check_criteria(Criteria(parse_constraints({"learner": {"vf_los": "< 3"}})))
    assert refused.value.fix == "'+constraints.learner.vf_loss=< 3'"


def test_metrics_are_means_over_the_seeds_that_have_them() -> None:
    rare = {"episode/rare": math.nan, "episode/speed": 1.0}
    one = Progress(1, 9, 1.0, metrics=rare, episodes_with={"episode/rare": 0, "episode/speed": 4}, recent_episodes=4)
    other = replace(one, metrics={"episode/rare": 6.0, "episode/speed": 3.0}, recent_episodes=5)
    other = replace(other, episodes_with={"episode/rare": 2, "episode/speed": 5}, scored_episodes=5)
    report = merge_seeds([replace(one, scored_episodes=4), other], 0.0)
    assert (report["episode/rare"], report["episode/speed"]) == (6.0, 2.0)
    assert (report["episodes_with/rare"], report["episodes_with/speed"], report["recent_episodes"]) == (2, 9, 9)
    assert "scored_episodes" not in report
    logged = select_logged(report)
    assert {"episode/rare", "episodes_with/rare", "recent_episodes"} <= logged.keys()
    assert merge_seeds([one, other], 0.0)["scored_episodes"] == 5
    assert "recent_episodes" not in merge_seeds([Progress(1, 1, 1.0, recent_episodes=3, scored_episodes=3)], 0.0)


def test_a_metric_of_the_name_score_counts_no_scores() -> None:
    progress = Progress(1, 9, 1.0, metrics={"episode/score": 1.0}, episodes_with={"episode/score": 2})
    report = merge_seeds([replace(progress, recent_episodes=4, scored_episodes=4)], 0.0)
    assert (report["episodes_with/score"], "scored_episodes" in report) == (2, False)


def test_no_score_is_not_replaced_by_the_return() -> None:
    assert Progress(1, 1, 5.0).score == 5.0
    assert math.isnan(Progress(1, 1, 5.0, score=math.nan, recent_episodes=3).score)


PPO = next(row for row in TABLE.values() if row.name == "ppo")


@pytest.mark.parametrize("name", ["episode/success", "episode/a/b", "episodes_with/success", "recent_episodes"])
def test_a_bound_is_put_on_a_metric(name: str) -> None:
    check_criteria(Criteria(parse_constraints({name: "> 0.9"}), second=name), PPO, 1, ["success", "a.b"])


@pytest.mark.parametrize(
    "criteria", [{"constraints": parse_constraints({"episode": {"sucess": "> 1"}})}, {"second": "episode/sucess"}]
)
def test_a_bound_on_no_metric_says_how_to_have_it(criteria: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as refused:
        check_criteria(Criteria(**criteria), PPO, 1, ["success"])
    assert refused.value.fix == "'+metrics.sucess=last'"
    assert "did you mean 'episode/success'" in refused.value.allowed
    check_criteria(Criteria(**criteria))  # Callbacks of an algorithm that is not known may log it.
