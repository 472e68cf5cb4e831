"""Which combination is best for one trial and for a sweep, and what to type for it."""

from __future__ import annotations

import re

import pytest
from composing import compose

from rltune.probe.recommendation import (
    Combination,
    MeasurementResult,
    choose_for_one_trial,
    choose_for_sweep,
    count_fitting,
    write_overrides,
)

ALGO = {"name": "ppo", "training": {}, "env_runners": {"num_env_runners": 0, "num_envs_per_env_runner": 16}}


def result(envs, steps_per_s, *, env_runners=0, threads=1, trials=1, **more):
    return MeasurementResult(Combination(envs, env_runners, threads), trials, steps_per_s, 0.5 * trials, **more)


def test_the_fastest_combination_is_best_for_one_trial():
    results = [
        result(1, 2000),
        result(16, 9000),
        result(16, 14000, threads=2),
        result(16, 0, env_runners=1, failed="out of memory"),
    ]
    assert choose_for_one_trial(results) is results[2]


def test_a_few_percent_are_not_worth_a_cpu_nor_more_environments():
    results = [result(16, 9200), result(64, 9900), result(16, 10_000, threads=2), result(4, 8000)]
    assert choose_for_one_trial(results) is results[0]


def test_trials_side_by_side_say_nothing_about_one_trial():
    results = [result(16, 9000), result(16, 17_000, trials=2)]
    assert choose_for_one_trial(results) is results[0]


def test_without_a_figure_there_is_no_recommendation():
    assert choose_for_one_trial([result(16, 0)]) is None
    assert choose_for_sweep([result(16, 0, trials=2)], 2) is None


def test_many_narrow_trials_win_where_threads_bring_little():
    results = [result(16, 9000), result(16, 11_000, threads=4), result(16, 30_000, trials=4)]
    assert choose_for_sweep(results, 4) is results[2]


def test_one_wide_trial_wins_where_narrow_ones_slow_each_other():
    results = [result(16, 9000), result(16, 30_000, threads=4), result(16, 20_000, trials=4)]
    assert choose_for_sweep(results, 4) is results[1]


def test_narrow_trials_win_a_draw():
    results = [result(16, 20_500, threads=2), result(16, 20_000, trials=2)]
    assert choose_for_sweep(results, 2) is results[1]


def test_leaving_cpus_idle_is_no_answer_for_a_sweep():
    results = [result(16, 9000), result(16, 5000, threads=2), result(16, 7000, trials=2)]
    assert choose_for_sweep(results, 2) is results[2]


def test_on_one_cpu_a_sweep_runs_one_trial_at_a_time():
    results = [result(1, 2000), result(16, 9000)]
    assert choose_for_sweep(results, 1) is results[1]


@pytest.mark.parametrize(("cpus", "memory_gb", "trials"), [(8, 64, 8), (8, 2.0, 3), (8, 0.1, 1), (1, 64, 1)])
def test_as_many_trials_fit_as_cpus_and_memory_allow(cpus, memory_gb, trials):
    assert count_fitting(cpus, memory_gb, result(16, 9000)) == trials


def test_a_trial_of_two_cpus_fits_half_as_often():
    assert count_fitting(8, 64, result(16, 9000, env_runners=1)) == 4


def test_overrides_name_the_cpus_and_what_the_algo_file_lacks():
    typed = write_overrides(result(64, 9000, env_runners=1, threads=2), ALGO)
    assert typed == [
        "algo.env_runners.num_envs_per_env_runner=64",
        "algo.env_runners.num_env_runners=1",
        "resources.cpus_per_trial=2",
    ]


def test_a_key_that_the_algo_file_lacks_is_typed_with_a_plus():
    assert write_overrides(result(4, 1), {"name": "x"})[0] == "+algo.env_runners.num_envs_per_env_runner=4"
    typed = write_overrides(result(4, 1, settings={"training_intensity": 16}), ALGO)
    assert "+algo.training.training_intensity=16" in typed


def test_fewer_trials_than_cpus_are_typed_too():
    assert write_overrides(result(16, 1, trials=3), ALGO, fitting=8)[-1] == "resources.max_concurrent=3"
    assert "max_concurrent" not in " ".join(write_overrides(result(16, 1, trials=8), ALGO, fitting=8))


def test_what_is_typed_composes_to_a_sweep():
    from rltune.config.validation import parse_config

    chosen = result(64, 1, env_runners=1, settings={"training_intensity": 4.0})
    typed = write_overrides(chosen, compose("run", "algo=dqn").algo)
    run = parse_config(compose("run", "algo=dqn", *typed))
    assert run.algo["env_runners"]["num_envs_per_env_runner"] == 64
    assert run.algo["training"]["training_intensity"] == 4.0


def test_a_combination_is_described_in_words():
    assert str(Combination(1, 0, 1)) == "1 env, 1 thread"
    assert re.findall(r"\d+", str(Combination(16, 1, 1))) == ["16", "1", "1"]
    assert re.findall(r"\d+", str(Combination(16, 2, 3))) == ["16", "2", "3"]
    assert "each of 2" in str(Combination(16, 2, 3)), "as many envs in every runner, not in all together"
