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
LEFT_OUT, TOO_LATE = "left out: 3 of 2 CPUs", "not done in time"


def print_of(*results, notes=(), config=CONFIG, **more):
    out = io.StringIO()
    print_result(ProbeResult(config, 2, results, tuple(notes), False, **more), out)
    return out.getvalue()


def result(envs, steps_per_s, threads=1, trials=1, **more):
    return MeasurementResult(Combination(envs, 0, threads), trials, steps_per_s, 0.5 * trials, **more)


def test_the_table_names_the_best_and_what_to_type():
    text = print_of(
        result(16, 16_000.0),
        result(64, 0.0, failed=TOO_LATE),
        result(16, 16_800.0, threads=2),
        result(16, 30_400.0, trials=2),
        notes=[LEFT_OUT],
    )
    assert "\x1b" not in text
    lines = text.splitlines()
    assert {"ppo", "CartPole-v1,", "engine=fast,"} <= set(lines[0].split())
    rows = [line.split() for line in lines[2:6]]
    assert [row[:6] for row in rows] == [
        ["1", "16", "0", "1", "16k", "0.50"],
        ["1", "64", "0", "1", "failed", "-"],
        ["1", "16", "0", "2", "16.8k", "0.50"],
        ["2", "16", "0", "1", "30.4k", "1.00"],
    ]
    assert [" ".join(row[7:]) for row in rows] == ["one trial", "", "", "a sweep"]
    left_out, failed, for_trial, typed_for_trial, for_sweep, typed_for_sweep = lines[6:]
    assert left_out.endswith(LEFT_OUT)
    assert failed.endswith(TOO_LATE)
    assert "16k" in for_trial
    assert "30.4k" in for_sweep
    typed = ["algo.env_runners.num_envs_per_env_runner=16", "resources.cpus_per_trial=1"]
    assert typed_for_trial.split() == typed_for_sweep.split() == typed


def test_the_table_fits_into_eighty_columns():
    wide, best = Combination(1024, 128, 128), result(16, 999_000.0, threads=2)
    lines = print_of(MeasurementResult(wide, 128, 1.0, 999.99), best).splitlines()
    assert lines[3].rstrip().endswith("both")
    assert max(len(line) for line in lines[1:4]) <= 80


def test_why_stock_rllib_trained_it_is_said_once():
    text = print_of(result(16, 9.0, fallback="clowns"), result(64, 9.0, fallback="clowns"))
    assert text.count("clowns") == 1


def test_another_width_than_the_algo_files_comes_with_a_warning():
    usual = print_of(result(16, 9000.0)).splitlines()
    assert len(print_of(result(64, 9000.0)).splitlines()) == len(usual) + 1
    assert len(print_of(result(64, 9000.0, replays=True)).splitlines()) == len(usual)


@pytest.mark.parametrize(
    ("rate", "speed", "typed"),
    [
        (9e3, "9,000", "resources=auto"),
        (32e3, "32k", "resources.trials_per_gpu=2"),
    ],
)
def test_a_gpu_is_compared_with_doing_without(rate, speed, typed):
    use = GpuUse(tensors=int(3e9), context=int(5e8), total=int(80e9), steps_per_s=rate)
    lines = print_of(result(16, 16_000.0), on_gpu=use, gpus=1).splitlines()
    assert lines[-3].endswith(str(use))
    assert {speed, "16k"} <= set(lines[-2].split())
    assert lines[-1].split()[-1] == typed
