"""What list and show print of sweeps."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import closing

import pytest
from ended import make_certification, write_bounded, write_cost_sweep, write_sweep
from ledger import ENTRIES, add_reports, make_ledger

from rltune.errors import StudyError
from rltune.ledger.storage import open_ledger
from rltune.ledger.sweep_ref import SweepRef
from rltune.views.description import summarize_all
from rltune.views.tables import list_sweeps, read_sweep, read_sweeps, show_sweep


@pytest.fixture
def sweeps(tmp_path):
    """A folder with one sweep, and what makes more."""

    def add(name, age=0, trials=ENTRIES[:5], storage=None):
        home = tmp_path / name
        home.mkdir(parents=True)
        (home / "config.yaml").write_text(f"format: 12\nstudy:\n  storage: {storage or 'null'}\n")
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
    list_sweeps(summarize_all(read_sweeps(ref := SweepRef(output_dir=tmp_path))), ref.root, stream)
    return stream.getvalue()


def shown(sweep, tmp_path):
    stream = io.StringIO()
    show_sweep(read_sweep(SweepRef(sweep, tmp_path)), stream)
    return stream.getvalue()


def rows_of(text):
    """The words of each trial's line."""
    return [line.split() for line in text.split("\n\n")[1].splitlines() if line[:1].isdigit()]


def test_the_list_of_sweeps(sweeps, tmp_path, golden):
    long = "acrobot-ppo-20260304-050607-a1b2-and-a-name-of-ones-own"  # Never broken over two lines: it is copied.
    typed = "python -m sweeps.run algo=dqn env=acrobot budget.trials=3"
    with closing(open_ledger(sweeps("older", age=100))) as ledger:
        ledger.change_sweep(command=typed, began="2026-11-21T21:22:12+00:00", certification=make_certification())
    sweeps(long, age=10)
    (sweeps("ancient", trials=()) / "config.yaml").write_text("study: {storage: null}\n")
    golden("list", listed(tmp_path).replace(str(tmp_path), "<folder>"))


def test_the_list_tells_sweeps_by_their_environments_settings(tmp_path):
    path = write_sweep(tmp_path / "walk", 2)
    with closing(open_ledger(path)) as ledger:
        ledger.change_sweep(command="rltune run env=gym '+env.kwargs={size: 4}' budget.trials=3")
    row = next(line for line in listed(tmp_path).splitlines() if line.startswith("walk"))
    assert row.rstrip().endswith("env=gym '+env.kwargs={size: 4}' budget.trials=3")


def test_the_trials_of_a_sweep(tmp_path, golden):
    """Trials that cannot win stand last, with what they break."""
    with closing(open_ledger(write_bounded(tmp_path / "s"))) as ledger:
        request = ledger.add_request("enqueue", {"lr": 0.1}, "maria@host")
        ledger.trials.add({"lr": 0.1, "layers": ["relu", "[box]"]}, [1], request)
        ledger.trials.end(4, "FAIL", "shape [box] is unknown\nTraceback")
    golden("show", shown("s", tmp_path).replace(str(tmp_path), "<folder>"))


def test_the_list_counts_the_trials_that_the_budget_has(tmp_path):
    write_sweep(tmp_path / "begun", 2, None, "interrupted")
    row = next(line for line in listed(tmp_path).splitlines() if line.startswith("begun"))
    assert row.split()[2:5] == ["1/1/0", "of", "24"]


def test_a_cost_is_listed_and_printed_as_the_person_knows_it(tmp_path):
    write_cost_sweep(tmp_path / "thrifty")
    row = next(line for line in listed(tmp_path).splitlines() if line.startswith("thrifty"))
    assert row.split()[5:7] == ["24", "99"], "the least energy, and the certified one"
    text = shown("thrifty", tmp_path)
    assert rows_of(text)[0][:3] == ["3", "complete", "24"]
    assert "-24" not in text.replace(str(tmp_path), "")


def test_a_list_fits_a_terminal_of_eighty_columns(sweeps, tmp_path, terminal):
    names = ("dict-ppo-20261121-212212-b28c", "halfcheetah-sac-20261121-2122-b28c")
    for name in names:
        sweeps(name)
    list_sweeps(summarize_all(read_sweeps(ref := SweepRef(output_dir=tmp_path))), ref.root, terminal)
    lines = terminal.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert {tuple(line.split()[:2]) for line in lines if line.startswith(names)} == {(n, "complete") for n in names}


def test_on_a_narrow_terminal_a_long_name_stays_whole(sweeps, tmp_path, terminal):
    long = "lunarlander_continuous-ppo-20261121-212212-b28c-of-my-own-choice"
    sweeps(long)
    list_sweeps(summarize_all(read_sweeps(ref := SweepRef(output_dir=tmp_path))), ref.root, terminal)
    assert terminal.getvalue().splitlines()[1].split()[:2] == [long, "complete"]


def test_a_failed_trials_reports_do_not_make_a_sweep_look_good(sweeps, tmp_path):
    sweeps("s")
    assert "99" not in listed(tmp_path), "its only 99 is a trial whose process died"


def test_a_damaged_sweep_does_not_hide_the_others(sweeps, tmp_path):
    sweeps("good")
    (sweeps("torn", trials=()) / "ledger.db").write_bytes(b"no database at all" * 100)
    (sweeps("lost", trials=()) / "ledger.db").unlink()
    (sweeps("garbled", trials=()) / "config.yaml").write_text("study: [half")
    states = {line.split()[0]: line.split()[1] for line in listed(tmp_path).splitlines()[1:5]}
    assert states == {"good": "complete", **dict.fromkeys(("torn", "lost", "garbled"), "unreadable")}


def test_a_database_behind_a_login_is_read_with_its_address(sweeps, tmp_path):
    kept = sweeps("kept")
    home = sweeps("far", storage="postgresql+psycopg://***@db.example/rl")
    elsewhere = f"sqlite:///{(home / 'ledger.db').rename(tmp_path / 'of-several.db')}"
    stream = io.StringIO()
    list_sweeps(
        summarize_all(read_sweeps(ref := SweepRef(output_dir=tmp_path, ledger_url=elsewhere))), ref.root, stream
    )
    states = {line.split()[0]: line.split()[1:3] for line in stream.getvalue().splitlines()[1:-1]}
    assert states == {kept.name: ["complete", "1/2/1"], "far": ["complete", "1/2/1"]}
    with pytest.raises(StudyError) as refused:
        shown("far", tmp_path)
    assert refused.value.key == "study.storage"
    show_sweep(read_sweep(SweepRef("far", tmp_path, ledger_url=elsewhere)), stream)
    assert "far: complete" in stream.getvalue()


def test_an_older_sweep_is_refused_in_three_parts(sweeps, tmp_path):
    sweeps("newer", age=100)
    home = sweeps("older", trials=())  # the newest by its time
    (home / "config.yaml").write_text("name: older\nstudy: {storage: null}\n")
    for name in ("older", "latest"):
        with pytest.raises(StudyError) as refused:
            shown(name, tmp_path)
        assert str(home) in refused.value.what
        assert refused.value.allowed
        assert refused.value.fix
    assert shown("newer", tmp_path).startswith("newer: complete")


def test_a_folder_without_sweeps_says_how_to_start_one(tmp_path):
    assert "sweeps.run algo=ppo" in listed(tmp_path / ("a-long-way-down-" * 6))
    assert list(tmp_path.iterdir()) == [], "looking makes no folder"


def test_trials_of_every_state_are_printed(sweeps, tmp_path):
    sweeps("s")
    rows = rows_of(shown("s", tmp_path))
    assert {row[0]: row[1] for row in rows} == {
        **{"0": "complete", "1": "stopped", "2": "stopped", "3": "failed"},
        "4": "interrupted",  # The sweep has ended, so that no trial runs.
    }


def test_an_uncertified_winner_need_not_be_the_searchs_first(sweeps, tmp_path):
    played = {"episodes": 10, "mean": 163.1, "low": 150.0, "high": 170.0}
    with closing(open_ledger(sweeps("s"))) as ledger:
        ledger.change_sweep(winner={"name": "trial 1", "trial": 1, "objective": 12.0, "evaluation": played})
    (line,) = (line for line in shown("s", tmp_path).splitlines() if "163.1" in line)
    assert "Trial 1 " in line


def test_latest_is_the_sweep_that_was_worked_on_last(sweeps, tmp_path):
    sweeps("older", age=100, trials=())
    sweeps("newer", age=10, trials=())
    assert shown("latest", tmp_path).startswith("newer:")


def test_an_unknown_sweep_is_answered_with_the_nearest(sweeps, tmp_path):
    sweeps("cartpole-one", trials=())
    with pytest.raises(StudyError) as refused:
        shown("cartpole-on", tmp_path)
    assert refused.value.key == "sweep"
    assert "'cartpole-one'" in refused.value.allowed
    assert refused.value.fix == "sweep=cartpole-one"
    with pytest.raises(StudyError) as refused:
        shown("lates", tmp_path)
    assert refused.value.fix == "sweep=latest"


@pytest.mark.slow
def test_looking_at_a_sweep_needs_no_optuna(sweeps, tmp_path):
    sweeps("s")
    looking = (
        "import sys, rltune; from rltune.views.description import summarize_all;"
        "from rltune.views.tables import list_sweeps, read_sweep, read_sweeps, show_sweep;"
        f"ref = rltune.SweepRef('s', {str(tmp_path)!r});"
        "list_sweeps(summarize_all(read_sweeps(ref)), ref.root); show_sweep(read_sweep(ref));"
        "ref.open_ledger().trials.records();"
        "sys.exit('optuna' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", looking], check=False, capture_output=True).returncode == 0


@pytest.mark.parametrize("status", ["running", "interrupted"])
def test_a_running_trial_is_printed_with_its_node(sweeps, tmp_path, status):
    home = sweeps("mine", trials=ENTRIES[:1])
    with closing(open_ledger(home)) as ledger:
        record = ledger.trials.add({"lr": 0.1}, [1])
        ledger.trials.start(record.number, node="n2")
        ledger.change_sweep(status=status)
    assert ("on n2" in shown("mine", tmp_path)) is (status == "running")


def test_a_sweep_where_all_break_a_constraint_says_so(tmp_path):
    write_sweep(tmp_path / "s", 2, None, "failed", 'constraints.train_s="< 0.5"')
    assert "train_s < 0.5" in shown("s", tmp_path).splitlines()[-1]
