"""What a probe measures, what it concludes, and what it says when it cannot."""

from __future__ import annotations

import io
from dataclasses import replace
from types import SimpleNamespace

import pytest
from conftest import compose

from rltune import measuring
from rltune.advice import Row, fitting, fragment, one_trial, overrides, whole_sweep
from rltune.errors import ConfigError, ResourceError, RltuneError
from rltune.measurement import Cell, Measured, Order, same_work
from rltune.measuring import CellFailedError, measure
from rltune.probe import Findings, ProbeConfig, cells, conclusions, describe, from_mapping, progress, run_probe, show

ALGO = {
    "name": "ppo",
    "class": "ray.rllib.algorithms.ppo:PPOConfig",
    "training": {"train_batch_size_per_learner": 2048},
    "env_runners": {"num_env_runners": 0, "num_envs_per_env_runner": 16},
}


@pytest.fixture(scope="module")
def settings():
    """What `sweeps.probe` composes without overrides."""
    from hydra.core.config_store import ConfigStore

    ConfigStore.instance().store("base_probe", ProbeConfig)
    return compose("probe")


@pytest.fixture
def config(settings):
    return from_mapping(settings)


def row(envs, steps_per_s, *, env_runners=0, threads=1, trials=1, **more):
    return Row(Cell(envs, env_runners, threads), trials, steps_per_s, 0.5 * trials, **more)


# -- one trial --------------------------------------------------------------------------------------------------------


def test_the_fastest_combination_is_best_for_one_trial():
    rows = [
        row(1, 2000),
        row(16, 9000),
        row(16, 14000, threads=2),
        row(16, None, env_runners=1, failed="out of memory"),
    ]
    assert one_trial(rows) is rows[2]


def test_a_few_percent_are_not_worth_another_cpu_nor_more_environments():
    rows = [row(16, 9200), row(64, 9900), row(16, 10_000, threads=2), row(4, 8000)]
    assert one_trial(rows) is rows[0]


def test_trials_side_by_side_say_nothing_about_one_trial():
    rows = [row(16, 9000), row(16, 17_000, trials=2)]
    assert one_trial(rows) is rows[0]


def test_without_a_figure_there_is_no_advice():
    assert one_trial([row(16, None)]) is None
    assert whole_sweep([row(16, None, trials=2)], 2) is None


# -- a sweep ----------------------------------------------------------------------------------------------------------


def test_many_narrow_trials_win_where_threads_bring_little():
    rows = [row(16, 9000), row(16, 11_000, threads=4), row(16, 30_000, trials=4)]
    assert whole_sweep(rows, 4) is rows[2]


def test_one_wide_trial_wins_where_narrow_ones_stand_in_each_others_way():
    rows = [row(16, 9000), row(16, 30_000, threads=4), row(16, 20_000, trials=4)]
    assert whole_sweep(rows, 4) is rows[1]


def test_narrow_trials_win_a_draw():
    rows = [row(16, 20_500, threads=2), row(16, 20_000, trials=2)]
    assert whole_sweep(rows, 2) is rows[1]


def test_leaving_cpus_idle_is_no_answer_for_a_sweep():
    rows = [row(16, 9000), row(16, 5000, threads=2), row(16, 7000, trials=2)]
    assert whole_sweep(rows, 2) is rows[2]


def test_on_one_cpu_a_sweep_runs_one_trial_at_a_time():
    rows = [row(1, 2000), row(16, 9000)]
    assert whole_sweep(rows, 1) is rows[1]


@pytest.mark.parametrize(("cpus", "memory_gb", "trials"), [(8, 64, 8), (8, 2.0, 3), (8, 0.1, 1), (1, 64, 1)])
def test_as_many_trials_stand_side_by_side_as_cpus_and_memory_allow(cpus, memory_gb, trials):
    assert fitting(cpus, memory_gb, row(16, 9000)) == trials


def test_a_trial_of_two_cpus_fits_half_as_often():
    assert fitting(8, 64, row(16, 9000, env_runners=1)) == 4


# -- what to type -----------------------------------------------------------------------------------------------------


def test_the_overrides_name_what_differs_from_the_algo_file_and_the_cpus():
    typed = overrides(row(64, 9000, env_runners=1, threads=2), ALGO)
    assert typed == [
        "algo.env_runners.num_envs_per_env_runner=64",
        "algo.env_runners.num_env_runners=1",
        "resources.cpus_per_trial=2",
    ]


def test_a_key_that_the_algo_file_lacks_is_typed_with_a_plus():
    assert overrides(row(4, 1), {"name": "x"})[0] == "+algo.env_runners.num_envs_per_env_runner=4"
    assert "+algo.training.training_intensity=16" in overrides(row(4, 1, settings={"training_intensity": 16}), ALGO)


def test_fewer_trials_than_cpus_are_typed_too():
    assert overrides(row(16, 1, trials=3), ALGO, fits=8)[-1] == "resources.max_concurrent=3"
    assert "max_concurrent" not in " ".join(overrides(row(16, 1, trials=8), ALGO, fits=8))


def test_what_is_typed_composes_to_a_sweep():
    from rltune import config

    typed = overrides(row(64, 1, env_runners=1, settings={"training_intensity": 4.0}), compose("run", "algo=dqn").algo)
    run = config.from_mapping(compose("run", "algo=dqn", *typed))
    assert run.algo["env_runners"]["num_envs_per_env_runner"] == 64
    assert run.algo["training"]["training_intensity"] == 4.0


def test_the_steps_of_each_environment_in_an_update_are_counted_where_there_is_no_replay():
    assert fragment(row(64, 1), ALGO) == 32
    assert fragment(row(64, 1, env_runners=2), ALGO) == 16
    replay = {"training": {"train_batch_size_per_learner": 64, "replay_buffer_config": {}}}
    assert fragment(row(64, 1), replay) is None


# -- the same work ----------------------------------------------------------------------------------------------------


def off_policy(envs, env_runners=0, intensity=None, fragment_length=1):
    return SimpleNamespace(
        training_intensity=intensity,
        total_train_batch_size=64,
        num_envs_per_env_runner=envs,
        num_env_runners=env_runners,
        get_rollout_fragment_length=lambda: fragment_length,
    )


def test_a_wider_vector_keeps_an_off_policy_algorithms_updates_per_step():
    assert same_work(off_policy(4), off_policy(64)) == {"training_intensity": 16.0}
    assert same_work(off_policy(4), off_policy(1)) == {"training_intensity": 16.0}
    assert same_work(off_policy(4), off_policy(4)) == {}


def test_an_intensity_of_ones_own_stays_what_it_is():
    assert same_work(off_policy(4, intensity=8), off_policy(64, intensity=8)) == {}


def test_rllibs_count_of_a_runner_that_does_not_sample_is_made_up_for():
    assert same_work(off_policy(4), off_policy(64, env_runners=1)) == {"training_intensity": 8.0}
    assert same_work(off_policy(4, intensity=8), off_policy(4, 1, intensity=8)) == {"training_intensity": 4.0}


def test_rllib_replays_as_much_for_each_step_with_these_settings():
    from ray.rllib.algorithms.dqn.dqn import calculate_rr_weights

    for envs, env_runners in ((1, 0), (64, 0), (4, 1), (64, 2)):
        cell = off_policy(envs, env_runners)
        cell.training_intensity = same_work(off_policy(4), cell).get("training_intensity")
        rounds, updates = calculate_rr_weights(cell)
        assert updates * 64 / (rounds * envs * max(1, env_runners)) == pytest.approx(16.0)


def test_an_on_policy_algorithm_needs_nothing_besides():
    assert same_work(SimpleNamespace(), SimpleNamespace()) == {}


# -- the grid ---------------------------------------------------------------------------------------------------------


def test_the_grid_begins_with_the_plainest_and_leaves_out_what_the_cpus_do_not_allow(config):
    grid, notes = cells(config, 2)
    assert [(cell.envs, cell.env_runners, cell.threads) for cell in grid[:4]] == [(n, 0, 1) for n in (1, 4, 16, 64)]
    assert max(cell.cpus for cell in grid) == 2
    assert notes == ["1 env runner and 2 threads left out: 3 of 2 CPUs"]
    assert len(cells(config, 16)[0]) == 16


def test_on_one_cpu_only_the_width_is_tried(config):
    grid, notes = cells(config, 1)
    assert len(grid) == 4
    assert len(notes) == 3


def test_shaped_rewards_are_measured_only_as_a_sweep_may_run_them(settings):
    shaped = {**settings, "env": {**settings["env"], "rewards": {"normalise": True}}}
    grid, notes = cells(from_mapping(shaped), 16)
    assert {cell.env_runners for cell in grid} == {0}
    assert notes == ["1 env runner left out: with shaped rewards the trial samples itself"]
    with pytest.raises(ConfigError, match="the true returns would stay there") as refused:
        cells(from_mapping({**shaped, "env_runners": [1, 2]}), 16)
    assert refused.value.fix == "env_runners=[0]"


REFUSED = [
    ({"widths": [0]}, "widths=[0]", "at least 1", "widths=[1,4,16,64]"),
    ({"widths": []}, "widths=[]", "at least 1", "widths="),
    ({"env_runners": [-1, 0]}, "env_runners=[-1,0]", "at least 0", "env_runners=[0,1]"),
    ({"threads": [0, 1]}, "threads=[0,1]", "at least 1", "threads=[1,2]"),
    ({"seconds": 0}, "seconds=0.0", "at least 0.05", "seconds=2"),
    ({"limit_s": float("nan")}, "limit_s=nan", "at least 1", "limit_s=300"),
    ({"engine": "fats"}, "engine=fats", "did you mean 'fast'?", "engine=fast"),
]


@pytest.mark.parametrize(("changes", "what", "allowed", "fix"), REFUSED)
def test_a_wrong_setting_is_refused_in_three_parts(settings, changes, what, allowed, fix):
    with pytest.raises(ConfigError) as refused:
        from_mapping({**settings, **changes})
    assert refused.value.what.startswith(what)
    assert allowed in refused.value.allowed
    assert refused.value.fix.startswith(fix)


def test_a_grid_of_which_nothing_fits_is_refused(config):
    with pytest.raises(ResourceError) as refused:
        cells(replace(config, threads=[64]), 2)
    assert refused.value.what == "env_runners=0 with threads=64 needs 64 CPUs"
    assert refused.value.allowed == "at most 2 here"


# -- a whole probe, with made-up figures ------------------------------------------------------------------------------


def made_up(orders):
    """A machine on which environments pay and a second thread does not; two trials share it almost perfectly."""
    cell = orders[0].cell
    if cell.envs == 64:
        raise CellFailedError("not done after 80 s")
    rate = 1000.0 * cell.envs * (1.05 if cell.threads > 1 else 1.0) * (0.95 if len(orders) > 1 else 1.0)
    return [Measured(rate, 0.5, {}, "the fast engine does not serve clowns") for _ in orders]


@pytest.fixture
def machine(monkeypatch):
    monkeypatch.setattr("rltune.probe.available_cpus", lambda: 2)
    monkeypatch.setattr("rltune.probe.total_gb", lambda: 16.0)
    monkeypatch.setattr("rltune.probe.measure", made_up)
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))


@pytest.mark.usefixtures("machine")
def test_a_probe_shows_its_table_and_what_to_type(config):
    said, out = [], io.StringIO()
    findings = run_probe(config, said.append)
    show(findings, out)
    text = out.getvalue()
    assert said[0] == "1 of 12: 1 env, 1 thread"
    assert "side by side: 2 x 16 envs, 1 thread" in said
    assert (findings.rows[-1].trials, findings.rows[-1].steps_per_s) == (2, 30_400)
    assert "\x1b" not in text
    assert "not done after 80 s" in text
    assert "note: stock RLlib trains this one, because the fast engine does not serve clowns" in text
    assert "note: 1 env runner and 2 threads left out: 3 of 2 CPUs" in text
    assert text.splitlines()[-4:] == [
        "one trial   16 envs, 1 thread: 16k env steps/s",
        "            algo.env_runners.num_envs_per_env_runner=16 resources.cpus_per_trial=1",
        "a sweep     2 trials at once, each 16 envs, 1 thread: 30.4k env steps/s together "
        "(1 trial of 2 CPUs: 16.8k env steps/s)",
        "            algo.env_runners.num_envs_per_env_runner=16 resources.cpus_per_trial=1",
    ]


@pytest.mark.usefixtures("machine")
def test_another_width_than_the_algo_files_comes_with_its_price(config):
    findings = run_probe(replace(config, widths=[1, 4]))
    assert "an update sees 512 steps of each" in conclusions(findings)[-1]


@pytest.mark.usefixtures("machine")
def test_a_busy_machine_is_named(config, monkeypatch):
    monkeypatch.setattr("os.getloadavg", lambda: (5.0, 0.0, 0.0))
    assert "busy (load 5.0 on 2 CPUs)" in " ".join(run_probe(config).notes)


@pytest.mark.usefixtures("machine")
def test_time_that_is_spent_ends_the_grid_but_not_the_comparison(config, monkeypatch):
    clock = iter(range(0, 10_000, 100))
    monkeypatch.setattr("time.monotonic", lambda: float(next(clock)))
    findings = run_probe(config)
    assert any("limit_s=300 is spent: 9 combinations left out" in note for note in findings.notes)
    assert findings.rows[-1].cell.threads == 2 or findings.rows[-1].trials == 2


@pytest.mark.usefixtures("machine")
def test_an_interrupted_probe_keeps_what_it_has(config, monkeypatch):
    def interrupted(orders):
        if orders[0].cell.envs == 16:
            raise KeyboardInterrupt
        return made_up(orders)

    monkeypatch.setattr("rltune.probe.measure", interrupted)
    findings = run_probe(config)
    assert findings.interrupted
    assert [row.cell.envs for row in findings.rows] == [1, 4]


@pytest.mark.usefixtures("machine")
def test_a_probe_without_a_figure_says_why(config, monkeypatch):
    def fail(orders):
        raise CellFailedError("MemoryError: no room")

    monkeypatch.setattr("rltune.probe.measure", fail)
    with pytest.raises(RltuneError, match="nothing could be measured: MemoryError: no room"):
        run_probe(config)


def test_an_environment_that_does_not_exist_is_refused_before_anything_is_measured(settings):
    wrong = from_mapping({**settings, "env": {"name": "x", "id": "CartPol-v1"}})
    with pytest.raises(ConfigError, match="CartPole"):
        run_probe(wrong, lambda _: pytest.fail("nothing is measured"))


def test_progress_goes_line_by_line_where_nobody_watches():
    out = io.StringIO()
    with progress(out) as say:
        say("1 of 12: 1 env, 1 thread")
    assert out.getvalue() == "1 of 12: 1 env, 1 thread\n"


def test_a_combination_is_described_in_words():
    assert describe(Cell(1, 0, 1)) == "1 env, 1 thread"
    assert describe(Cell(16, 2, 2)) == "16 envs, in each of 2 env runners, 2 threads"


# -- real processes ---------------------------------------------------------------------------------------------------


def order(settings, cell, seconds=0.1, **training):
    algo = from_mapping(settings).algo
    small = {"train_batch_size_per_learner": 128, "minibatch_size": 64, "num_epochs": 1, **training}
    spec = {"id": "CartPole-v1", "kwargs": {}, "wrappers": []}
    return Order({**algo, "training": {**algo["training"], **small}}, spec, "auto", "fast", cell, seconds)


def test_an_order_survives_its_way_to_the_process(settings):
    sent = order(settings, Cell(4, 1, 2))
    assert Order.from_json(sent.to_json()) == sent
    assert sent.build().algo["env_runners"]["num_envs_per_env_runner"] == 4


def test_a_real_probe_measures_alone_and_side_by_side(settings, monkeypatch):
    monkeypatch.setattr("rltune.probe.available_cpus", lambda: 2)
    algo = order(settings, Cell(2, 0, 1)).algo
    config = from_mapping({**settings, "widths": [2], "env_runners": [0], "threads": [1], "seconds": 0.1})
    findings = run_probe(replace(config, algo=dict(algo)))
    assert isinstance(findings, Findings)
    assert {(row.trials, row.cell.threads) for row in findings.rows} == {(1, 1), (2, 1), (1, 2)}
    for found in findings.rows:
        assert found.failed is None
        assert found.steps_per_s > 100
        assert 0.05 * found.trials < found.memory_gb < 5
        assert found.stock is None


def test_what_the_network_cannot_do_is_refused_in_the_process_and_told_here(settings):
    wrong = order(settings, Cell(1, 0, 1), vf_share=1)
    with pytest.raises(RltuneError) as refused:
        measure([wrong])
    assert "vf_share" in refused.value.what
    assert refused.value.fix


def test_a_process_that_is_not_done_in_time_is_ended_and_named(settings, monkeypatch):
    monkeypatch.setattr(measuring, "START_S", -1.0)
    with pytest.raises(CellFailedError, match="not done after 0 s"):
        measure([order(settings, Cell(1, 0, 1))])
