"""The ledger: what goes in comes out, from a file that another process opens."""

from __future__ import annotations

import math
import sqlite3

import ledger
import optuna
import pytest
from ledger import ask

from rltune.errors import StudyError
from rltune.study.record import TrialRecord
from rltune.study.study import Study


@pytest.fixture
def url(tmp_path):
    return ledger.empty(tmp_path)


@pytest.fixture
def study(url):
    made = Study(url, "sweep", create=True)
    yield made
    made.close()


def test_everything_about_a_trial_is_there_when_the_file_is_opened_again(study, url):
    wanted = {}
    for state, value in (("COMPLETE", 3.5), ("PRUNED", None), ("FAIL", None), (None, None)):
        number, params = ask(study)
        for step in (100, 200, 300):
            study.report(number, step, step / 100 + number)
        study.note(number, checkpoint={"path": "trials/0/best-1", "digest": "ab"}, mlflow_run_id=f"run{number}")
        if state:
            study.finish(number, state, value, f"because {state}")
        wanted[number] = (state or "RUNNING", params, value)
    study.close()
    entries = Study(url, "sweep").trials()
    assert [entry.number for entry in entries] == [0, 1, 2, 3]
    for entry in entries:
        state, params, value = wanted[entry.number]
        assert (entry.state, entry.params, entry.value) == (state, params, value)
        assert entry.reports == {100: 1.0 + entry.number, 200: 2.0 + entry.number, 300: 3.0 + entry.number}
        assert entry.attributes["seeds"] == [entry.number + 100]
        assert entry.attributes["checkpoint"] == {"path": "trials/0/best-1", "digest": "ab"}
        assert entry.attributes["mlflow_run_id"] == f"run{entry.number}"
        assert entry.attributes.get("stop_reason") == (None if state == "RUNNING" else f"because {state}")
        assert entry.env_steps == 300


def test_one_trial_read_alone_is_the_same_as_among_all(study):
    for _ in range(3):
        ask(study)
    assert [study.trial(number) for number in range(3)] == study.trials()


def test_a_value_that_was_sampled_is_exactly_the_value_that_is_read(study, url):
    sampled = [ask(study)[1] for _ in range(10)]
    study.close()
    assert [dict(entry.params) for entry in Study(url, "sweep").trials()] == sampled


def test_a_warm_start_takes_the_given_values_and_draws_the_others(study):
    _, params = ask(study, lr=3e-4, batch=128)
    assert (params["lr"], params["batch"]) == (3e-4, 128)
    assert 0.9 <= params["gamma"] <= 0.99
    assert study.num_trials == 1, "a warm start is one trial, not one more in waiting"


def test_a_reopened_study_goes_on_with_the_next_number(study, url):
    for _ in range(3):
        ask(study)
    study.close()
    again = Study(url, "sweep")
    assert again.num_trials == 3
    assert ask(again)[0] == 3
    again.report(1, 50, 2.0)
    again.finish(1, "COMPLETE", 2.0, "whole budget")
    assert again.trial(1).state == "COMPLETE"
    again.close()


def test_two_readers_see_what_one_driver_writes(study, url):
    readers = [Study(url, "sweep"), Study(url, "sweep")]
    number, _ = ask(study)
    study.report(number, 10, 1.0)
    assert [reader.trial(number).reports for reader in readers] == [{10: 1.0}] * 2
    for reader in readers:
        reader.close()


def test_a_reader_that_holds_the_file_does_not_stop_the_driver(study, tmp_path):
    reader = sqlite3.connect(tmp_path / "study.db")
    reader.execute("begin")
    reader.execute("select * from trials").fetchall()
    number, _ = ask(study)
    study.report(number, 10, 1.0)
    assert study.trial(number).reports == {10: 1.0}
    reader.close()


def test_reports_come_back_in_the_order_of_their_steps(study):
    number, _ = ask(study)
    for step in (300, 100, 200):
        study.report(number, step, -step)
    assert list(study.trial(number).reports) == [100, 200, 300]


def test_a_report_that_comes_twice_counts_once(study):
    number, _ = ask(study)
    study.report(number, 100, 1.0)
    study.report(number, 100, 2.0)
    assert study.trial(number).reports == {100: 2.0}


def test_a_report_and_the_checkpoint_that_comes_with_it_are_kept_together_or_not_at_all(study, url):
    number, _ = ask(study)
    study.report(number, 100, 1.0, checkpoint={"path": "best-100"})
    with pytest.raises(TypeError):
        study.report(number, 200, 2.0, checkpoint={"path": object()})
    for entry in (study.trial(number), Study(url, "sweep").trial(number)):
        assert dict(entry.reports) == {100: 1.0}
        assert entry.attributes["checkpoint"] == {"path": "best-100"}


def test_an_ended_trial_takes_nothing_more(study):
    number, _ = ask(study)
    study.finish(number, "FAIL", None, "it broke", node="here")
    for change in (lambda: study.report(number, 100, 1.0), lambda: study.note(number, node="there")):
        with pytest.raises(optuna.exceptions.UpdateFinishedTrialError):
            change()
    assert (dict(study.trial(number).reports), study.trial(number).attributes["node"]) == ({}, "here")


@pytest.mark.parametrize("objective", [math.nan, math.inf, -math.inf])
def test_a_report_that_is_not_finite_never_becomes_the_best(study, objective):
    number, _ = ask(study)
    study.report(number, 100, objective)
    assert study.trial(number).best is None
    study.report(number, 200, -3.0)
    assert study.trial(number).best == -3.0


def test_a_stopped_trial_keeps_its_reports_and_is_ranked_by_the_last(study):
    number, _ = ask(study)
    study.report(number, 100, 9.0)
    study.report(number, 200, 4.0)
    study.finish(number, "PRUNED", None, "stopped by the scheduler at 200 environment steps")
    entry = study.trial(number)
    assert (entry.state, entry.best, entry.value) == ("PRUNED", 9.0, None)
    assert study._study.trials[number].value == 4.0


def test_a_failed_trial_has_its_reason_and_no_value(study):
    number, _ = ask(study)
    study.report(number, 100, 9.0)
    study.finish(number, "FAIL", 9.0, "non-finite loss at 100 environment steps")
    assert study.trial(number).value is None
    assert study.trial(number).attributes["stop_reason"] == "non-finite loss at 100 environment steps"


def test_steps_are_those_noted_at_the_end_or_those_of_the_last_report():
    assert TrialRecord(0, "RUNNING", {}, {100: 1.0, 300: 2.0}).env_steps == 300
    assert TrialRecord(0, "PRUNED", {}, {100: 1.0}, {"env_steps": 150}).env_steps == 150
    assert TrialRecord(0, "RUNNING", {}, {}).env_steps == 0
    assert TrialRecord(0, "RUNNING", {}, {}).best is None


def test_the_sweep_keeps_its_own_attributes(study, url):
    study.set_attribute("status", "running")
    study.set_attribute("winner", {"trial": 3, "params": {"lr": 0.1}})
    study.close()
    again = Study(url, "sweep")
    assert again.attribute("status") == "running"
    assert again.attribute("winner") == {"trial": 3, "params": {"lr": 0.1}}
    assert again.attribute("champion", "none yet") == "none yet"


def test_the_dashboard_sees_the_searched_quantities_by_their_labels_and_a_maximised_objective(study, url):
    number, params = ask(study, batch=128)
    study.report(number, 100, 5.0)
    study.finish(number, "COMPLETE", 5.0, "whole budget")
    plain = optuna.load_study(study_name="sweep", storage=url)
    assert plain.direction == optuna.study.StudyDirection.MAXIMIZE
    assert plain.best_trial.params["log2(batch)"] == 7
    assert plain.best_trial.params["1-gamma"] == pytest.approx(1 - params["gamma"])
    assert plain.best_value == 5.0


def test_a_study_is_made_once(study, url):
    with pytest.raises(StudyError, match="a study of this name exists"):
        Study(url, "sweep", create=True)


def test_a_study_that_is_not_there_is_named(study, url):
    with pytest.raises(StudyError, match="'other' is not in its storage"):
        Study(url, "other")


# -- passwords ----------------------------------------------------------------------------------------------------

SECRET = [
    "postgresql+psycopg://me:s3cret@127.0.0.1:1/rl",
    "postgresql://me:s3cret@db.example:badport/rl",
    "mysql://me:s3cret@127.0.0.1:1/rl",
    "nonsense://me:s3cret@db.example/rl",
    "postgresql+psycopg://db.example/rl?user=me&password=s3cret",
    "postgresql+psycopg://me:p@s3cret@db.example/rl",
    "://me:s3cret@db.example",
    "me:s3cret@db.example",
]


@pytest.mark.parametrize("address", SECRET)
def test_a_password_is_in_no_message(address):
    with pytest.raises(StudyError) as refused:
        Study(address, "sweep")
    for text in (refused.value.pretty(), str(refused.value), repr(refused.value)):
        assert "s3cret" not in text
        assert "me:" not in text
    assert "study.storage=" in refused.value.what
    assert refused.value.__cause__ is None, "nor in a traceback's first half"
    assert refused.value.__suppress_context__


def test_a_running_trial_reads_the_same_in_this_driver_and_in_the_file(study, url):
    number, _ = ask(study)
    study.trial(number)  # from here on this driver remembers it
    study.report(number, 200, 2.0)
    study.report(number, 100, math.nan)
    study.note(number, checkpoint={"path": "trials/0/best-1"}, params={"lr": 1e-3})
    study.note_run(number, "run0")
    other = Study(url, "sweep")
    here, there = study.trial(number), other.trial(number)
    assert (here.state, here.params, here.attributes) == (there.state, there.params, there.attributes)
    assert repr(here.reports) == repr(there.reports) == "{100: nan, 200: 2.0}"
    assert study.num_trials == other.num_trials == 1
    study.trial(number).attributes["checkpoint"] = None
    assert study.trial(number).attributes["checkpoint"] == {"path": "trials/0/best-1"}
    study.finish(number, "COMPLETE", 2.0, "whole budget")
    assert study.trial(number).state == "COMPLETE"
    other.close()
