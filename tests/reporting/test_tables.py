"""What list and show print of sweeps."""

from __future__ import annotations

import io
import os

import ledger
import pytest
from trials import ENTRIES

from rltune.errors import StudyError
from rltune.reporting.tables import list_sweeps, show_sweep
from rltune.study.record import TrialRecord
from rltune.study.study import Study


@pytest.fixture
def sweeps(tmp_path):
    """A folder with one sweep, and what makes more."""

    def add(name, age=0, trials=ENTRIES[:5]):
        home = tmp_path / name
        home.mkdir(parents=True)
        (home / "config.yaml").write_text("study:\n  storage: null\n")
        os.utime(home / "config.yaml", (1e9 - age, 1e9 - age))
        study = Study(ledger.empty(home), name, create=True)
        for wanted in trials:
            number, _ = study.ask(lambda suggest: {}, {})
            study.note(number, params=dict(wanted.params), **dict(wanted.attributes))
            for step, objective in wanted.reports.items():
                study.report(number, step, objective)
            if wanted.state != "RUNNING":
                study.finish(number, wanted.state, wanted.value, wanted.attributes.get("stop_reason", "done"))
        study.set_attribute("status", "complete")
        study.close()
        return home

    return add


def listed(tmp_path):
    stream = io.StringIO()
    list_sweeps(str(tmp_path), stream)
    return stream.getvalue()


def shown(sweep, tmp_path):
    stream = io.StringIO()
    show_sweep(sweep, str(tmp_path), stream)
    return stream.getvalue()


def test_sweeps_are_listed_one_a_line_the_newest_last(sweeps, tmp_path):
    long = "acrobot-ppo-20260304-050607-a1b2-and-a-name-of-ones-own"
    for name, age in ((long, 10), ("older", 100)):
        sweeps(name, age=age)
    lines = listed(tmp_path).splitlines()
    assert lines[1].split()[:3] == ["older", "complete", "5"]
    assert lines[2].split()[0] == long, "a name is never broken over two lines: it is there to be copied"
    assert len(lines) == 3
    assert "1/2/1" in lines[1]


def test_the_list_fits_a_terminal_of_eighty_columns(sweeps, tmp_path, terminal):
    names = ("dict-ppo-20261121-212212-b28c", "halfcheetah-sac-20261121-2122-b28c")
    for name in names:
        sweeps(name)
    list_sweeps(str(tmp_path), terminal)
    lines = terminal.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert {tuple(line.split()[:3]) for line in lines if line.startswith(names)} == {
        (name, "complete", "5") for name in names
    }
    assert "1/2/1" in lines[-1]


def test_on_a_narrow_terminal_a_long_name_stays_whole(sweeps, tmp_path, terminal):
    long = "lunarlander_continuous-ppo-20261121-212212-b28c-of-my-own-choice"
    sweeps(long)
    list_sweeps(str(tmp_path), terminal)
    assert terminal.getvalue().splitlines()[-1].split()[:2] == [long, "complete"]


def test_words_in_brackets_are_shown_as_they_are(sweeps, tmp_path):
    sweeps(
        "s",
        trials=[TrialRecord(0, "FAIL", {"layers": ["relu", "tanh"]}, {}, {"stop_reason": "shape [box] is unknown"})],
    )
    text = " ".join(shown("s", tmp_path).split())
    assert "layers=[relu,tanh]" in text
    assert "shape [box] is unknown" in text


def test_a_failed_trials_reports_do_not_make_a_sweep_look_good(sweeps, tmp_path):
    sweeps("s")
    assert "99" not in listed(tmp_path), "its only 99 is a trial whose loss was not finite"


def test_a_damaged_sweep_is_named_and_does_not_hide_the_others(sweeps, tmp_path):
    sweeps("good")
    (sweeps("torn", trials=()) / "study.db").write_bytes(b"no database at all" * 100)
    (sweeps("lost", trials=()) / "study.db").unlink()
    (sweeps("garbled", trials=()) / "config.yaml").write_text("study: [half")
    text = listed(tmp_path)
    assert "5" in next(line for line in text.splitlines() if line.startswith("good"))
    for name in ("torn", "lost", "garbled"):
        assert f"{name}" in text
    assert text.count("unreadable") == 3


def test_a_folder_without_sweeps_says_how_to_start_one(tmp_path):
    text = listed(tmp_path / ("a-long-way-down-" * 6))
    assert "python -m sweeps.run algo=ppo env=cartpole" in text
    assert list(tmp_path.iterdir()) == [], "looking makes no folder"


def test_trials_are_shown_the_best_first_with_why_they_ended(sweeps, tmp_path):
    sweeps("s")
    text = shown("s", tmp_path)
    assert "s: complete" in text
    numbers = [line.split()[0] for line in text.splitlines() if line[:1].isdigit()]
    assert sorted(numbers) == ["0", "1", "2", "3", "4"]
    assert "lr=0.001" in text
    assert "non-finite loss" in " ".join(text.split())
    (unfinished,) = (line for line in text.splitlines() if line.startswith("4 "))
    assert "interrupted" in unfinished  # the sweep has ended, so it cannot be running
    assert "no reason" not in unfinished


def test_an_uncertified_winner_need_not_be_the_searchs_first(sweeps, tmp_path):
    study = Study(f"sqlite:///{sweeps('s') / 'study.db'}", "s")
    played = {"episodes": 10, "mean": 163.1, "low": 150.0, "high": 170.0}
    study.set_attribute("winner", {"name": "trial 1", "objective": 12.0, "evaluation": played})
    study.close()
    assert "winner    trial 1: mean return 163.1 on 10 fresh episodes (150 to 170)" in shown("s", tmp_path)


def test_latest_is_the_sweep_that_was_worked_on_last(sweeps, tmp_path):
    sweeps("older", age=100, trials=())
    sweeps("newer", age=10, trials=())
    assert shown("latest", tmp_path).startswith("newer:")


def test_an_unknown_sweep_is_answered_with_the_nearest(sweeps, tmp_path):
    sweeps("cartpole-one", trials=())
    with pytest.raises(StudyError) as refused:
        shown("cartpole-on", tmp_path)
    assert "'cartpole-one'" in refused.value.allowed
