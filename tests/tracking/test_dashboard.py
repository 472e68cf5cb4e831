"""optuna-dashboard is shown each trial once it has ended, whatever happened to the study's file or to the ledger."""

from __future__ import annotations

import contextlib
import math
import random
import shutil
import sqlite3

import optuna
import pytest
from search_driver import PLAIN, Driver, run_some

from rltune.config.criteria import Criteria, parse_constraints
from rltune.ledger.ledger import Ledger
from rltune.tracking.dashboard import DashboardTracker
from rltune.tracking.feed import Feed
from rltune.tracking.tracker import SweepDescription

BOUND = Criteria(parse_constraints({"train_s": "< 60"}), env_steps=20)


def make_tracker(driver, storage=None):
    ledger = driver.ledger
    sweep = SweepDescription(ledger.name, ledger.sweep().key, driver.folder, ledger, "cartpole")
    return DashboardTracker(sweep, storage, PLAIN.distributions())


def deliver(driver, storage=None):
    """Deliver as a driver does, and close; return the study's trials."""
    tracker = make_tracker(driver, storage)
    feed = Feed(tracker, driver.ledger, driver.folder)
    feed.begin_close("FINISHED")
    feed.wait_closed(60.0)
    messages = [feed.messages.get() for _ in range(feed.messages.qsize())]
    assert not messages
    return read(storage or f"sqlite:///{driver.folder / 'study.db'}", driver.ledger.name)


def read(url, name="sweep"):
    storage = optuna.storages.RDBStorage(url)
    trials = optuna.load_study(study_name=name, storage=storage).get_trials()
    storage.remove_session()
    storage.engine.dispose()
    return trials


def describe(trials):
    return [(t.user_attrs["trial"], t.state.name, t.values, t.params, t.intermediate_values) for t in trials]


def agree(driver, trials):
    """Whether the study has the ledger's ended trials, and each of them once."""
    ended = [record for record in driver.ledger.trials.records() if record.state != "RUNNING"]
    assert sorted(trial.user_attrs["trial"] for trial in trials) == [record.number for record in ended]
    assert [trial.params for trial in sorted(trials, key=lambda trial: trial.user_attrs["trial"])] == [
        record.drawn for record in ended
    ]
    return True


def test_a_study_shows_what_the_ledger_has_of_ended_trials(tmp_path):
    driver = Driver(tmp_path)
    driver.run(curve={10: 1.0, 20: 5.0, 30: 3.0})
    driver.propose()
    driver.run("PRUNED", curve={10: math.nan, 20: 2.0})
    driver.run("PRUNED", curve={10: 4.0}, diverged=True)
    driver.run("FAIL", curve={10: 6.0})
    driver.run(curve={10: math.nan})
    trials = deliver(driver)
    assert [trial.user_attrs["trial"] for trial in trials] == [0, 2, 3, 4, 5]
    assert [trial.state.name for trial in trials] == ["COMPLETE", "PRUNED", "PRUNED", "FAIL", "PRUNED"]
    assert [trial.values for trial in trials] == [[3.0], [2.0], None, None, None], "their scores"
    assert trials[0].intermediate_values == {10: 1.0, 20: 5.0, 30: 3.0}
    records = driver.ledger.trials.records()
    assert trials[0].user_attrs["params"] == records[0].params
    assert trials[3].user_attrs["stop_reason"] == "why"
    assert trials[0].datetime_start.timestamp() == pytest.approx(records[0].began_s)
    study = optuna.load_study(study_name="sweep", storage=f"sqlite:///{tmp_path / 'study.db'}")
    assert study.best_trial.number == 0
    assert study.direction == optuna.study.StudyDirection.MAXIMIZE


def test_constraints_that_are_broken_or_were_never_measured_are_shown(tmp_path):
    driver = Driver(tmp_path, criteria=BOUND)
    for train_s in (70.0, 50.0):
        record = driver.propose()
        driver.report(record.number, {10: 1.0, 20: 2.0})
        driver.end(record.number, train_s=train_s)
    driver.run("FAIL", curve={})
    assert [dict(trial.constraints) for trial in deliver(driver)] == [
        {"train_s": 10.0},
        {"train_s": -10.0},
        {"train_s": pytest.approx(1.0)},
    ]


def test_a_kill_between_study_and_ledger_adds_no_trial_twice(tmp_path, monkeypatch):
    driver = run_some(Driver(tmp_path), 3)

    def die(*args, **more):
        raise SystemExit

    with monkeypatch.context() as killed:
        killed.setattr(driver.ledger, "mark_trial", die)
        tracker = make_tracker(driver)
        with contextlib.suppress(SystemExit):
            tracker.open()
        tracker.write(driver.ledger.trials.record(0), [])
        tracker.close()
    assert agree(driver, deliver(driver))


@pytest.mark.slow
def test_each_driver_adds_what_has_ended_since(tmp_path):
    driver = run_some(Driver(tmp_path))
    before = deliver(driver)
    driver = driver.restart()
    assert deliver(driver) == before, "with the same times: it was not made again"
    driver.run()
    assert agree(driver, deliver(driver))


def break_deleted(path):
    path.unlink()


def break_garbage(path):
    path.write_bytes(random.Random(1).randbytes(100_000))


def break_emptied(path):
    path.write_bytes(b"")


def break_truncated(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def break_other_tables(path):
    path.unlink()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE studies (id INTEGER)")


@pytest.mark.slow
@pytest.mark.parametrize("damage", [break_deleted, break_garbage, break_emptied, break_truncated, break_other_tables])
def test_a_lost_or_damaged_study_is_made_again(tmp_path, damage):
    driver = run_some(Driver(tmp_path))
    before = describe(deliver(driver))
    for log in tmp_path.glob("study.db-*"):
        log.unlink()
    damage(tmp_path / "study.db")
    assert describe(deliver(driver.restart())) == before


@pytest.mark.slow
def test_a_ledger_of_an_older_copy_wins(tmp_path):
    driver = run_some(Driver(tmp_path))
    driver.close()
    shutil.copy(tmp_path / "ledger.db", tmp_path / "copy.db")
    driver = driver.restart()
    driver.run()
    deliver(driver)
    driver.close()
    for path in tmp_path.glob("ledger.db*"):
        path.unlink()
    shutil.copy(tmp_path / "copy.db", tmp_path / "ledger.db")
    driver = driver.restart()
    assert driver.run(curve={10: 77.0}).number == 6
    trials = deliver(driver)
    assert agree(driver, trials)
    assert 77.0 in [trial.value for trial in trials]


@pytest.mark.slow
def test_a_trial_that_is_tried_again_is_shown_by_its_new_end(tmp_path):
    driver = run_some(Driver(tmp_path))
    deliver(driver)
    driver.ledger.add_request("retry", {"trials": [3], "certify": []}, "maria@host")
    driver.ledger.reopen_failed(driver.ledger.read_requests()[0])
    driver.end(3, tell=False)
    trials = deliver(driver)
    assert agree(driver, trials)
    (again,) = [trial for trial in trials if trial.user_attrs["trial"] == 3]
    assert again.state.name == "COMPLETE"


def test_two_sweeps_in_one_database_are_two_studies(tmp_path):
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    driver = run_some(Driver(tmp_path / "folder"), 2)
    other = Ledger(url, "other", create=True)
    assert len(deliver(driver, url)) == 2
    driver.ledger = other
    assert deliver(driver, url) == []
    assert len(read(url, "sweep")) == 2
    assert other.sweep().name == "other", "the ledger stays beside the studies"


def test_a_database_that_is_not_the_sweeps_alone_is_never_removed(tmp_path):
    """Here Optuna's tables are of another version."""
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    driver = run_some(Driver(tmp_path / "folder"), 2)
    deliver(driver, url)
    with contextlib.closing(sqlite3.connect(tmp_path / "shared.db")) as file:
        file.execute("UPDATE alembic_version SET version_num = 'v99.0.0.a'")
        file.commit()
    with pytest.raises(RuntimeError):
        make_tracker(driver, url).open()
    assert (tmp_path / "shared.db").exists()


def test_a_study_of_somebody_else_is_left_alone(tmp_path):
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    study = optuna.create_study(study_name="sweep", storage=url)
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=3)
    driver = run_some(Driver(tmp_path / "folder"), 2)
    lines = list[str]()
    tracker = make_tracker(driver, url)
    tracker.notify = lines.append
    tracker.open()
    for record in driver.ledger.trials.records():
        tracker.write(record, [])
    assert len(read(url)) == 3
    assert len(lines) == 1


def test_its_feed_reads_no_reports(tmp_path, monkeypatch):
    driver = run_some(Driver(tmp_path), 2)
    monkeypatch.setattr(Ledger, "read_reports_after", lambda *args: pytest.fail("read the reports"))
    assert len(deliver(driver)) == 2


def test_a_disk_that_is_full_for_a_moment_loses_no_study(tmp_path, monkeypatch):
    driver = run_some(Driver(tmp_path), 2)
    deliver(driver)
    tracker = make_tracker(driver)
    tracker.open()
    file = (tmp_path / "study.db").stat().st_ino

    def fail(*_):
        raise OSError("database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(optuna.Study, "set_user_attr", fail)
        with pytest.raises(OSError, match="full"):
            tracker.open()
    tracker.open()
    tracker.close()
    assert (tmp_path / "study.db").stat().st_ino == file
    assert agree(driver, read(f"sqlite:///{tmp_path / 'study.db'}"))
