"""Many sweeps are read again and again: each change is seen, and what has not changed is not read."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import postgres
import pytest
from ended import damage_table, lock_ledger, make_certification, write_sweep
from ledger import add_reports
from sqlalchemy import event
from sqlalchemy.engine import Engine

from rltune.errors import StudyError, StudyUnavailableError
from rltune.ledger.ledger import Ledger
from rltune.ledger.outcome import Outcome
from rltune.ledger.storage import open_ledger
from rltune.views.description import summarize, summarize_all
from rltune.views.sweep_reader import SweepReader
from rltune.views.sweep_view import SweepView, load_view
from rltune.views.tables import list_sweeps


@pytest.fixture
def statements() -> Iterator[list[str]]:
    """The statements that are executed from now on."""
    executed: list[str] = []

    def note(connection: object, cursor: object, statement: str, *others: object) -> None:
        executed.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    yield executed
    event.remove(Engine, "before_cursor_execute", note)


def read(reader: SweepReader, folder: Path) -> SweepView:
    view = reader.read([folder])[folder]
    assert isinstance(view, SweepView), view
    return view


def test_a_ledger_that_has_not_changed_is_not_read_again(tmp_path: Path, statements: list[str]) -> None:
    folder, reader = write_sweep(tmp_path / "s", 2, None, "running"), SweepReader()
    assert read(reader, folder).best
    statements.clear()
    first = read(reader, folder)
    assert len(first.trials) == 2
    assert read(reader, folder) is first, "so that what was computed of it is not computed again"
    assert statements == []
    with closing(open_ledger(folder)) as ledger:
        add_reports(ledger, ledger.trials.add({"lr": 1e-3}, [1]).number, {200: 999.0})
    view = read(reader, folder)
    assert [trial.curve for trial in view.trials][2:] == [{200: 999.0}]


def test_a_sweep_is_named_after_its_folder(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "s", 1).rename(tmp_path / "renamed")
    view = read(SweepReader(), folder)
    assert (view.name, view.folder) == ("renamed", folder)


def test_a_sweep_that_was_begun_anew_is_read_anew(tmp_path: Path) -> None:
    folder, reader = write_sweep(tmp_path / "s", 4), SweepReader()
    assert len(read(reader, folder).trials) == 4
    shutil.rmtree(folder)
    write_sweep(tmp_path / "s", 2)
    assert len(read(reader, folder).trials) == 2


def test_each_sweep_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    good, bad, missing = write_sweep(tmp_path / "good", 1), write_sweep(tmp_path / "bad"), tmp_path / "missing"
    damage_table(bad / "ledger.db", "sweep_trials")
    results = SweepReader().read([good, bad, missing])
    assert [isinstance(results[folder], StudyError) for folder in (good, bad, missing)] == [False, True, True]


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE sweep_trials SET params = 'no JSON'",
        "UPDATE sweep_trials SET params = '[1, 2]', drawn = '3'",
        "UPDATE sweeps SET winner = '[3]'",
        "UPDATE sweeps SET mlflow = '\"text\"'",
        "UPDATE sweeps SET model = '7'",
        "UPDATE sweeps SET certification = '{\"a\": 1}'",
        "UPDATE sweeps SET config = '{half'",
        "UPDATE sweeps SET config = 'budget: 3'",
        "UPDATE sweeps SET wall_s = 'long'",
        "UPDATE sweeps SET status = x'ff00'",
        "UPDATE sweep_trials SET state = 'UNHEARD OF'",
        "UPDATE reports SET numbers = '3', score = 'high'",
        "UPDATE leases SET driver = '[]', driver_id = 'one'",
        "DROP TABLE reports",
    ],
)
def test_damaged_values_of_one_sweep_hide_no_other(tmp_path: Path, damage: str) -> None:
    certified = make_certification()
    good, bad = (write_sweep(tmp_path / name, 2, certified, "running") for name in ("good", "bad"))
    with closing(sqlite3.connect(bad / "ledger.db")) as raw, raw:
        raw.execute("INSERT OR IGNORE INTO leases (sweep_id, counter, released) VALUES (1, 1, 0)")
        raw.execute(damage)
    results = SweepReader().read([good, bad])
    assert isinstance(results[good], SweepView)
    described = summarize_all(results)
    assert [sweep["name"] for sweep in described] == ["good", "bad"]
    json.dumps(described, allow_nan=False)


def test_a_ledger_that_does_not_answer_delays_no_other(tmp_path: Path) -> None:
    good, silent, unread = (write_sweep(tmp_path / name, 2, None, "running") for name in ("good", "silent", "unread"))
    reader = SweepReader(answer_s=0.5)
    assert [read(reader, folder).stale_since_s for folder in (good, silent)] == [None, None]
    with closing(open_ledger(good)) as ledger:
        add_reports(ledger, ledger.trials.add({"lr": 1e-3}, [1]).number, {200: 999.0})
    locks, before_s = [lock_ledger(silent), lock_ledger(unread)], time.time()
    first, began_s = reader.read([silent, unread, good]), time.monotonic()
    second, elapsed_s = reader.read([silent, unread, good]), time.monotonic() - began_s
    assert elapsed_s < 0.5, "a database that does not answer was waited for again"
    for results in (first, second):
        stale, error, view = results[silent], results[unread], results[good]
        assert isinstance(stale, SweepView)
        assert isinstance(error, StudyUnavailableError)
        assert isinstance(view, SweepView)
        assert stale.stale_since_s is not None
        assert before_s <= stale.stale_since_s <= time.time()
        assert (len(stale.trials), len(view.trials), view.stale_since_s) == (2, 3, None)
    for connection in locks:
        connection.close()
    deadline = time.monotonic() + 10
    while any(not isinstance(view, SweepView) or view.stale_since_s for view in reader.read([silent, unread]).values()):
        assert time.monotonic() < deadline


# A driver that takes the lease of a sweep and then waits to be killed.
DRIVER = """
import sys, time
from pathlib import Path
from rltune.ledger.lease import take_lease
from rltune.ledger.storage import open_ledger
lease = take_lease(open_ledger(Path(sys.argv[1])))
print("taken", flush=True)
time.sleep(600)
"""


def test_a_sweep_whose_driver_was_killed_is_interrupted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, reader = write_sweep(tmp_path / "s", 2, None, "running"), SweepReader()
    Outcome("s", "interrupted", {"total": 2}, None, None, {}, folder=folder).save()  # An earlier end's.
    with closing(open_ledger(folder)) as ledger:
        ledger.trials.start(ledger.trials.add({"lr": 1e-3}, [1]).number)
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(folder)], stdout=subprocess.PIPE)
    assert driver.stdout is not None
    assert driver.stdout.readline()
    running = read(reader, folder)
    assert (running.status, running.trials[-1].state_word) == ("running", "running")
    driver.kill()
    driver.communicate()
    for view in (read(reader, folder), read(SweepReader(), folder), load_view(folder)):
        assert (view.status, view.trials[-1].state_word) == ("interrupted", "interrupted")
        assert view.outcome is None
        assert summarize(view)["status"] == "interrupted"
        list_sweeps(summarize_all({folder: view}), tmp_path)
        assert "interrupted" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.skipif(bool(postgres.missing()), reason=postgres.missing())
def test_the_sweeps_of_one_database_are_read_together(
    postgres_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statements: list[str]
) -> None:
    monkeypatch.setenv("PGPASSWORD", postgres.PASSWORD)
    reader, num_sweeps = SweepReader(), 20
    postgres.database(postgres_server, "sweeps")
    url = f"postgresql+psycopg://sweeper@{postgres_server.rpartition('@')[2]}sweeps"
    folders = []
    for number in range(num_sweeps + 1):
        folder = write_sweep(tmp_path / f"s{number}", 0, None, "complete", f"study.storage='{url}'")
        (folder / "ledger.db").unlink()
        folders.append(folder)
    lost = folders.pop()
    for number, folder in enumerate(folders):
        with closing(Ledger(url, folder.name, create=True)) as ledger:
            add_reports(ledger, ledger.trials.add({"lr": 0.1}, [1]).number, {200: float(number)})
    statements.clear()
    first = reader.read(folders)
    assert len(statements) < num_sweeps
    curves = [view.trials[0].curve for view in first.values() if isinstance(view, SweepView)]
    assert curves == [{200: float(number)} for number in range(num_sweeps)]
    with closing(Ledger(url, "s3")) as ledger:
        add_reports(ledger, 0, {400: 400.0})
    statements.clear()
    second = reader.read(folders)[folders[3]]
    assert len(statements) < num_sweeps
    assert isinstance(second, SweepView)
    assert second.trials[0].curve == {200: 3.0, 400: 400.0}
    results = reader.read([lost, *folders])
    assert [folder for folder, result in results.items() if isinstance(result, StudyError)] == [lost]
