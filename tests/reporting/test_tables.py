"""What list and show print of sweeps."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import closing

import pytest
from ended import write_bounded, write_cost_sweep, write_sweep
from ledger import add_reports, make_ledger
from trials import ENTRIES

from rltune.errors import StudyError
from rltune.records import TrialRecord
from rltune.reporting.tables import list_sweeps, show_sweep
from rltune.study.storage import open_ledger


@pytest.fixture
def sweeps(tmp_path):
    """A folder with one sweep, and what makes more."""

    def add(name, age=0, trials=ENTRIES[:5], storage=None):
        home = tmp_path / name
        home.mkdir(parents=True)
        (home / "config.yaml").write_text(f"format: 4\nstudy:\n  storage: {storage or 'null'}\n")
        os.utime(home / "config.yaml", (1e9 - age, 1e9 - age))
        with closing(make_ledger(home, name)) as ledger:
            for number, wanted in enumerate(trials):
                ledger.trials.add(wanted.params, [number])
                add_reports(ledger, number, wanted.reports)
                if wanted.state != "RUNNING":
                    ledger.trials.end(number, wanted.state, wanted.stop_reason or "done")
            ledger.change_sweep(status="complete")
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
    assert lines[1].split()[:5] == ["older", "complete", "1/2/1", "of", "5"]
    assert lines[2].split()[0] == long, "a name is never broken over two lines: it is there to be copied"
    assert lines[3:] == ["trials: complete/stopped/failed of those begun"]
    assert "1/2/1" in lines[1]


def test_a_cost_is_listed_and_shown_as_the_person_knows_it(tmp_path):
    write_cost_sweep(tmp_path / "thrifty")
    row = next(line for line in listed(tmp_path).splitlines() if line.startswith("thrifty"))
    assert row.split()[5:7] == ["24", "99"], "the least energy, and the certified one"
    lines = [line.split() for line in shown("thrifty", tmp_path).splitlines()]
    assert ["3", "complete", "24"] in [line[:3] for line in lines], "the best first"
    assert "energy (less is better)" in shown("thrifty", tmp_path)
    assert ["trial", "3", "99", "95", "to", "103", "120", "21", "97%"] in [line[:9] for line in lines]
    assert "-24" not in shown("thrifty", tmp_path)


def test_the_list_fits_a_terminal_of_eighty_columns(sweeps, tmp_path, terminal):
    names = ("dict-ppo-20261121-212212-b28c", "halfcheetah-sac-20261121-2122-b28c")
    for name in names:
        sweeps(name)
    list_sweeps(str(tmp_path), terminal)
    lines = terminal.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert {tuple(line.split()[:6]) for line in lines if line.startswith(names)} == {
        (name, "complete", "1/2/1", "of", "5", "6") for name in names
    }
    assert "certified" in lines[0]


def test_a_wide_list_tells_sweeps_apart_by_what_was_typed(sweeps, tmp_path):
    certified = {"configurations": [{"iqm": 498.5}]}
    typed = "python -m sweeps.run algo=dqn env=acrobot budget.trials=3"
    with closing(open_ledger(sweeps("first"))) as ledger:
        ledger.change_sweep(command=typed, began="2026-11-21T21:22:12+00:00", certification=certified)
    line = listed(tmp_path).splitlines()[1]
    assert line.split()[-5:] == ["1,700", "2026-11-21", "21:22", "algo=dqn", "env=acrobot"]
    assert "498.5" in line


def test_on_a_narrow_terminal_a_long_name_stays_whole(sweeps, tmp_path, terminal):
    long = "lunarlander_continuous-ppo-20261121-212212-b28c-of-my-own-choice"
    sweeps(long)
    list_sweeps(str(tmp_path), terminal)
    assert terminal.getvalue().splitlines()[1].split()[:2] == [long, "complete"]


def test_words_in_brackets_are_shown_as_they_are(sweeps, tmp_path):
    sweeps(
        "s",
        trials=[TrialRecord(0, "FAIL", {"layers": ["relu", "tanh"]}, stop_reason="shape [box] is unknown")],
    )
    text = " ".join(shown("s", tmp_path).split())
    assert "layers=[relu,tanh]" in text
    assert "shape [box] is unknown" in text


def test_a_failed_trials_reports_do_not_make_a_sweep_look_good(sweeps, tmp_path):
    sweeps("s")
    assert "99" not in listed(tmp_path), "its only 99 is a trial whose process died"


def test_a_damaged_sweep_is_named_and_does_not_hide_the_others(sweeps, tmp_path):
    sweeps("good")
    (sweeps("torn", trials=()) / "ledger.db").write_bytes(b"no database at all" * 100)
    (sweeps("lost", trials=()) / "ledger.db").unlink()
    (sweeps("garbled", trials=()) / "config.yaml").write_text("study: [half")
    (sweeps("ancient", trials=()) / "config.yaml").write_text("study: {storage: null}\n")
    text = listed(tmp_path)
    assert "5" in next(line for line in text.splitlines() if line.startswith("good"))
    for name in ("torn", "lost", "garbled", "ancient"):
        assert [line.split()[1] for line in text.splitlines() if line.startswith(f"{name} ")] == ["unreadable"]
    assert f"ancient: {tmp_path / 'ancient' / 'config.yaml'} has format None" in text


def test_a_database_behind_a_login_is_read_with_its_address(sweeps, tmp_path):
    kept = sweeps("kept")
    home = sweeps("far", storage="postgresql+psycopg://***@db.example/rl")
    elsewhere = f"sqlite:///{(home / 'ledger.db').rename(tmp_path / 'of-several.db')}"
    assert "far: study.storage=postgresql+psycopg://***@db.example/rl: the login is kept in no file" in listed(tmp_path)
    stream = io.StringIO()
    list_sweeps(str(tmp_path), stream, storage=elsewhere)
    states = {line.split()[0]: line.split()[1:3] for line in stream.getvalue().splitlines()[1:-1]}
    assert states == {kept.name: ["complete", "1/2/1"], "far": ["complete", "1/2/1"]}
    with pytest.raises(StudyError, match="the login is kept in no file"):
        shown("far", tmp_path)
    show_sweep("far", str(tmp_path), stream, elsewhere)
    assert "far: complete" in stream.getvalue()


def test_an_older_sweep_is_refused_in_three_parts(sweeps, tmp_path):
    sweeps("newer", age=100)
    home = sweeps("older", trials=())  # the newest by its time
    (home / "config.yaml").write_text("name: older\nstudy: {storage: null}\n")
    (home / "ledger.db").rename(home / "study.db")
    for name in ("older", "latest"):
        with pytest.raises(StudyError, match="format None") as refused:
            shown(name, tmp_path)
        assert "format 4" in refused.value.allowed
    assert shown("newer", tmp_path).startswith("newer: complete")


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
    assert {line.split()[1] for line in text.splitlines() if line[:1].isdigit()} == {
        "complete", "stopped", "failed", "interrupted"
    }  # fmt: skip
    assert "lr=0.001" in text
    assert "worker died: killed" in " ".join(text.split())
    (unfinished,) = (line for line in text.splitlines() if line.startswith("4 "))
    assert "interrupted" in unfinished  # the sweep has ended, so it cannot be running
    assert "no reason" not in unfinished


def test_an_uncertified_winner_need_not_be_the_searchs_first(sweeps, tmp_path):
    played = {"episodes": 10, "mean": 163.1, "low": 150.0, "high": 170.0}
    with closing(open_ledger(sweeps("s"))) as ledger:
        ledger.change_sweep(winner={"name": "trial 1", "objective": 12.0, "evaluation": played})
    assert "winner    trial 1: mean return 163.1 on 10 fresh episodes (95% interval 150 to 170)" in shown("s", tmp_path)


def test_latest_is_the_sweep_that_was_worked_on_last(sweeps, tmp_path):
    sweeps("older", age=100, trials=())
    sweeps("newer", age=10, trials=())
    assert shown("latest", tmp_path).startswith("newer:")


def test_an_unknown_sweep_is_answered_with_the_nearest(sweeps, tmp_path):
    sweeps("cartpole-one", trials=())
    with pytest.raises(StudyError) as refused:
        shown("cartpole-on", tmp_path)
    assert "'cartpole-one'" in refused.value.allowed


def test_looking_at_a_sweep_needs_no_optuna(sweeps, tmp_path):
    sweeps("s")
    looking = (
        "import sys, rltune; from rltune.reporting.tables import list_sweeps, show_sweep;"
        f"list_sweeps({str(tmp_path)!r}); show_sweep('s', {str(tmp_path)!r});"
        f"rltune.open_ledger(rltune.find_sweep('s', {str(tmp_path)!r})).trials.records();"
        "sys.exit('optuna' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", looking], check=False, capture_output=True).returncode == 0


def test_a_running_trial_is_shown_with_its_machine(sweeps, tmp_path):
    home = sweeps("mine", trials=ENTRIES[:1])
    with closing(open_ledger(home)) as ledger:
        record = ledger.trials.add({"lr": 0.1}, [1])
        ledger.trials.start(record.number, node="n2")
        ledger.change_sweep(status="running")
    assert "on n2" in shown("mine", tmp_path)
    with closing(open_ledger(home)) as ledger:
        ledger.change_sweep(status="interrupted")
    assert "on n2" not in shown("mine", tmp_path)


def test_what_cannot_win_is_shown_last_with_what_it_breaks(tmp_path):
    write_bounded(tmp_path / "s")
    lines = [" ".join(line.split()) for line in shown("s", tmp_path).splitlines()]
    assert "trial state score train_s env steps values why it ended, or where it runs" in lines
    rows = [line for line in lines if line[:1].isdigit()]
    assert [row.split()[0] for row in rows] == ["1", "2", "0", "3"]
    assert rows[0].startswith("1 complete 90 50 * 1,000 ")
    assert rows[1].startswith("2 complete 80 40 * 1,000 ")
    assert rows[2].endswith("cannot win: train_s=75.25, not < 60; whole")
    assert rows[3].startswith("3 stopped 70 80 250 ")
    assert rows[3].endswith("cannot win: train_s=80, not < 60; stopped")
    assert "* on the front: no other complete trial beats it in both score and train_s" in lines
    assert " 90 " in listed(tmp_path), "the best of the list is one that can win"


def test_a_sweep_where_all_break_a_constraint_says_so(tmp_path):
    write_sweep(tmp_path / "s", 2, None, "failed", 'constraints.train_s="< 0.5"')
    assert "no trial keeps train_s < 0.5, so there is no winner; the nearest is trial 1" in shown("s", tmp_path)


def test_a_trial_that_was_enqueued_says_by_whom(sweeps, tmp_path):
    home = sweeps("mine", trials=ENTRIES[:1])
    with closing(open_ledger(home)) as ledger:
        request = ledger.ask("enqueue", {"lr": 0.1}, "maria@host")
        ledger.trials.add({"lr": 0.1}, [1], request)
    assert shown("mine", tmp_path).count("enqueued by maria@host") == 1
