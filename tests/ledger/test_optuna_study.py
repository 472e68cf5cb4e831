"""Optuna's study agrees with the ledger after kills, restored copies and damage, and samplers see how trials ended."""

from __future__ import annotations

import contextlib
import math
import random
import shutil
import sqlite3
import statistics
from dataclasses import replace

import optuna
import pytest
from optuna.trial import TrialState
from search_driver import PLAIN, Driver, run_some

from rltune.config.criteria import Criteria, parse_constraints
from rltune.errors import StudyError
from rltune.ledger.ledger import Ledger
from rltune.ledger.optuna_study import open_optuna_study
from rltune.records import Report
from rltune.search.space import parse_space
from rltune.search.views import tell_as_complete, tell_as_pruned

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


class Killed(Exception):
    """The driver dies here."""


def show(trials):
    """What a person sees of trials, but not when they were put in; a running one may be described already."""
    return [
        (
            t.number,
            t.state,
            t.values,
            t.params,
            t.distributions,
            t.intermediate_values,
            t.state.is_finished() and t.user_attrs,
        )
        for t in trials
    ]


def agree(driver):
    """Whether the study has the ledger's trials, and at most one more, which the next proposal takes."""
    records, trials = driver.ledger.trials.records(), driver.read()
    assert [trial.number for trial in trials] == list(range(len(trials)))
    assert len(records) == len(trials)
    for record, trial in zip(records, trials, strict=True):
        assert trial.params == record.drawn
        assert (trial.state == TrialState.RUNNING) == (record.state == "RUNNING")
    return True


def test_a_plain_study_shows_states_values_params_and_curves(tmp_path):
    driver = Driver(tmp_path)
    driver.run(curve={10: 1.0, 20: 5.0, 30: 3.0})
    driver.run("PRUNED", curve={10: math.nan, 20: 2.0})
    driver.run("PRUNED", curve={10: 4.0}, diverged=True)
    driver.run("FAIL", curve={10: 6.0})
    driver.propose()
    trials = driver.read()
    assert [trial.state.name for trial in trials] == ["COMPLETE", "PRUNED", "PRUNED", "FAIL", "RUNNING"]
    assert [trial.values for trial in trials] == [[3.0], [2.0], None, None, None], "their scores"
    assert trials[0].intermediate_values == {10: 1.0, 20: 3.0, 30: 3.0}
    assert trials[1].intermediate_values == {20: 2.0}, "without an episode there is no score"
    records = driver.ledger.trials.records()
    assert [trial.params for trial in trials] == [record.drawn for record in records]
    assert trials[0].user_attrs == {"params": records[0].params, "seeds": [7]}
    assert trials[3].user_attrs["stop_reason"] == "why"
    study = optuna.load_study(study_name="sweep", storage=driver.url)
    assert study.best_trial.number == 0
    assert study.direction == optuna.study.StudyDirection.MAXIMIZE


def test_a_long_curve_is_thinned_to_ten_points_and_its_last(tmp_path):
    driver = Driver(tmp_path)
    for points in (10, 11, 20, 99):
        driver.run(curve={step: float(step) for step in range(1, points + 1)})
    curves = [sorted(trial.intermediate_values) for trial in driver.read()]
    assert [len(curve) for curve in curves] == [10, 6, 10, 10]
    assert [curve[-1] for curve in curves] == [10, 11, 20, 99]


@pytest.mark.parametrize("space", [PLAIN, MIXED], ids=["plain", "conditions and lists"])
@pytest.mark.parametrize("view", [tell_as_pruned, tell_as_complete])
def test_a_study_made_again_is_the_one_that_was_lost(tmp_path, space, view):
    driver = run_some(Driver(tmp_path, space, view=view), 9)
    driver.propose()
    before = show(driver.read())
    driver.close()
    for path in tmp_path.glob("study.db*"):
        path.unlink()
    assert show(Driver(tmp_path, space, view=view, new=False).read()) == before


def test_an_open_that_finds_nothing_wrong_changes_nothing(tmp_path):
    driver = run_some(Driver(tmp_path))
    driver.propose()
    before = driver.read()
    assert driver.restart().read() == before, "with the same times: it was not made again"


def break_unharmed(driver):
    pass


def break_deleted(driver):
    for path in driver.folder.glob("study.db*"):
        path.unlink()


def break_garbage(driver):
    (driver.folder / "study.db").write_bytes(random.Random(1).randbytes(100_000))


def break_emptied(driver):
    (driver.folder / "study.db").write_bytes(b"")


def break_no_sqlite_but_text(driver):
    (driver.folder / "study.db").write_text("an answer of some proxy\n")


def break_other_tables(driver):
    """Somebody's own database."""
    break_deleted(driver)
    with sqlite3.connect(driver.folder / "study.db") as connection:
        connection.execute("CREATE TABLE studies (id INTEGER)")
    connection.close()


BREAKS = [break_unharmed, break_deleted, break_garbage, break_emptied, break_no_sqlite_but_text, break_other_tables]


@pytest.mark.parametrize("damage", BREAKS)
def test_the_next_proposal_is_that_of_an_unbroken_study(tmp_path, damage):
    unbroken = run_some(Driver(tmp_path / "unbroken", MIXED), 8)
    broken = run_some(Driver(tmp_path / "broken", MIXED), 8)
    broken.close()
    damage(broken)
    broken = Driver(tmp_path / "broken", MIXED, new=False)
    for _ in range(3):
        assert broken.run().params == unbroken.run().params
    assert agree(broken)


@pytest.mark.parametrize("kept", [0.05, 0.2, 0.4, 0.6, 0.8, 0.9, 0.99])
def test_a_truncated_study_is_made_again(tmp_path, kept):
    driver = run_some(Driver(tmp_path), 12)
    before = show(driver.read())
    driver.close()
    path = tmp_path / "study.db"
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * kept)])
    driver = Driver(tmp_path, new=False)
    assert show(driver.read()) == before
    driver.run()
    assert agree(driver)


@pytest.mark.parametrize("page", range(1, 27, 5))
def test_a_study_with_an_overwritten_page_is_made_again(tmp_path, page):
    driver = run_some(Driver(tmp_path), 8)
    before = show(driver.read())
    driver.close()
    path = tmp_path / "study.db"
    assert path.stat().st_size >= (page + 1) * 4096
    with path.open("r+b") as file:
        file.seek(page * 4096)
        file.write(random.Random(page).randbytes(4096))
    driver = Driver(tmp_path, new=False)
    assert show(driver.read()) == before
    driver.run()
    assert agree(driver)


# -- kills -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [{}, {"lr": 1e-3, "gamma": 0.9}], ids=["proposed", "warm start"])
def test_a_kill_before_the_ledger_has_a_proposal_costs_none(tmp_path, given):
    driver = run_some(Driver(tmp_path))
    drawn = driver.draw(given)
    assert len(driver.read()) == 6, "the ledger commits first"
    driver = driver.restart()
    assert driver.propose(given).drawn == drawn, "the trial's own seed draws the same"
    assert agree(driver)


def test_a_kill_before_optuna_has_a_trial_is_made_up(tmp_path):
    driver = run_some(Driver(tmp_path))
    record = driver.propose(begin=False)
    driver = driver.restart()
    driver.report(6, {10: 1.0})
    driver.end(6)
    driver.run()
    assert agree(driver)
    assert driver.read()[6].params == record.drawn


def test_a_study_that_cannot_be_written_is_left_behind(tmp_path, monkeypatch):
    driver = run_some(Driver(tmp_path))

    def refuse(*args, **more):
        raise RuntimeError("database is locked")

    with monkeypatch.context() as locked:
        locked.setattr(driver.study._study, "add_trial", refuse)
        with pytest.raises(RuntimeError):
            driver.propose()
    driver.report(6, {10: 1.0})
    driver.end(6)
    driver.run()
    assert len(driver.read()) == 6, "later trials would have other numbers there"
    driver = driver.restart()
    assert agree(driver)
    assert len(driver.read()) == 8


@pytest.mark.parametrize("end", [{}, {"state": "PRUNED"}, {"state": "FAIL"}], ids=["whole", "stopped", "failed"])
def test_a_kill_between_the_ledgers_end_and_optunas_is_made_up(tmp_path, end):
    whole = run_some(Driver(tmp_path / "whole"), 7)
    driver = run_some(Driver(tmp_path / "killed"))
    whole.run(**end)
    driver.run()
    driver.run(**end, tell=False)
    assert driver.read()[-1].state == TrialState.RUNNING
    driver = driver.restart()
    assert show(driver.read())[-1][1:3] == show(whole.read())[-1][1:3]
    assert agree(driver)


def test_a_kill_in_the_middle_of_telling_is_made_up(tmp_path):
    driver = run_some(Driver(tmp_path))
    record = driver.run(tell=False)
    driver.study._storage.set_trial_intermediate_value(driver.read()[6]._trial_id, 10, record.reports[10])
    driver = driver.restart()
    trial = driver.read()[-1]
    assert (trial.state, trial.value) == (TrialState.COMPLETE, record.score)
    assert trial.intermediate_values == record.scores


def test_trials_that_run_stay_running_and_can_be_told_later(tmp_path):
    driver = run_some(Driver(tmp_path))
    first, second = driver.propose(), driver.propose()
    driver = driver.restart()
    driver.report(second.number, {10: 3.0})
    driver.end(second.number)
    driver.close()
    break_deleted(driver)
    driver = Driver(tmp_path, new=False)
    driver.report(first.number, {10: 2.0})
    driver.end(first.number)
    assert [trial.value for trial in driver.read()[-2:]] == [2.0, 3.0]
    assert agree(driver)


@pytest.mark.parametrize("ahead", [1, 2, 5])
@pytest.mark.parametrize("state", ["ended", "running"])
def test_a_ledger_of_an_older_copy_wins(tmp_path, ahead, state):
    driver = run_some(Driver(tmp_path))
    running = driver.propose()
    driver.close()
    shutil.copy(tmp_path / "ledger.db", tmp_path / "copy.db")
    driver = Driver(tmp_path, new=False)
    driver.report(running.number, {10: 1.0})
    driver.end(running.number)
    for _ in range(ahead):
        driver.run() if state == "ended" else driver.propose()
    driver.close()
    for path in tmp_path.glob("ledger.db*"):
        path.unlink()
    shutil.copy(tmp_path / "copy.db", tmp_path / "ledger.db")
    driver = Driver(tmp_path, new=False)
    assert [record.state for record in driver.ledger.trials.records()][-1] == "RUNNING"
    driver.end(running.number, "FAIL")
    for _ in range(ahead + 1):
        driver.run()
    assert agree(driver)


def test_one_more_ended_trial_than_an_older_ledger_has_is_dropped(tmp_path):
    """All that the older ledger has is as it was: only the number of trials says that it is older."""
    driver = run_some(Driver(tmp_path))
    driver.close()
    shutil.copy(tmp_path / "ledger.db", tmp_path / "copy.db")
    driver = Driver(tmp_path, new=False)
    driver.run()
    driver.close()
    for path in tmp_path.glob("ledger.db*"):
        path.unlink()
    shutil.copy(tmp_path / "copy.db", tmp_path / "ledger.db")
    driver = Driver(tmp_path, new=False)
    assert driver.run(curve={10: 77.0}).number == 6
    assert agree(driver)
    assert driver.read()[6].value == 77.0


def test_a_trial_that_runs_again_after_its_end_is_made_to(tmp_path):
    """As after a retry of failed trials, or with a ledger of which somebody knows better."""
    driver = run_some(Driver(tmp_path))
    records = driver.ledger.trials.records()
    records[3] = replace(records[3], state="RUNNING")
    driver.study.reconcile(records)
    assert driver.read()[3].state == TrialState.RUNNING


def test_proposals_of_a_person_are_no_trials_of_the_sweep(tmp_path):
    """Those that somebody enqueued in Optuna while no driver ran would take the sweep's numbers."""
    driver = run_some(Driver(tmp_path))
    plain = optuna.load_study(study_name="sweep", storage=driver.url)
    for _ in range(3):
        plain.enqueue_trial({"lr": 1e-2})
    driver = driver.restart()
    assert driver.run().number == 6
    assert agree(driver)


def test_two_sweeps_in_one_storage_are_two_studies(tmp_path):
    url, distributions = f"sqlite:///{tmp_path / 'shared.db'}", PLAIN.distributions()
    driver = run_some(Driver(tmp_path / "one"))
    records = driver.ledger.trials.records()
    first = open_optuna_study(url, "first", tell_as_pruned, distributions, records)
    second = open_optuna_study(url, "second", tell_as_pruned, distributions, records[:2])
    second.reconcile([])
    assert len(optuna.load_study(study_name="first", storage=url).trials) == 6
    assert optuna.load_study(study_name="second", storage=url).trials == []
    first.close()
    second.close()


def test_a_file_with_other_sweeps_ledgers_is_never_removed(tmp_path):
    """One that ``study.storage`` names holds ledgers beside Optuna's tables, here of an Optuna of another version."""
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    Ledger(url, "other", create=True).close()
    open_optuna_study(url, "other", tell_as_pruned, PLAIN.distributions(), []).close()
    with contextlib.closing(sqlite3.connect(tmp_path / "shared.db")) as file:
        file.execute("UPDATE alembic_version SET version_num = 'v99.0.0.a'")
        file.commit()
    with pytest.raises(StudyError, match=r"study\.storage="):
        open_optuna_study(url, "sweep", tell_as_pruned, PLAIN.distributions(), [])
    assert Ledger(url, "other").sweep().name == "other"


def test_a_study_that_no_ledger_made_is_never_deleted(tmp_path):
    """An older rltune's, whose one truth it is, or a person's own in the same database."""
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    own = optuna.create_study(study_name="sweep", storage=url)
    own.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=3)
    with pytest.raises(StudyError, match="name="):
        open_optuna_study(url, "sweep", tell_as_pruned, PLAIN.distributions(), [])
    assert len(optuna.load_study(study_name="sweep", storage=url).trials) == 3


def test_an_error_that_is_no_damage_stays(tmp_path):
    """A study on a server is not ours to remove, and a bug is not repaired by making the study again."""
    with pytest.raises(Exception, match="nosuchdialect"):
        open_optuna_study("nosuchdialect://host/db", "sweep", tell_as_pruned, PLAIN.distributions(), [])


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
    found = [driver.run("FAIL").params["lr"] > 1e-3 for _ in range(proposals)]
    driver.close()
    return sum(found)


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
    before = show(driver.read())
    assert [trial.value for trial in driver.read()] == [8.0, -70.0, 8.0]
    driver.close()
    break_deleted(driver)
    assert show(Driver(tmp_path, view=tell_as_complete, new=False).read()) == before


def test_infinite_reports_do_not_end_the_sweep(tmp_path):
    driver = Driver(tmp_path, view=tell_as_complete)
    driver.run(curve={10: -math.inf, 20: 3.0})
    driver.run("PRUNED", curve={10: 2.0, 20: -math.inf})
    driver.run("PRUNED", curve={10: -math.inf})
    before = [trial.values for trial in driver.read()]
    assert before == [[3.0], [2.0], [2.0]]
    driver.close()
    break_deleted(driver)
    assert [trial.values for trial in Driver(tmp_path, view=tell_as_complete, new=False).read()] == before


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
    assert agree(driver)
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
    assert optuna.load_study(study_name="sweep", storage=driver.url).best_trial.number == 1
    before = show(driver.read()), constraints_of(driver)
    driver.close()
    for path in tmp_path.glob("study.db*"):
        path.unlink()
    again = Driver(tmp_path, new=False, criteria=BOUND)
    assert (show(again.read()), constraints_of(again)) == before, "made again from the ledger"


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
    """What CMA-ES keeps in trials and QMC in the study is not in the ledger: made again, the study has it still."""
    drivers = [Driver(tmp_path / name, kind=kind) for name in ("retried", "unbroken")]
    for driver in drivers:
        for number in range(8):
            driver.run("FAIL" if number == 3 else "COMPLETE")
    retried, unbroken = drivers
    retried.ledger.ask("retry", {"trials": [3], "certify": []}, "maria@host")
    retried.ledger.reopen_failed(retried.ledger.read_requests()[0])
    retried.study.reconcile(retried.ledger.trials.records())
    assert retried.read()[3].state == TrialState.RUNNING
    assert agree(retried)
    retried.end(3, "FAIL")
    assert agree(retried)
    attrs = [[trial.system_attrs for trial in driver.read()] for driver in drivers]
    assert attrs[0] == attrs[1]
    assert retried.propose().params == unbroken.propose().params


def test_a_study_that_is_reconciled_twice_shows_no_trial_twice(tmp_path):
    driver = run_some(Driver(tmp_path))
    driver.study.reconcile(driver.ledger.trials.records())
    assert len(driver.study._proposing.get_trials()) == 6
    assert driver.run().number == 6
    assert agree(driver)
