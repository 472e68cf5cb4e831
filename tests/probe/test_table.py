"""What a person reads at the end of a probe."""

from __future__ import annotations

import io

import pytest

from rltune.config.schema import EnvConfig
from rltune.probe.gpu import GpuUse
from rltune.probe.probe import ProbeConfig, ProbeResult
from rltune.probe.recommendation import Combination, MeasurementResult
from rltune.probe.table import print_result

ALGO = {"name": "ppo", "training": {}, "env_runners": {"num_env_runners": 0, "num_envs_per_env_runner": 16}}
CONFIG = ProbeConfig("fast", ALGO, EnvConfig(name="cartpole", id="CartPole-v1"), [16, 64], [0], [1, 2], 2.0, 300.0)


def print_of(*results, notes=(), config=CONFIG, **more):
    out = io.StringIO()
    print_result(ProbeResult(config, 2, results, tuple(notes), False, **more), out)
    return out.getvalue()


def result(envs, steps_per_s, threads=1, trials=1, **more):
    return MeasurementResult(Combination(envs, 0, threads), trials, steps_per_s, 0.5 * trials, **more)


def test_the_table_names_the_best_and_what_to_type():
    text = print_of(
        result(16, 16_000.0),
        result(64, 0.0, failed="not done in time"),
        result(16, 16_800.0, threads=2),
        result(16, 30_400.0, trials=2),
        notes=["1 env runner and 2 threads left out: 3 of 2 CPUs"],
    )
    assert "\x1b" not in text
    lines = text.splitlines()
    assert lines[0] == "ppo in CartPole-v1, engine=fast, 2 CPUs; 2 s each after warm-up"
    assert [" ".join(line.split()) for line in lines[1:6]] == [
        "trials envs env runners threads env steps/s memory best for",
        "1 16 0 1 16k 0.50 GB one trial",
        "1 64 0 1 failed -",
        "1 16 0 2 16.8k 0.50 GB",
        "2 16 0 1 30.4k 1.00 GB a sweep",
    ]
    assert lines[6:] == [
        "note: 1 env runner and 2 threads left out: 3 of 2 CPUs",
        "note: 64 envs, 1 thread: not done in time",
        "one trial   16 envs, 1 thread: 16k env steps/s",
        "            algo.env_runners.num_envs_per_env_runner=16 resources.cpus_per_trial=1",
        "a sweep     2 trials at once, each 16 envs, 1 thread: 30.4k env steps/s together",
        "            algo.env_runners.num_envs_per_env_runner=16 resources.cpus_per_trial=1",
    ]


def test_the_table_fits_into_eighty_columns():
    wide, best = Combination(1024, 128, 128), result(16, 999_000.0, threads=2)
    lines = print_of(MeasurementResult(wide, 128, 1.0, 999.99), best).splitlines()
    assert lines[3].rstrip().endswith("both")
    assert max(len(line) for line in lines[1:4]) <= 80


def test_why_stock_rllib_trained_it_is_said_once():
    text = print_of(result(16, 9.0, fallback="clowns"), result(64, 9.0, fallback="clowns"))
    assert text.count("note: stock RLlib trains this one, because the fast engine does not serve clowns") == 1


def test_another_width_than_the_algo_files_comes_with_a_warning():
    assert "Speed is not learning" in print_of(result(64, 9000.0))
    assert "Speed is not learning" not in print_of(result(16, 9000.0))
    assert "Speed is not learning" not in print_of(result(64, 9000.0, replays=True))


@pytest.mark.parametrize(
    ("rate", "speeds", "typed"),
    [
        (9e3, "9,000 env steps/s, 16k without it", "a trial is faster without one: resources=auto"),
        (32e3, "32k env steps/s, 16k without it", "resources.trials_per_gpu=2"),
    ],
)
def test_a_gpu_is_compared_with_doing_without(rate, speeds, typed):
    use = GpuUse(tensors=int(3e9), context=int(5e8), total=int(80e9), steps_per_s=rate)
    lines = print_of(result(16, 16_000.0), on_gpu=use, gpus=1).splitlines()
    assert [line[12:] for line in lines[-3:]] == [f"2 trials on each: {use}", speeds, typed]
