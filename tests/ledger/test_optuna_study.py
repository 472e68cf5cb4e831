"""Optuna's study is rebuilt from the ledger as it was, and samplers see how trials ended."""

from __future__ import annotations

import math
import random
import statistics
from dataclasses import replace

import optuna
import pytest
from optuna.trial import TrialState
from search_driver import PLAIN, Driver, run_some

from rltune.config.criteria import Criteria, parse_constraints
from rltune.records import Report
from rltune.search.sampler_view import tell_as_complete, tell_as_pruned
from rltune.search.space import parse_space

MIXED = parse_space(
    {
        "lr": ["loguniform", 1e-5, 1e-1],
        "hiddens": ["choice", [64, 64], [256, 256], {"wide": [1, 2]}, None],
        "flag": ["choice", True, False],
        "use_lstm": ["choice", False, True],
        "cell": ["when", {"use_lstm": True}, ["choice", 32, 64, 128]],
        "tau": ["when", {"use_lstm": False}, ["one_minus_loguniform", 0.001, 0.1]],
    }
)


def show(driver):
    """What samplers see of the trials."""
    return [
        (t.number, t.state, t.values, t.params, t.distributions, t.intermediate_values, t.system_attrs)
        for t in driver.read()
    ]


def test_samplers_see_states_values_params_and_curves(tmp_path):
    driver = Driver(tmp_path)
    driver.run(curve={10: 1.0, 20: 5.0, 30: 3.0})
    driver.run("PRUNED", curve={10: math.nan, 20: 2.0})
    driver.run("PRUNED", curve={10: 4.0}, diverged=True)
    driver.run("FAIL", curve={10: 6.0})
    driver.propose()
    trials = driver.read()
    assert [trial.state.name for trial in trials] == ["COMPLETE", "PRUNED", "PRUNED", "FAIL", "RUNNING"]
    assert [trial.values for trial in trials] == [[3.0], [2.0], None, None, None], "their scores"
    assert trials[0].intermediate_values == {10: 1.0, 20: 5.0, 30: 3.0}
    assert trials[1].intermediate_values == {20: 2.0}, "without an episode there is no score"
    assert [trial.params for trial in trials] == [record.drawn for record in driver.ledger.trials.records()]


def test_a_long_curve_is_thinned_to_ten_points_and_its_last(tmp_path):
    driver = Driver(tmp_path)
    for points in (10, 11, 20, 99):
        driver.run(curve={step: float(step) for step in range(1, points + 1)})
    curves = [sorted(trial.intermediate_values) for trial in driver.read()]
    assert [len(curve) for curve in curves] == [10, 6, 10, 10]
    assert [curve[-1] for curve in curves] == [10, 11, 20, 99]


@pytest.mark.parametrize("space", [PLAIN, MIXED], ids=["plain", "conditions and lists"])
@pytest.mark.parametrize("view", [tell_as_pruned, tell_as_complete])
def test_a_rebuilt_study_is_the_one_that_was_lost(tmp_path, space, view):
    driver = run_some(Driver(tmp_path, space, view=view), 9)
    driver.propose()
    before = show(driver)
    driver = driver.restart()
    assert show(driver) == before
    driver.study.reopen(driver.ledger.trials.record(0))
    assert show(driver) == before, "no trial twice"


@pytest.mark.parametrize("given", [{}, {"lr": 1e-3, "gamma": 0.9}], ids=["proposed", "warm start"])
def test_a_kill_before_the_ledger_has_a_proposal_costs_none(tmp_path, given):
    driver = run_some(Driver(tmp_path))
    drawn = driver.draw(given).drawn
    driver = driver.restart()
    assert driver.propose(given).drawn == drawn, "the trial's own seed draws the same"


@pytest.mark.slow  # Several searches of each kind.
@pytest.mark.parametrize("kind", ["tpe", "cmaes", "optuna.samplers:NSGAIISampler", "optuna.samplers:QMCSampler"])
def test_a_search_that_is_killed_in_the_middle_of_trials_proposes_the_same(tmp_path, kind):
    """CMA-ES remembers its state in trials, NSGA-II generations in trials and study, QMC a count in the study."""
    args = {"optuna.samplers:NSGAIISampler": {"population_size": 4}, "cmaes": {"n_startup_trials": 2}}.get(kind)
    proposed = []
    for name, every in (("unbroken", 99), ("killed", 2)):
        driver, running = Driver(tmp_path / name, kind=kind, args=args), []
        for number in range(18):
            running.append(driver.propose().number)
            if len(running) == 3:
                ended = running.pop(0)
                driver.report(ended, {10: float(ended % 5)})
                driver.end(ended)
            if number % every == every - 1:
                driver = driver.restart()
        proposed.append([record.params for record in driver.ledger.trials.records()])
    assert proposed[0] == proposed[1]


@pytest.mark.parametrize("end", [{}, {"state": "PRUNED"}, {"state": "FAIL"}], ids=["whole", "stopped", "failed"])
def test_a_kill_between_the_ledgers_end_and_optunas_is_made_up(tmp_path, end):
    whole = run_some(Driver(tmp_path / "whole"), 6)
    driver = run_some(Driver(tmp_path / "killed"), 6)
    whole.run(**end)
    driver.run(**end, tell=False)
    assert driver.read()[-1].state == TrialState.RUNNING
    assert show(driver.restart()) == show(whole)


def test_trials_that_run_stay_running_and_can_be_told_later(tmp_path):
    driver = run_some(Driver(tmp_path))
    first, second = driver.propose(), driver.propose()
    driver = driver.restart()
    driver.report(second.number, {10: 3.0})
    driver.end(second.number)
    driver = driver.restart()
    driver.report(first.number, {10: 2.0})
    driver.end(first.number)
    assert [trial.value for trial in driver.read()[-2:]] == [2.0, 3.0]


# -- what samplers see -----------------------------------------------------------------------------------------------


def test_a_diverged_trial_ranks_below_a_stopped_one_in_tpe(tmp_path):
    """Optuna's own split into good and bad trials, of the version that is installed."""
    from optuna.samplers._tpe.sampler import _split_trials

    driver = Driver(tmp_path, kind="random")
    driver.run("PRUNED", curve={10: 90.0, 20: 95.0}, diverged=True)
    driver.run("PRUNED", curve={10: -50.0})
    driver.run(curve={10: -99.0, 20: -98.0})
    driver.run("FAIL", curve={10: 99.0})
    seen = [trial for trial in driver.read() if trial.state != TrialState.FAIL]
    ranks = [[trial.number for trial in _split_trials(driver.study._study, seen, n)[0]] for n in (1, 2, 3)]
    assert ranks == [[2], [1, 2], [0, 1, 2]]


def count_high(folder, kind, bad, proposals=10, **options):
    """How many proposals lie above 1e-3: the higher the better, but from there on trials ended badly."""
    driver = Driver(folder, parse_space({"lr": ["loguniform", 1e-5, 1e-1]}), kind, **options)
    steps = random.Random(3).sample(range(13), 13)
    for step in steps:
        rate = 10 ** (-4.9 + 0.3 * step)
        driver.run(**({} if rate < 1e-3 else bad), curve={10: float(step)}, given={"lr": rate})
    are_high = [driver.run("FAIL").params["lr"] > 1e-3 for _ in range(proposals)]
    driver.close()
    return sum(are_high)


BAD = {"diverged": {"state": "PRUNED", "diverged": True}, "stopped": {"state": "PRUNED"}}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
def test_tpe_turns_away_from_where_trials_ended_badly(tmp_path, bad):
    turned = count_high(tmp_path / "seen", "tpe", bad)
    unseen = count_high(tmp_path / "unseen", "tpe", {"state": "FAIL"})
    assert turned <= 3
    assert unseen > turned, "of failed trials a sampler is told nothing"


GP = "optuna.samplers:GPSampler"


@pytest.mark.slow
def test_a_gp_turns_away_from_where_trials_diverged(tmp_path):
    """With TPE's view, it goes on to climb to where all diverge."""
    args = {"n_startup_trials": 4}
    turned = count_high(tmp_path / "seen", GP, BAD["diverged"], 4, args=args)
    unseen = count_high(tmp_path / "unseen", GP, BAD["diverged"], 4, args=args, view=tell_as_pruned)

    assert (turned, unseen) == (0, 4)


def test_lowest_value_told_is_that_of_the_study_after_a_restart(tmp_path):
    driver = Driver(tmp_path, view=tell_as_complete)
    for curve in ({10: 5.0}, {10: -30.0}, {10: 9.0}):
        driver.run(curve=curve)
    driver = driver.restart()
    driver.run("PRUNED", curve={10: 50.0}, diverged=True)
    assert driver.read()[-1].value == -30.0


def test_a_study_made_again_tells_in_the_order_in_which_trials_ended(tmp_path):
    """A diverged trial has the lowest value that was known by then."""
    driver = Driver(tmp_path, view=tell_as_complete)
    for _ in range(3):
        driver.propose()
    for number, objective, facts in ((2, 8.0, {}), (0, 50.0, {"diverged": True}), (1, -70.0, {})):
        driver.report(number, {10: objective})
        driver.end(number, "PRUNED" if facts else "COMPLETE", **facts)
    before = show(driver)
    assert [trial.value for trial in driver.read()] == [8.0, -70.0, 8.0]
    assert show(driver.restart()) == before


def test_infinite_reports_do_not_end_the_sweep(tmp_path):
    driver = Driver(tmp_path, view=tell_as_complete)
    driver.run(curve={10: -math.inf, 20: 3.0})
    driver.run("PRUNED", curve={10: 2.0, 20: -math.inf})
    driver.run("PRUNED", curve={10: -math.inf})
    before = [trial.values for trial in driver.read()]
    assert before == [[3.0], [2.0], [2.0]]
    assert [trial.values for trial in driver.restart().read()] == before


class Spy(optuna.samplers.RandomSampler):
    """Notes which trials it is shown."""

    def __init__(self):
        super().__init__(seed=0)
        self.seen = []

    def infer_relative_search_space(self, study, trial):
        self.seen = [(one.state.name, one.value, one.params["lr"]) for one in study.get_trials() if one.params]
        return {}


def test_earlier_sweeps_are_shown_to_the_sampler_and_to_nobody_else(tmp_path):
    """Also to a resumed one's; no number of this sweep's trials changes."""
    first = run_some(Driver(tmp_path / "first"), 3)
    earlier = [replace(one, number=number + 7) for number, one in enumerate(first.ledger.trials.records())]
    first.close()
    driver = Driver(tmp_path / "second", earlier=earlier)
    for num_own in range(2):
        spy = Spy()
        driver.study.propose({}, spy, PLAIN.draw)
        assert [state for state, *_ in spy.seen] == ["COMPLETE", "PRUNED", "PRUNED", *["COMPLETE"] * num_own]
        assert [rate for *_, rate in spy.seen[:3]] == [one.params["lr"] for one in earlier]
        driver = driver.restart()
        driver.run()
    assert [record.number for record in driver.ledger.trials.records()] == [0, 1]
    assert len(driver.read()) == 2


BOUND = Criteria(parse_constraints({"train_s": "< 60", "loss": "< 1"}), env_steps=20)


def run_bounded(driver):
    """Trials on both sides of a bound, stopped and diverged ones among them, and one that was never measured."""
    driver.ledger.judge_by(BOUND)
    for train_s, end in ((70.0, {}), (50.0, {}), (40.0, {"state": "PRUNED"}), (60.0, {"diverged": True}), (None, {})):
        record = driver.propose()
        curve = {10: 1.0} if end.get("state") == "PRUNED" else {10: 1.0, 20: 2.0}
        for step, worth in curve.items():
            seconds = {} if train_s is None else {"train_s": train_s}
            numbers = {} if train_s is None else {"loss": 0.25}
            driver.ledger.trials.add_report(Report(record.number, step, worth, numbers), **seconds)
        driver.end(record.number, **{"state": "PRUNED" if "diverged" in end else "COMPLETE", **end})
    return driver


def constraints_of(driver):
    return [dict(trial.constraints) for trial in driver.read()]


def test_optuna_knows_by_how_much_a_trial_breaks_a_bound(tmp_path):
    driver = run_bounded(Driver(tmp_path))
    kept = {"loss": -0.75}
    assert constraints_of(driver) == [
        {"train_s": 10.0, **kept},
        {"train_s": -10.0, **kept},
        {"train_s": 20.0, **kept},
        {"train_s": 5e-324, **kept},
        {"train_s": -60.0, "loss": 1.0},
    ], "a stopped one's seconds are extrapolated, and what stands at the bound breaks it"
    assert [trial.state.name for trial in driver.read()] == ["COMPLETE", "COMPLETE", "PRUNED", "PRUNED", "COMPLETE"]
    assert driver.study._study.best_trial.number == 1
    assert show(driver.restart()) == show(driver)


@pytest.mark.parametrize("kind", ["TPESampler", pytest.param("GPSampler", marks=pytest.mark.slow)])
def test_a_sampler_turns_to_what_keeps_the_bound(tmp_path, kind):
    """The larger the learning rate, the better, and the longer it trains: the best that keeps the bound is 1e-3."""
    space = parse_space({"lr": ["loguniform", 1e-5, 1e-1]})
    driver = Driver(tmp_path, space, f"optuna.samplers:{kind}", {"n_startup_trials": 6})
    driver.ledger.judge_by(Criteria(parse_constraints({"train_s": "<= 60"}), env_steps=20))
    tried = []
    for _ in range(12):
        record = driver.propose()
        tried.append(math.log10(record.params["lr"]))
        driver.ledger.trials.add_report(Report(record.number, 20, tried[-1], {}), train_s=60 + 20 * (tried[-1] + 3))
        driver.end(record.number)
    assert abs(statistics.median(tried[-4:]) + 3) < 0.6, "unbound it would be -1.4 and more"


@pytest.mark.parametrize("kind", ["tpe", "cmaes", "qmc"])
def test_a_trial_tried_again_costs_no_other_trial_its_place(tmp_path, kind):
    drivers = [Driver(tmp_path / name, kind=kind) for name in ("retried", "unbroken")]
    for driver in drivers:
        for number in range(8):
            driver.run("FAIL" if number == 3 else "COMPLETE")
    retried, unbroken = drivers
    retried.ledger.add_request("retry", {"trials": [3], "certify": []}, "maria@host")
    retried.ledger.reopen_failed(retried.ledger.read_requests()[0])
    retried.study.reopen(retried.ledger.trials.record(3))
    assert retried.read()[3].state == TrialState.RUNNING
    retried.end(3, "FAIL")
    assert show(retried) == show(unbroken)
    assert retried.propose().params == unbroken.propose().params
