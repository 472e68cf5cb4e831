"""Tests of what a probe measures, in which order, what it recommends, and what it says if it cannot measure."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from dataclasses import replace
from multiprocessing.connection import Pipe
from types import SimpleNamespace

import pytest
from composing import compose
from fake_gpus import GIB
from omegaconf import OmegaConf
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.ppo import PPOConfig

from rltune import probe
from rltune.cluster.resources import Machine
from rltune.config.changes import check_changes, keep_measured
from rltune.config.schema import EnvConfig, ProbeConfig
from rltune.config.settings_file import read_settings, write_settings
from rltune.config.validation import parse_config, to_typed
from rltune.driver import plan as planning
from rltune.envs.spec import EnvSpec
from rltune.envs.validation import check_env
from rltune.errors import ConfigError, ResourceError, RltuneError
from rltune.probe import (
    Combination,
    Measurement,
    build_combination,
    choose,
    estimate_size,
    keep_work,
    list_overrides,
    list_values,
    measure_all,
    measure_on_gpu,
    run_probe,
    write_advice,
)
from rltune.search.space import parse_space
from rltune.trial.gpu_memory import GpuUse

PPO = {"name": "ppo", "training": {}, "env_runners": {"num_env_runners": 0, "num_envs_per_env_runner": 16}}


@pytest.fixture(scope="module")
def settings():
    """What `sweeps.probe` composes without overrides."""
    from hydra.core.config_store import ConfigStore

    ConfigStore.instance().store("base_probe", ProbeConfig)
    return OmegaConf.to_container(compose("probe"))


@pytest.fixture
def config(settings):
    return to_typed(ProbeConfig, settings)


def measure(config, facts, combination):
    """A machine on which environments pay and a second thread does not; two trials share it almost perfectly."""
    if combination.envs == 64:
        return Measurement(combination, failed="not done in time")
    rate = 1000.0 * combination.envs * (1.05 if combination.threads > 1 else 1.0) / (1 + combination.env_runners)
    return Measurement(combination, rate * (1.9 if combination.trials > 1 else 1.0), 0.5 * combination.trials)


@pytest.fixture
def machine(monkeypatch):
    monkeypatch.setattr(probe, "available_cpus", lambda: 2)
    monkeypatch.setattr(probe, "total_gb", lambda: 16.0)
    monkeypatch.setattr(probe, "measure", measure)
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))
    monkeypatch.setattr(probe, "local_machine", lambda: Machine(2, 0))


FACTS = check_env(EnvSpec("CartPole-v1"))


def list_measured(config, cpus, gpus=0):
    return [result.combination for result in measure_all(config, FACTS, cpus, gpus)]


def numbers_in(text):
    return [float(number) for number in re.findall(r"\d+(?:\.\d+)?", text)]


# -- what is measured -------------------------------------------------------------------


@pytest.mark.usefixtures("machine")
def test_each_stage_varies_the_best_of_the_stages_before(config):
    assert list_measured(config, 2) == [
        *(Combination(width, 0, 1) for width in (1, 4, 16, 64)),
        Combination(16, 1, 1),
        Combination(16, 0, 2),
        Combination(16, 0, 1, trials=2),
    ]


@pytest.mark.usefixtures("machine")
def test_half_as_many_trials_as_cpus_are_measured_too(config):
    trials = [combination.trials for combination in list_measured(config, 16) if combination.trials > 1]
    assert trials == [8, 16]


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(("memory_gb", "trials"), [(64, [4, 8]), (2.0, [3]), (0.1, [])])
def test_no_more_trials_are_measured_than_memory_allows(config, monkeypatch, memory_gb, trials):
    monkeypatch.setattr(probe, "total_gb", lambda: memory_gb)
    assert [combination.trials for combination in list_measured(config, 8) if combination.trials > 1] == trials


@pytest.mark.usefixtures("machine")
def test_a_trial_that_samples_in_other_processes_fits_half_as_often(config):
    apart = replace(config, env_runners=[1], threads=[1])
    assert [combination.trials for combination in list_measured(apart, 8) if combination.trials > 1] == [2, 4]


@pytest.mark.usefixtures("machine")
def test_on_one_cpu_only_the_width_is_tried(config):
    assert list_measured(config, 1) == [Combination(width, 0, 1) for width in (1, 4, 16, 64)]


@pytest.mark.parametrize(
    ("cpus", "env_runners"), [(1, [0]), (2, [0, 1]), (3, [0, 1, 2]), (4, [0, 1, 2]), (16, [0, 1, 2, 4, 8])]
)
def test_env_runners_are_doubled_while_a_cpu_is_left(config, cpus, env_runners):
    assert list_values(config, cpus)["env_runners"] == env_runners


def test_shaped_rewards_are_measured_with_env_runners_too(settings):
    shaped = {**settings, "env": {**settings["env"], "rewards": {"scale": 0.5}}}
    config = to_typed(ProbeConfig, {**shaped, "env_runners": [0, 1]})
    assert list_values(config, 16)["env_runners"] == [0, 1]


REFUSED = [
    ({"widths": [0]}, "widths=[0]", "at least 1", "widths=[1,4,16,64]"),
    ({"widths": []}, "widths=[]", "at least 1", "widths="),
    ({"env_runners": [-1, 0]}, "env_runners=[-1,0]", "at least 0", "env_runners=[0,1]"),
    ({"threads": [0, 1]}, "threads=[0,1]", "at least 1", "threads=[1,2]"),
    ({"seconds": 0}, "seconds=0 ", "at least 0.05", "seconds=2"),
    ({"engine": "fats"}, "engine=fats", "'fast'", "engine=fast"),
]


@pytest.mark.parametrize(("changes", "what", "allowed", "fix"), REFUSED)
def test_a_wrong_setting_is_refused_in_three_parts(settings, changes, what, allowed, fix):
    with pytest.raises(ConfigError) as refused:
        to_typed(ProbeConfig, {**settings, **changes})
    assert refused.value.what.startswith(what)
    assert allowed in refused.value.allowed
    assert refused.value.fix.startswith(fix)


def test_settings_of_which_nothing_fits_the_machine_are_refused(config):
    with pytest.raises(ResourceError) as refused:
        list_values(replace(config, threads=[64]), 2)
    assert refused.value.key == "env_runners"
    assert "threads=[64]" in refused.value.what
    assert numbers_in(refused.value.allowed)[0] == 2, "the CPUs of this machine"
    assert refused.value.fix == "env_runners=[0] threads=[1]"


def run(config, *typed):
    """Run a probe; return whether it is complete, and its lines."""
    lines = []
    return run_probe(config, typed, lines.append)[0], lines


@pytest.mark.usefixtures("machine")
def test_the_table_has_a_row_for_each_measurement_and_ends_with_what_to_type(config):
    is_complete, lines = run(config, "algo=ppo", "env=cartpole")
    assert is_complete
    assert {"ppo", "CartPole-v1,", "engine=fast,"} <= set(lines[0].split())
    assert [line.split()[:6] for line in lines[2:9]] == [
        ["1", "1", "0", "1", "0", "1,000"],
        ["1", "4", "0", "1", "0", "4,000"],
        ["1", "16", "0", "1", "0", "16k"],
        ["1", "64", "0", "1", "0", "-"],
        ["1", "16", "1", "1", "0", "8,000"],
        ["1", "16", "0", "2", "0", "16.8k"],
        ["2", "16", "0", "1", "0", "30.4k"],
    ]
    note, for_trial, typed_for_trial, for_sweep, typed_for_sweep = lines[9:14]
    assert "not done in time" in note
    assert "16k" in for_trial
    assert "2 trials at once" in for_sweep
    assert "30.4k" in for_sweep
    typed = ["algo=ppo", "env=cartpole", "algo.env_runners.num_envs_per_env_runner=16", "resources.cpus_per_trial=1"]
    assert typed_for_trial.split()[-4:] == typed_for_sweep.split()[-4:] == typed
    assert typed_for_sweep.split()[:-4][-1].endswith("run")


@pytest.mark.usefixtures("machine")
def test_a_busy_machine_is_named(config, monkeypatch):
    assert not any("busy" in line for line in run(config)[1])
    monkeypatch.setattr("os.getloadavg", lambda: (5.0, 0.0, 0.0))
    assert any("busy" in line and 5.0 in numbers_in(line) for line in run(config)[1])


@pytest.mark.usefixtures("machine")
def test_an_interrupted_probe_keeps_what_it_has(config, monkeypatch):
    def interrupted(config, facts, combination):
        if combination.envs == 16:
            raise KeyboardInterrupt
        return measure(config, facts, combination)

    monkeypatch.setattr(probe, "measure", interrupted)
    is_complete, lines = run(config)
    assert not is_complete
    assert [line.split()[1] for line in lines[2:4]] == ["1", "4"]
    assert any("num_envs_per_env_runner=4" in line for line in lines), "the best so far"
    with pytest.raises(KeyboardInterrupt):
        run(replace(config, widths=[16]))


@pytest.mark.usefixtures("machine")
def test_a_probe_without_a_figure_says_why(config, monkeypatch):
    monkeypatch.setattr(
        probe, "measure", lambda config, facts, tried: Measurement(tried, failed="MemoryError: no room")
    )
    with pytest.raises(RltuneError, match="MemoryError"):
        run(config)


def test_an_unknown_environment_is_refused_before_measuring(settings):
    wrong = to_typed(ProbeConfig, {**settings, "env": {"name": "x", "id": "CartPol-v1"}})
    with pytest.raises(ConfigError, match="CartPole"):
        run_probe(wrong, (), lambda _: pytest.fail("nothing is measured"))


OWN_ENVIRONMENT = """
import gymnasium, numpy
print("a greeting")

class Drift(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return numpy.zeros(2, numpy.float32), {}
    def step(self, action):
        self.steps += 1
        return numpy.zeros(2, numpy.float32), 1.0, self.steps == 20, False, {}

gymnasium.register("Drift-v0", Drift)
"""
SMALL = (
    "algo.training.train_batch_size_per_learner=128",
    "algo.training.minibatch_size=64",
    "widths=[2]",
    "env_runners=[0]",
    "threads=[1]",
    "seconds=0.1",
)


@pytest.mark.nightly
@pytest.mark.slow
def test_a_typed_probe_measures_an_environment_of_ones_own(tmp_path):
    from real import Project

    (tmp_path / "myenvs.py").write_text(OWN_ENVIRONMENT)
    typed = Project(tmp_path).type("-m", "sweeps.probe", "env.id=myenvs:Drift-v0", *SMALL)
    assert typed.code == 0, typed.out
    assert "myenvs:Drift-v0" in typed.out
    assert "engine=fast" in typed.out
    assert "failed" not in typed.out
    assert "stock RLlib" not in typed.out
    # A second thread may be worth its CPU or not, depending on the machine: the advice names what was measured.
    advised = re.search(r"^one trial: 2 envs, (\d+) threads?, [\d,.]+k? env steps/s$", typed.out, re.M)
    assert advised, typed.out
    assert f" env.id=myenvs:Drift-v0 {' '.join(SMALL[:2])} " in typed.out
    assert f"algo.env_runners.num_envs_per_env_runner=2 resources.cpus_per_trial={advised[1]}" in typed.out


# -- the same work for every combination, and workers that cannot measure -----------------


def off_policy(envs, env_runners=0, intensity=None):
    """DQN that learns from 64 transitions after each step of its environments, if no intensity says otherwise."""
    config = DQNConfig().training(training_intensity=intensity, train_batch_size=64)
    return config.env_runners(num_envs_per_env_runner=envs, num_env_runners=env_runners)


def test_a_wider_vector_keeps_off_policy_updates_per_step():
    assert keep_work(off_policy(4), off_policy(64)) == {"training_intensity": 16.0}
    assert keep_work(off_policy(4), off_policy(1)) == {"training_intensity": 16.0}
    assert keep_work(off_policy(4), off_policy(4)) == {}


def test_an_intensity_of_ones_own_stays_what_it_is():
    assert keep_work(off_policy(4, intensity=8), off_policy(64, intensity=8)) == {}


def test_rllibs_count_of_an_idle_runner_is_made_up_for():
    assert keep_work(off_policy(4), off_policy(64, env_runners=1)) == {"training_intensity": 8.0}
    assert keep_work(off_policy(4, intensity=8), off_policy(4, 1, intensity=8)) == {"training_intensity": 4.0}


def test_rllib_replays_as_much_for_each_step_with_them():
    from ray.rllib.algorithms.dqn.dqn import calculate_rr_weights

    for envs, env_runners in ((1, 0), (64, 0), (4, 1), (64, 2)):
        wide = off_policy(envs, env_runners)
        wide.training_intensity = keep_work(off_policy(4), wide).get("training_intensity")
        rounds, updates = calculate_rr_weights(wide)
        assert updates * 64 / (rounds * envs * max(1, env_runners)) == pytest.approx(16.0)


def test_an_on_policy_algorithm_needs_nothing_besides():
    assert keep_work(PPOConfig(), PPOConfig().env_runners(num_envs_per_env_runner=64)) == {}


def test_a_combination_is_built_with_its_settings(config):
    dqn = to_typed(ProbeConfig, compose("probe", "algo=dqn"))
    build, settings = build_combination(dqn, FACTS, Combination(64, 0, 1))
    assert build.algo["env_runners"]["num_envs_per_env_runner"] == 64
    assert build.algo["training"]["training_intensity"] == settings["training_intensity"]
    assert build.algo["training"]["lr"] == dqn.algo["training"]["lr"]
    assert build_combination(config, FACTS, Combination(64, 1, 1))[1] == {}


def test_a_worker_that_is_not_done_in_time_is_ended_and_named(config, monkeypatch):
    monkeypatch.setattr(probe, "START_S", -60.0)
    assert probe.measure(config, FACTS, Combination(1, 0, 1)).failed.count("seconds=") == 1


def test_a_worker_that_dies_is_named(config, monkeypatch):
    monkeypatch.setattr("sys.executable", "/bin/true")
    assert probe.measure(config, FACTS, Combination(1, 0, 1, trials=2)).failed


@pytest.mark.parametrize("error", [ConfigError("lr", -1, "", "above 0", "lr=0.1"), ValueError("no map\nof level 2")])
def test_what_a_worker_cannot_do_reaches_the_driver(config, monkeypatch, error):
    def fail(*_):
        raise error

    ours, theirs = Pipe()
    monkeypatch.setattr(probe, "_work", fail)
    ours.send("a task")
    probe.main(str(os.dup(theirs.fileno())))
    monkeypatch.setattr(probe, "_start_worker", lambda *_: contextlib.nullcontext(ours))
    if isinstance(error, ConfigError):
        with pytest.raises(ConfigError, match="lr=-1") as refused:
            probe.measure(config, FACTS, Combination(1, 0, 1))
        assert refused.value.fix == "lr=0.1"
    else:
        assert probe.measure(config, FACTS, Combination(1, 0, 1)).failed.startswith("ValueError:")


# -- what is best, and what to type -----------------------------------------------------


def result(envs, steps_per_s, *, env_runners=0, threads=1, trials=1, gpus=0, **more):
    return Measurement(Combination(envs, env_runners, threads, trials, gpus), steps_per_s, 0.5 * trials, **more)


BEST = {
    "the fastest": ([result(1, 2000), result(16, 9000), result(16, 14000, threads=2)], 2),
    "what failed is none": ([result(16, 9000), result(16, 0, env_runners=1, failed="out of memory")], 0),
    "a few percent are worth no CPU": ([result(16, 9200), result(16, 10_000, threads=2)], 0),
    "a few percent are worth no environments": ([result(16, 9200), result(64, 9900), result(4, 8000)], 0),
    "a few percent are worth no GPU": ([result(16, 9200, threads=2), result(16, 9900, gpus=1)], 0),
    "threads bring little": ([result(16, 9000), result(16, 11_000, threads=4), result(16, 30_000, trials=4)], 2),
    "trials slow each other": ([result(16, 9000), result(16, 30_000, threads=4), result(16, 20_000, trials=4)], 1),
    "narrow trials win a draw": ([result(16, 20_500, threads=2), result(16, 20_000, trials=2)], 1),
    "half as many do as much": ([result(16, 9000), result(16, 29_000, trials=4), result(16, 30_000, trials=8)], 1),
}


@pytest.mark.parametrize(("results", "best"), BEST.values(), ids=BEST)
def test_the_cheapest_of_the_fastest_is_best(results, best):
    assert choose(results) is results[best]


def test_without_a_figure_there_is_no_recommendation():
    assert choose([result(16, 0)]) is None


def test_overrides_name_the_cpus_and_what_the_algo_file_lacks():
    assert list_overrides(result(64, 9000, env_runners=1, threads=2), PPO) == [
        "algo.env_runners.num_envs_per_env_runner=64",
        "algo.env_runners.num_env_runners=1",
        "resources.cpus_per_trial=2",
    ]


def test_a_key_that_the_algo_file_lacks_is_typed_with_a_plus():
    assert list_overrides(result(4, 1), {"name": "x"})[0] == "+algo.env_runners.num_envs_per_env_runner=4"
    typed = list_overrides(result(4, 1, settings={"training_intensity": 16}), PPO)
    assert "+algo.training.training_intensity=16" in typed


def test_fewer_trials_than_cpus_are_typed_too():
    assert list_overrides(result(16, 1, trials=3), PPO, cpus=8)[-1] == "resources.max_concurrent=3"
    assert "max_concurrent" not in str(list_overrides(result(16, 1, trials=8), PPO, cpus=8))


def test_what_is_typed_composes_to_a_sweep():
    chosen = result(64, 1, env_runners=1, gpus=1, settings={"training_intensity": 4.0})
    typed = list_overrides(chosen, compose("run", "algo=dqn").algo)
    run = parse_config(compose("run", "algo=dqn", *typed))
    assert run.algo["env_runners"]["num_envs_per_env_runner"] == 64
    assert run.algo["training"]["training_intensity"] == 4.0
    assert run.resources.trials_per_gpu == 1


def test_a_combination_is_described_in_words():
    assert str(Combination(1, 0, 1)) == "1 env, 1 thread"
    assert numbers_in(str(Combination(16, 1, 1))) == [16, 1, 1]
    assert numbers_in(str(Combination(16, 2, 3))) == [16, 2, 3]
    assert "each of 2" in str(Combination(16, 2, 3)), "as many envs in every runner, not in all together"


CONFIG = ProbeConfig("fast", PPO, EnvConfig(name="cartpole", id="CartPole-v1"), [16, 64], [0], [1, 2], 2.0)


def test_the_words_of_the_command_line_are_quoted_for_the_shell():
    typed = ["env=cartpole", "env.kwargs={a: 1}"]
    command = write_advice(CONFIG, [result(16, 9000)], 1, typed)[1]
    assert shlex.split(command)[-4:-2] == typed


@pytest.mark.usefixtures("machine")
def test_the_table_fits_into_eighty_columns(config, monkeypatch):
    wide = Measurement(Combination(1024, 128, 128, trials=128), 999_000.0, 999.99)
    monkeypatch.setattr(probe, "measure_all", lambda *_: [wide, result(16, 1.0)])
    assert max(len(line) for line in run(config)[1][1:4]) <= 80


@pytest.mark.usefixtures("machine")
def test_why_stock_rllib_trained_is_said_once(config, monkeypatch):
    results = [result(16, 9.0, fallback="clowns"), result(64, 9.0, fallback="clowns")]
    monkeypatch.setattr(probe, "measure_all", lambda *_: results)
    assert str(run(config)[1]).count("clowns") == 1


def test_another_width_than_the_algo_files_comes_with_a_warning():
    usual, wider = (write_advice(CONFIG, [result(width, 9000.0)], 1, []) for width in (16, 64))
    assert len(wider) == len(usual) + 1


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(("rate", "pays"), [(9e3, False), (32e3, True)])
def test_where_there_is_a_gpu_the_best_trial_is_measured_on_it(config, monkeypatch, rate, pays):
    monkeypatch.setattr(probe, "local_machine", lambda: Machine(2, 1))
    monkeypatch.setattr(
        probe,
        "measure",
        lambda config, facts, use: (
            replace(measure(config, facts, use), steps_per_s=rate) if use.gpus else measure(config, facts, use)
        ),
    )
    _, lines = run(config)
    rows = [line.split() for line in lines[2:10] if line.split()[4:5] == ["1"]]
    assert [row[:5] for row in rows] == [["1", "16", "0", "1", "1"]]
    verdict = next(line for line in lines if line.startswith("A GPU"))
    assert ("does not pay" in verdict) is not pays
    assert rate / 16e3 == pytest.approx(numbers_in(verdict)[-1], rel=0.05)
    one_trial = lines[next(i for i, line in enumerate(lines) if line.startswith("one trial")) + 1]
    assert ("resources.trials_per_gpu=1" in one_trial) is pays


def test_a_gpu_that_cannot_be_used_is_named(config, monkeypatch):
    results = [result(16, 9000), result(16, 0, gpus=1, failed="RuntimeError: no kernel")]
    assert not any("GPU" in line for line in write_advice(CONFIG, results, 1, []))


def test_a_combination_on_a_gpu_is_built_with_it(config):
    assert build_combination(config, FACTS, Combination(16, 0, 1, gpus=1))[0].gpus == 1.0


# -- what a trial takes of a GPU, for trials_per_gpu=auto --------------------------------

USE = GpuUse(tensors=3 * GIB, context=GIB // 2, total=40 * GIB)


def test_the_corner_with_the_widest_net_and_batch_is_measured():
    def config(layers, rows):
        return SimpleNamespace(model_config={"fcnet_hiddens": layers}, minibatch_size=rows)

    small, wide, long = config([64, 64], 64), config([512, 512], 64), config([64, 64], 4096)
    assert estimate_size(long) > estimate_size(wide) > estimate_size(small)


def test_a_trial_that_cannot_be_measured_says_why(monkeypatch):
    def fail(task):
        raise probe.WorkerError("RuntimeError: no CUDA")

    monkeypatch.setattr(probe, "_run_workers", fail)
    with pytest.raises(ResourceError, match="no CUDA") as caught:
        measure_on_gpu(SimpleNamespace(replicates=1), parse_space({}), "fast", 1)
    assert caught.value.fix == "resources.trials_per_gpu=1"


def test_the_trials_of_all_seeds_share_what_was_measured(monkeypatch):
    monkeypatch.setattr(probe, "_run_workers", lambda task: [{"gpu": USE}])
    use = measure_on_gpu(SimpleNamespace(replicates=3), parse_space({}), "fast", 1)
    assert use == USE._replace(tensors=9 * GIB)


def test_the_measured_number_is_derived_and_said(request_of, monkeypatch):
    """16 CPUs beside two GPUs: eight trials on each, though its memory has room for ten."""
    monkeypatch.setattr(planning, "measure_on_gpu", lambda *arguments: USE)
    machine = ("cluster.num_cpus=16", "cluster.num_gpus=2", "budget.trials=40")
    plan = planning.make_plan(request_of("resources.trials_per_gpu=auto", *machine))
    assert plan.share_of(Machine(16, 2)).gpus == 1.0, "what it is measured with"
    measured = planning.measure_share(plan)
    assert (measured.request.gpus, measured.build.gpus, measured.share_of(Machine(16, 2)).gpus) == (0.125,) * 3
    assert measured.notes[-1].startswith("resources.trials_per_gpu=8")
    assert str(USE) in measured.notes[-1]
    fixed = planning.make_plan(request_of("resources.trials_per_gpu=4", *machine))
    assert planning.measure_share(fixed) is fixed


def test_no_gpu_is_cut_into_more_than_run_at_once(request_of, monkeypatch):
    monkeypatch.setattr(planning, "measure_on_gpu", lambda *arguments: USE)
    words = ("resources.trials_per_gpu=auto", "cluster.num_cpus=16", "cluster.num_gpus=2")
    plan = planning.make_plan(request_of(*words, "budget.trials=40", "resources.max_concurrent=3"))
    assert planning.measure_share(plan).request.gpus == 0.5, "two on one GPU, one on the other"


def test_nobody_looks_for_gpus_that_are_not_to_be_measured(request_of, monkeypatch):
    plan = planning.make_plan(request_of())
    monkeypatch.setattr(planning, "machine_of", lambda cluster: pytest.fail("nvidia-smi takes its time"))
    assert planning.measure_share(plan) is plan


def test_a_sweep_that_goes_on_is_not_measured_again(request_of, monkeypatch, tmp_path):
    monkeypatch.setattr(planning, "measure_on_gpu", lambda *arguments: USE)
    settings = request_of(
        "resources.trials_per_gpu=auto", "cluster.num_cpus=16", "cluster.num_gpus=2", "budget.trials=40"
    )
    write_settings(tmp_path, planning.measure_share(planning.make_plan(settings)).given_settings)
    monkeypatch.setattr(planning, "measure_on_gpu", lambda *arguments: pytest.fail("it was measured when it began"))
    known = read_settings(tmp_path, for_resume=True)
    typed_again = keep_measured(known, settings)
    assert not check_changes("it", parse_config(known), typed_again)
    for config in (parse_config(known), typed_again):
        assert planning.measure_share(planning.make_plan(config, tmp_path)).request.gpus == 0.125
