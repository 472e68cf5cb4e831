"""What a probe measures, in which order, and what it says when it cannot."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from composing import compose

from rltune.cluster.resources import Machine
from rltune.errors import ConfigError, ResourceError, RltuneError
from rltune.probe.gpu import GpuUse
from rltune.probe.probe import ProbeConfig, list_combinations, parse_probe_config, run_probe
from rltune.probe.recommendation import MeasurementResult


@pytest.fixture(scope="module")
def settings():
    """What `sweeps.probe` composes without overrides."""
    from hydra.core.config_store import ConfigStore

    ConfigStore.instance().store("base_probe", ProbeConfig)
    return compose("probe")


@pytest.fixture
def config(settings):
    return parse_probe_config(settings)


def measure(config, combination, trials):
    """A machine on which environments pay and a second thread does not; two trials share it almost perfectly."""
    if combination.envs == 64:
        return MeasurementResult(combination, trials, failed="not done in time")
    rate = 1000.0 * combination.envs * (1.05 if combination.threads > 1 else 1.0) * (1.9 if trials > 1 else 1.0)
    return MeasurementResult(combination, trials, rate, 0.5 * trials)


@pytest.fixture
def machine(monkeypatch):
    monkeypatch.setattr("rltune.probe.probe.available_cpus", lambda: 2)
    monkeypatch.setattr("rltune.probe.probe.total_gb", lambda: 16.0)
    monkeypatch.setattr("rltune.probe.probe.measure", measure)
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))
    monkeypatch.setattr("rltune.probe.probe.local_machine", lambda: Machine(2, 0))


def numbers_in(text):
    return [float(number) for number in re.findall(r"[\d.]+", text)]


def test_the_plainest_comes_first_and_only_what_the_cpus_allow(config):
    combinations, notes = list_combinations(config, 2)
    assert [(one.envs, one.env_runners, one.threads) for one in combinations[:4]] == [(n, 0, 1) for n in (1, 4, 16, 64)]
    assert max(one.cpus for one in combinations) == 2
    assert [numbers_in(note) for note in notes] == [[1, 2, 3, 2]], "env runners, threads, CPUs needed, CPUs here"
    assert len(list_combinations(replace(config, env_runners=[0, 1]), 16)[0]) == 16


@pytest.mark.parametrize(
    ("cpus", "env_runners"), [(1, {0}), (2, {0, 1}), (3, {0, 1, 2}), (4, {0, 1, 2}), (16, {0, 1, 2, 4, 8})]
)
def test_env_runners_are_doubled_while_a_cpu_is_left(config, cpus, env_runners):
    assert {one.env_runners for one in list_combinations(config, cpus)[0]} == env_runners


def test_on_one_cpu_only_the_width_is_tried(config):
    combinations, notes = list_combinations(config, 1)
    assert len(combinations) == 4
    assert [numbers_in(note) for note in notes] == [[0, 2, 2, 1]], "env runners, threads, CPUs needed, CPUs here"


def test_shaped_rewards_are_measured_only_as_a_sweep_may_run(settings):
    shaped = {**settings, "env": {**settings["env"], "rewards": {"normalise": True}}}
    combinations, _ = list_combinations(parse_probe_config(shaped), 16)
    assert {one.env_runners for one in combinations} == {0}
    _, notes = list_combinations(parse_probe_config({**shaped, "env_runners": [0, 1]}), 16)
    assert [numbers_in(note) for note in notes] == [[1, 1], [1, 2]], "every combination with an env runner is left out"
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
    assert numbers_in(refused.value.allowed) == [2], "the CPUs of this machine"
    assert refused.value.fix == "env_runners=[0] threads=[1]"


@pytest.mark.usefixtures("machine")
def test_a_probe_goes_on_from_alone_to_side_by_side(config):
    lines = []
    probe = run_probe(config, lines.append)
    assert numbers_in(lines[0]) == [1, 12, 1, 1], "the first of 12, with an env and a thread"
    assert "1,000" in lines[1]
    assert numbers_in(lines[-2]) == [2, 16, 1], "two trials, each with 16 envs and a thread"
    assert "30.4k" in lines[-1]
    assert (probe.results[-1].trials, probe.results[-1].steps_per_s) == (2, 30_400)


@pytest.mark.usefixtures("machine")
def test_progress_says_how_long_the_rest_will_take(config, monkeypatch):
    clock = iter(range(0, 10_000, 10))
    monkeypatch.setattr("time.monotonic", lambda: float(next(clock)))
    lines = []
    run_probe(config, lines.append)
    assert "3 min 40 s" in lines[2]
    assert numbers_in(lines[2]) == [2, 12, 3, 40, 4, 1], "the second of 12, the time left, 4 envs and a thread"


@pytest.mark.usefixtures("machine")
def test_a_thread_for_every_cpu_is_measured_where_not_listed(config):
    probe = run_probe(replace(config, threads=[1], env_runners=[0]))
    assert [(one.trials, one.combination.threads) for one in probe.results[-2:]] == [(2, 1), (1, 2)]


@pytest.mark.usefixtures("machine")
def test_a_busy_machine_is_named(config, monkeypatch):
    monkeypatch.setattr("os.getloadavg", lambda: (5.0, 0.0, 0.0))
    assert any(numbers_in(note) == [5.0, 2] for note in run_probe(config).notes), "the load and the CPUs"
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))
    assert not any(numbers_in(note) == [0.0, 2] for note in run_probe(config).notes)


@pytest.mark.usefixtures("machine")
def test_time_that_is_spent_ends_the_grid_not_the_comparison(config, monkeypatch):
    clock = iter(range(0, 10_000, 100))
    monkeypatch.setattr("time.monotonic", lambda: float(next(clock)))
    probe = run_probe(config)
    assert [numbers_in(note) for note in probe.notes if note.startswith("limit_s=300")] == [[300, 9]]
    assert [(one.trials, one.combination.threads) for one in probe.results[-2:]] == [(2, 1), (1, 2)]


@pytest.mark.usefixtures("machine")
def test_an_interrupted_probe_keeps_what_it_has(config, monkeypatch):
    def interrupted(config, combination, trials):
        if combination.envs == 16:
            raise KeyboardInterrupt
        return measure(config, combination, trials)

    monkeypatch.setattr("rltune.probe.probe.measure", interrupted)
    probe = run_probe(config)
    assert probe.interrupted
    assert [one.combination.envs for one in probe.results] == [1, 4]
    with pytest.raises(KeyboardInterrupt):
        run_probe(replace(config, widths=[16]))


@pytest.mark.usefixtures("machine")
def test_a_probe_without_a_figure_says_why(config, monkeypatch):
    def fail(config, combination, trials):
        return MeasurementResult(combination, trials, failed="MemoryError: no room")

    monkeypatch.setattr("rltune.probe.probe.measure", fail)
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


@pytest.mark.usefixtures("machine")
def test_where_there_is_a_gpu_the_best_trial_is_measured_on_it(config, monkeypatch):
    asked = []

    def measure_on_gpu(build, space, engine, threads, seconds):
        asked.append((build.algo["env_runners"]["num_envs_per_env_runner"], build.gpus, engine, threads, seconds))
        if len(asked) > 1:
            raise ResourceError("resources.trials_per_gpu=auto: no kernel", "", "")
        return GpuUse(1, 2, 3)

    monkeypatch.setattr("rltune.probe.probe.measure_on_gpu", measure_on_gpu)
    assert run_probe(config).on_gpu is None
    assert not asked
    monkeypatch.setattr("rltune.probe.probe.local_machine", lambda: Machine(2, 1))
    probe = run_probe(config)
    assert (asked, probe.on_gpu, probe.gpus) == ([(16, 1.0, "fast", 1, 2.0)], GpuUse(1, 2, 3), 1)
    assert any("no kernel" in note for note in run_probe(config).notes)
