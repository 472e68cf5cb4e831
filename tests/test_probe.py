"""What a probe measures, in which order, what it recommends, and what it says if it cannot measure."""

from __future__ import annotations

import contextlib
import io
import os
import re
from dataclasses import replace
from multiprocessing.connection import Pipe
from types import SimpleNamespace

import pytest
from composing import compose
from fake_gpus import GIB, FakeCuda
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.ppo import PPOConfig

from rltune import probe
from rltune.cluster.resources import Machine
from rltune.config.changes import check_changes, keep_measured
from rltune.config.schema import EnvConfig
from rltune.config.settings_file import read_settings, write_settings
from rltune.config.validation import parse_config
from rltune.driver import plan as planning
from rltune.driver.warm_starts import widen_ranges
from rltune.errors import ConfigError, ResourceError, RltuneError
from rltune.probe import (
    Combination,
    GpuUse,
    Measurement,
    ProbeConfig,
    ProbeResult,
    build_combination,
    choose_for_one_trial,
    choose_for_sweep,
    choose_trials,
    count_fitting,
    find_largest,
    keep_work,
    list_combinations,
    measure_on_gpu,
    parse_probe_config,
    print_result,
    read_gpu_use,
    run_probe,
    write_overrides,
)
from rltune.search.space import parse_space
from rltune.trial.gpu_memory import cap_memory

PPO = {"name": "ppo", "training": {}, "env_runners": {"num_env_runners": 0, "num_envs_per_env_runner": 16}}


@pytest.fixture(scope="module")
def settings():
    """What `sweeps.probe` composes without overrides."""
    from hydra.core.config_store import ConfigStore

    ConfigStore.instance().store("base_probe", ProbeConfig)
    return compose("probe")


@pytest.fixture
def config(settings):
    return parse_probe_config(settings)


def measure(config, combination):
    """A machine on which environments pay and a second thread does not; two trials share it almost perfectly."""
    if combination.envs == 64:
        return Measurement(combination, failed="not done in time")
    rate = 1000.0 * combination.envs * (1.05 if combination.threads > 1 else 1.0)
    return Measurement(combination, rate * (1.9 if combination.trials > 1 else 1.0), 0.5 * combination.trials)


@pytest.fixture
def machine(monkeypatch):
    monkeypatch.setattr(probe, "available_cpus", lambda: 2)
    monkeypatch.setattr(probe, "total_gb", lambda: 16.0)
    monkeypatch.setattr(probe, "measure", measure)
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))
    monkeypatch.setattr(probe, "local_machine", lambda: Machine(2, 0))


def numbers_in(text):
    return [float(number) for number in re.findall(r"\d+(?:\.\d+)?", text)]


# -- what is measured -------------------------------------------------------------------


def test_the_plainest_comes_first_and_only_what_the_cpus_allow(config):
    combinations = list_combinations(config, 2)
    assert combinations[:4] == [Combination(n, 0, 1) for n in (1, 4, 16, 64)]
    assert max(combination.cpus for combination in combinations) == 2
    assert len(list_combinations(replace(config, env_runners=[0, 1]), 16)) == 16


@pytest.mark.parametrize(
    ("cpus", "env_runners"), [(1, {0}), (2, {0, 1}), (3, {0, 1, 2}), (4, {0, 1, 2}), (16, {0, 1, 2, 4, 8})]
)
def test_env_runners_are_doubled_while_a_cpu_is_left(config, cpus, env_runners):
    assert {combination.env_runners for combination in list_combinations(config, cpus)} == env_runners


def test_on_one_cpu_only_the_width_is_tried(config):
    assert len(list_combinations(config, 1)) == 4


def test_shaped_rewards_are_measured_only_as_a_sweep_may_run(settings):
    shaped = {**settings, "env": {**settings["env"], "rewards": {"normalise": True}}}
    for env_runners in (None, [0, 1]):
        combinations = list_combinations(parse_probe_config({**shaped, "env_runners": env_runners}), 16)
        assert {combination.env_runners for combination in combinations} == {0}
    with pytest.raises(ResourceError) as refused:
        list_combinations(parse_probe_config({**shaped, "env_runners": [1, 2]}), 16)
    assert refused.value.key == "env_runners"
    assert "env_runners=[0]" in refused.value.fix


REFUSED = [
    ({"widths": [0]}, "widths=[0]", "at least 1", "widths=[1,4,16,64]"),
    ({"widths": []}, "widths=[]", "at least 1", "widths="),
    ({"env_runners": [-1, 0]}, "env_runners=[-1,0]", "at least 0", "env_runners=[0,1]"),
    ({"threads": [0, 1]}, "threads=[0,1]", "at least 1", "threads=[1,2]"),
    ({"seconds": 0}, "seconds=0.0", "at least 0.05", "seconds=2"),
    ({"limit_s": float("nan")}, "limit_s=nan", "at least 1", "limit_s=300"),
    ({"engine": "fats"}, "engine=fats", "'fast'", "engine=fast"),
]


@pytest.mark.parametrize(("changes", "what", "allowed", "fix"), REFUSED)
def test_a_wrong_setting_is_refused_in_three_parts(settings, changes, what, allowed, fix):
    with pytest.raises(ConfigError) as refused:
        parse_probe_config({**settings, **changes})
    assert refused.value.what.startswith(what)
    assert allowed in refused.value.allowed
    assert refused.value.fix.startswith(fix)


def test_a_grid_of_which_nothing_fits_is_refused(config):
    with pytest.raises(ResourceError) as refused:
        list_combinations(replace(config, threads=[64]), 2)
    assert refused.value.key == "env_runners"
    assert "threads=[64]" in refused.value.what
    assert numbers_in(refused.value.allowed)[0] == 2, "the CPUs of this machine"
    assert refused.value.fix == "env_runners=[0] threads=[1]"


@pytest.mark.usefixtures("machine")
def test_a_probe_goes_on_from_alone_to_side_by_side(config):
    lines = []
    result = run_probe(config, lines.append)
    assert numbers_in(lines[0]) == [1, 12, 1, 1], "the first of 12, with an env and a thread"
    assert "1,000" in lines[1]
    assert numbers_in(lines[-2]) == [2, 16, 1], "two trials, each with 16 envs and a thread"
    assert "30.4k" in lines[-1]
    assert result.measurements[-1] == Measurement(Combination(16, 0, 1, trials=2), 30_400, 1.0)


@pytest.mark.usefixtures("machine")
def test_a_thread_for_every_cpu_is_measured_where_not_listed(config):
    result = run_probe(replace(config, threads=[1], env_runners=[0]))
    assert [measured.combination for measured in result.measurements[-2:]] == [
        Combination(16, 0, 1, trials=2),
        Combination(16, 0, 2),
    ]


@pytest.mark.usefixtures("machine")
def test_a_busy_machine_is_named(config, monkeypatch):
    assert not any("busy" in note for note in run_probe(config).notes)
    monkeypatch.setattr("os.getloadavg", lambda: (5.0, 0.0, 0.0))
    assert any(numbers_in(note) == [5.0] for note in run_probe(config).notes)


@pytest.mark.usefixtures("machine")
def test_time_that_is_spent_ends_the_grid_not_the_comparison(config, monkeypatch):
    clock = iter(range(0, 10_000, 100))
    monkeypatch.setattr("time.monotonic", lambda: float(next(clock)))
    result = run_probe(config)
    assert [numbers_in(note) for note in result.notes if note.startswith("limit_s=300")] == [[300, 9]]
    assert [measured.combination.trials for measured in result.measurements[-2:]] == [2, 1]


@pytest.mark.usefixtures("machine")
def test_an_interrupted_probe_keeps_what_it_has(config, monkeypatch):
    def interrupted(config, combination):
        if combination.envs == 16:
            raise KeyboardInterrupt
        return measure(config, combination)

    monkeypatch.setattr(probe, "measure", interrupted)
    result = run_probe(config)
    assert result.interrupted
    assert [measured.combination.envs for measured in result.measurements] == [1, 4]
    with pytest.raises(KeyboardInterrupt):
        run_probe(replace(config, widths=[16]))


@pytest.mark.usefixtures("machine")
def test_a_probe_without_a_figure_says_why(config, monkeypatch):
    monkeypatch.setattr(probe, "measure", lambda config, tried: Measurement(tried, failed="MemoryError: no room"))
    with pytest.raises(RltuneError, match="MemoryError"):
        run_probe(config)


def test_an_unknown_environment_is_refused_before_measuring(settings):
    wrong = parse_probe_config({**settings, "env": {"name": "x", "id": "CartPol-v1"}})
    with pytest.raises(ConfigError, match="CartPole"):
        run_probe(wrong, lambda _: pytest.fail("nothing is measured"))


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
    # A second thread may be worth its CPU or not, as the machine is: what is advised is what was measured.
    advised = re.search(r"^one trial   2 envs, (\d+) threads?: [\d,.]+k? env steps/s$", typed.out, re.M)
    assert advised, typed.out
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
    dqn = parse_probe_config(compose("probe", "algo=dqn"))
    build, settings = build_combination(dqn, Combination(64, 0, 1))
    assert build.algo["env_runners"]["num_envs_per_env_runner"] == 64
    assert build.algo["training"]["training_intensity"] == settings["training_intensity"]
    assert build.algo["training"]["lr"] == dqn.algo["training"]["lr"]
    assert build_combination(config, Combination(64, 1, 1))[1] == {}


def test_a_worker_that_is_not_done_in_time_is_ended_and_named(config, monkeypatch):
    monkeypatch.setattr(probe, "START_S", -60.0)
    assert probe.measure(config, Combination(1, 0, 1)).failed.count("seconds=") == 1


def test_a_worker_that_dies_is_named(config, monkeypatch):
    monkeypatch.setattr("sys.executable", "/bin/true")
    assert probe.measure(config, Combination(1, 0, 1, trials=2)).failed


@pytest.mark.parametrize("error", [ConfigError("lr=-1", "above 0", "lr=0.1"), ValueError("no map\nof level 2")])
def test_what_a_worker_cannot_do_reaches_the_driver(config, monkeypatch, error):
    def fail(*_):
        raise error

    ours, theirs = Pipe()
    monkeypatch.setattr(probe, "_work", fail)
    monkeypatch.setattr("sys.argv", ["worker", str(os.dup(theirs.fileno()))])
    ours.send("a task")
    probe.main()
    monkeypatch.setattr(probe, "_start_worker", lambda *_: contextlib.nullcontext(ours))
    if isinstance(error, ConfigError):
        with pytest.raises(ConfigError, match="lr=-1") as refused:
            probe.measure(config, Combination(1, 0, 1))
        assert refused.value.fix == "lr=0.1"
    else:
        assert probe.measure(config, Combination(1, 0, 1)).failed.startswith("ValueError:")


# -- what is best, and what to type -----------------------------------------------------


def result(envs, steps_per_s, *, env_runners=0, threads=1, trials=1, **more):
    return Measurement(Combination(envs, env_runners, threads, trials), steps_per_s, 0.5 * trials, **more)


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


SWEEPS = {
    "threads bring little": (4, [result(16, 9000), result(16, 11_000, threads=4), result(16, 30_000, trials=4)], 2),
    "trials slow each other": (4, [result(16, 9000), result(16, 30_000, threads=4), result(16, 20_000, trials=4)], 1),
    "narrow trials win a draw": (2, [result(16, 20_500, threads=2), result(16, 20_000, trials=2)], 1),
    "no CPU is idle": (2, [result(16, 9000), result(16, 5000, threads=2), result(16, 7000, trials=2)], 2),
    "one CPU": (1, [result(1, 2000), result(16, 9000)], 1),
}


@pytest.mark.parametrize(("cpus", "results", "best"), SWEEPS.values(), ids=SWEEPS)
def test_a_sweep_gets_most_steps_over_all_trials(cpus, results, best):
    assert choose_for_sweep(results, cpus) is results[best]


@pytest.mark.parametrize(("cpus", "memory_gb", "trials"), [(8, 64, 8), (8, 2.0, 3), (8, 0.1, 1), (1, 64, 1)])
def test_as_many_trials_fit_as_cpus_and_memory_allow(cpus, memory_gb, trials):
    assert count_fitting(cpus, memory_gb, result(16, 9000)) == trials


def test_a_trial_of_two_cpus_fits_half_as_often():
    assert count_fitting(8, 64, result(16, 9000, env_runners=1)) == 4


def test_overrides_name_the_cpus_and_what_the_algo_file_lacks():
    typed = write_overrides(result(64, 9000, env_runners=1, threads=2), PPO)
    assert typed.split() == [
        "algo.env_runners.num_envs_per_env_runner=64",
        "algo.env_runners.num_env_runners=1",
        "resources.cpus_per_trial=2",
    ]


def test_a_key_that_the_algo_file_lacks_is_typed_with_a_plus():
    assert write_overrides(result(4, 1), {"name": "x"}).startswith("+algo.env_runners.num_envs_per_env_runner=4 ")
    typed = write_overrides(result(4, 1, settings={"training_intensity": 16}), PPO)
    assert "+algo.training.training_intensity=16" in typed


def test_fewer_trials_than_cpus_are_typed_too():
    assert write_overrides(result(16, 1, trials=3), PPO, cpus=8).endswith(" resources.max_concurrent=3")
    assert "max_concurrent" not in write_overrides(result(16, 1, trials=8), PPO, cpus=8)


def test_what_is_typed_composes_to_a_sweep():
    chosen = result(64, 1, env_runners=1, settings={"training_intensity": 4.0})
    typed = write_overrides(chosen, compose("run", "algo=dqn").algo)
    run = parse_config(compose("run", "algo=dqn", *typed.split()))
    assert run.algo["env_runners"]["num_envs_per_env_runner"] == 64
    assert run.algo["training"]["training_intensity"] == 4.0


def test_a_combination_is_described_in_words():
    assert str(Combination(1, 0, 1)) == "1 env, 1 thread"
    assert numbers_in(str(Combination(16, 1, 1))) == [16, 1, 1]
    assert numbers_in(str(Combination(16, 2, 3))) == [16, 2, 3]
    assert "each of 2" in str(Combination(16, 2, 3)), "as many envs in every runner, not in all together"


CONFIG = ProbeConfig("fast", PPO, EnvConfig(name="cartpole", id="CartPole-v1"), [16, 64], [0], [1, 2], 2.0, 300.0)
NOTE, TOO_LATE = "limit_s=300 is spent", "not done in time"


def print_of(*results, notes=(), config=CONFIG):
    out = io.StringIO()
    print_result(ProbeResult(config, 2, results, tuple(notes)), out)
    return out.getvalue()


def test_the_table_names_the_measurements_and_what_to_type():
    text = print_of(
        result(16, 16_000.0),
        result(64, 0.0, failed=TOO_LATE),
        result(16, 16_800.0, threads=2),
        result(16, 30_400.0, trials=2),
        notes=[NOTE],
    )
    lines = text.splitlines()
    assert {"ppo", "CartPole-v1,", "engine=fast,"} <= set(lines[0].split())
    assert [line.split()[:6] for line in lines[2:6]] == [
        ["1", "16", "0", "1", "16k", "0.50"],
        ["1", "64", "0", "1", "failed", "-"],
        ["1", "16", "0", "2", "16.8k", "0.50"],
        ["2", "16", "0", "1", "30.4k", "1.00"],
    ]
    note, failed, for_trial, typed_for_trial, for_sweep, typed_for_sweep = lines[6:]
    assert note.endswith(NOTE)
    assert failed.endswith(TOO_LATE)
    assert for_trial.startswith("one trial ")
    assert "16k" in for_trial
    assert for_sweep.startswith("a sweep ")
    assert "30.4k" in for_sweep
    typed = ["algo.env_runners.num_envs_per_env_runner=16", "resources.cpus_per_trial=1"]
    assert typed_for_trial.split() == typed_for_sweep.split() == typed


def test_the_table_fits_into_eighty_columns():
    wide = Measurement(Combination(1024, 128, 128, trials=128), 999_000.0, 999.99)
    assert max(len(line) for line in print_of(wide, result(16, 1.0, threads=2)).splitlines()[1:4]) <= 80


def test_why_stock_rllib_trained_it_is_said_once():
    text = print_of(result(16, 9.0, fallback="clowns"), result(64, 9.0, fallback="clowns"))
    assert text.count("clowns") == 1


def test_another_width_than_the_algo_files_comes_with_a_warning():
    usual = print_of(result(16, 9000.0)).splitlines()
    assert len(print_of(result(64, 9000.0)).splitlines()) == len(usual) + 1


# -- what a trial takes of a GPU, and how many share one --------------------------------


USE = GpuUse(tensors=3 * GIB, context=GIB // 2, total=40 * GIB)


def test_a_trial_is_measured_at_its_peak_with_cudas_own_memory():
    cuda = FakeCuda()
    cuda.allocate(3 * GIB)
    cuda.reserved -= GIB
    assert read_gpu_use(cuda) == USE
    assert numbers_in(str(USE)) == [4.24, 42.9, 3.22, 0.537, 15]


@pytest.mark.parametrize(
    ("use", "cpus", "trials"),
    [
        (USE, 64, 10),  # 10 x 3.95 GiB
        (USE, 6.5, 6),
        (USE, 0.5, 1),
        (replace(USE, tensors=GIB // 64), 64, 16),
        (replace(USE, tensors=39 * GIB), 64, 1),
    ],
)
def test_memory_cpus_and_sixteen_limit_how_many_share_a_gpu(use, cpus, trials):
    assert choose_trials(use, cpus) == trials


@pytest.mark.parametrize("card", [4 * GIB, 8 * GIB, 40 * GIB])
@pytest.mark.parametrize("tensors", [GIB // 64, 0.3 * GIB, 0.8 * GIB, 3 * GIB])
@pytest.mark.parametrize("context", [0, GIB // 5, 0.9 * GIB])
def test_a_share_holds_what_was_measured_under_its_cap(card, tensors, context):
    use = GpuUse(int(tensors), int(context), card)
    cuda = FakeCuda(card)
    cap_memory(1 / choose_trials(use, 64), cuda)
    cuda.allocate(use.tensors)


def test_the_corner_with_the_widest_net_and_batch_is_measured():
    def config(layers, rows):
        return SimpleNamespace(model_config={"fcnet_hiddens": layers}, minibatch_size=rows)

    small, wide, long = config([64, 64], 64), config([512, 512], 64), config([64, 64], 4096)
    assert find_largest([small, wide, long]) is long
    assert find_largest([small, wide]) is wide


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
    assert use == replace(USE, tensors=9 * GIB)


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(("rate", "typed"), [(9e3, "resources=auto"), (32e3, "resources.trials_per_gpu=2")])
def test_where_there_is_a_gpu_the_best_trial_is_measured_on_it(config, monkeypatch, rate, typed):
    calls, use = [], replace(USE, steps_per_s=rate)

    def measure_on_gpu(build, space, engine, threads, seconds):
        calls.append((build.algo["env_runners"]["num_envs_per_env_runner"], build.gpus, engine, threads, seconds))
        if len(calls) > 1:
            raise ResourceError("resources.trials_per_gpu=auto: no kernel", "", "")
        return use

    monkeypatch.setattr(probe, "measure_on_gpu", measure_on_gpu)
    assert not run_probe(config).notes
    assert not calls
    monkeypatch.setattr(probe, "local_machine", lambda: Machine(2, 1))
    notes = run_probe(config).notes
    assert calls == [(16, 1.0, "fast", 1, 2.0)]
    assert notes[0].endswith(str(use))
    assert notes[1].split()[-1] == typed
    assert any("no kernel" in note for note in run_probe(config).notes)


def test_the_measured_number_is_derived_and_said(request_of, monkeypatch):
    """16 CPUs beside two GPUs: eight trials on each, though its memory has room for ten."""
    monkeypatch.setattr(planning, "measure_on_gpu", lambda *asked: USE)
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
    monkeypatch.setattr(planning, "measure_on_gpu", lambda *asked: USE)
    words = ("resources.trials_per_gpu=auto", "cluster.num_cpus=16", "cluster.num_gpus=2")
    plan = planning.make_plan(request_of(*words, "budget.trials=40", "resources.max_concurrent=3"))
    assert planning.measure_share(plan).request.gpus == 0.5, "two on one GPU, one on the other"


def test_nobody_looks_for_gpus_that_are_not_to_be_measured(request_of, monkeypatch):
    plan = planning.make_plan(request_of())
    monkeypatch.setattr(planning, "machine_of", lambda cluster: pytest.fail("nvidia-smi takes its time"))
    assert planning.measure_share(plan) is plan


def test_a_sweep_that_goes_on_is_not_measured_again(request_of, monkeypatch, tmp_path):
    monkeypatch.setattr(planning, "measure_on_gpu", lambda *asked: USE)
    asked = request_of("resources.trials_per_gpu=auto", "cluster.num_cpus=16", "cluster.num_gpus=2", "budget.trials=40")
    write_settings(tmp_path, planning.measure_share(planning.make_plan(asked)).config)
    monkeypatch.setattr(planning, "measure_on_gpu", lambda *asked: pytest.fail("it was measured when it began"))
    known = read_settings(tmp_path, whole=True)
    typed_again = keep_measured(known, asked)
    assert not check_changes("it", known, widen_ranges(typed_again))
    for config in (parse_config(known), typed_again):
        assert planning.measure_share(planning.make_plan(config, resumed=True)).request.gpus == 0.125
