"""A sweep's folder is made, its lease held and given back."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ended import write_sweep
from opened import plan_of
from pyarrow.fs import LocalFileSystem

from rltune.checkpoints.clients import Client, StoreUnavailableError, make_address
from rltune.checkpoints.store import Store
from rltune.config.settings_file import read_identity
from rltune.driver import folder as folder_module
from rltune.driver import run as run_module
from rltune.driver.folder import RedactingFormatter, _log_to_file, hold_sweep, open_folder, store_results
from rltune.driver.plan import Plan, make_plan
from rltune.driver.provenance import record_start
from rltune.driver.starting import check_request
from rltune.errors import StudyError, UnavailableError
from rltune.ledger.handover import fetch_sweep, take
from rltune.ledger.storage import open_ledger, start_ledger
from rltune.ledger.sweep_ref import SweepRef
from rltune.secrets import conceal
from rltune.views.sweep_reader import SweepReader


def begin(folder: Path) -> None:
    """Leave what a driver leaves that has begun a sweep."""
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(start_ledger(None, folder, new=True)) as ledger:
        ledger.change_sweep(config="format: 12")


def test_one_driver_at_a_time_has_a_sweep(tmp_path: Path) -> None:
    begin(tmp_path)
    with hold_sweep(plan_of(tmp_path)), pytest.raises(UnavailableError) as refused, hold_sweep(plan_of(tmp_path)):
        pass
    assert (refused.value.key, refused.value.exit_code) == ("sweep", 75)
    with hold_sweep(plan_of(tmp_path)):
        pass


def test_a_sweep_that_was_begun_meanwhile_is_not_begun_again(tmp_path: Path) -> None:
    begin(tmp_path)
    with pytest.raises(StudyError) as refused, hold_sweep(replace(plan_of(tmp_path), resumed=False)):
        pass
    assert (refused.value.key, refused.value.exit_code) == ("name", 2)


def test_a_driver_clears_what_a_killed_one_left(tmp_path: Path) -> None:
    begin(tmp_path)
    (tmp_path / ".tune").mkdir()
    with hold_sweep(plan_of(tmp_path)):
        assert not (tmp_path / ".tune").exists()


def test_a_new_sweep_survives_a_bucket_that_goes_away_later(request_of: Callable[..., Any], tmp_path: Path) -> None:
    folder = tmp_path / "outputs" / "x"
    plan = make_plan(request_of("cluster=address", "name=x", f"output_dir={folder.parent}"))
    with pytest.raises(StoreUnavailableError), hold_sweep(plan) as ledger, open_folder(plan, ledger):
        raise StoreUnavailableError("does not answer", "", "", key="storage", value="s3://x")
    assert (folder / "ledger.db").exists()


def die_in(step: str, plan: Plan) -> None:
    """Make a sweep's folder in a process that is killed as this step begins."""

    def die(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if (child := os.fork()) == 0:
        try:
            owner, _, name = step.rpartition(".")
            setattr(logging if owner else folder_module, name, die)
            with hold_sweep(plan) as ledger, open_folder(plan, ledger):
                die()
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL


@pytest.mark.parametrize(
    ("step", "begun"),
    [
        ("_clear_leftovers", False),
        ("list_sessions", False),
        ("write_settings", False),
        ("logging.FileHandler", True),
        ("nothing of it", True),
    ],
)
def test_a_folder_whose_driver_was_killed_has_a_way_on(
    step: str, begun: bool, request_of: Callable[..., Any], tmp_path: Path
) -> None:
    config = request_of("tracking=off", "name=x")
    folder = tmp_path / "outputs/x"
    plan = make_plan(config)
    die_in(step, plan)
    if begun:
        with pytest.raises(StudyError, match="name=x") as refused:
            check_request(config)
        assert "resume sweep=x" in refused.value.fix
        assert SweepRef("x", tmp_path / "outputs").folder() == folder
        start_ledger(None, folder, new=False).close()
    else:
        with pytest.raises(StudyError) as refused:
            SweepRef("x", tmp_path / "outputs").folder()
        assert refused.value.key == "sweep"
        assert "run name=x" in refused.value.fix
        check_request(config)
        with hold_sweep(plan) as ledger, open_folder(plan, ledger):
            pass
        assert SweepRef("x", tmp_path / "outputs").folder() == folder


@pytest.mark.parametrize("step", ["list_sessions", "write_settings", "logging.FileHandler"])
def test_an_extension_killed_at_its_settings_is_unfinished(step: str, tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "mine", 2, None, "complete")
    plan = plan_of(folder)
    assert read_status(folder) == "complete"
    die_in(step, plan)
    assert read_status(folder) == "running", "the same command goes on with it"
    with hold_sweep(plan) as ledger, open_folder(plan, ledger):
        ledger.change_sweep(status="complete")
    assert read_status(folder) == "complete"


def test_a_start_that_changes_nothing_leaves_an_ended_sweep(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "mine", 2, None, "complete")
    with pytest.raises(UnavailableError), hold_sweep(plan_of(folder)):
        raise UnavailableError("Ray did not start", "", "")
    assert read_status(folder) == "complete"


# -- one key for each sweep --------------------------------------------------------------------------------------------


def hold(folder: Path, *words: str, new: bool = False) -> str:
    """Begin or continue a sweep as its driver does, and return its key, which its folder and its ledger both have."""
    plan = plan_of(folder, *words)
    plan = replace(plan, resumed=not new, ledger_url=find_address(words))
    stream = io.StringIO()
    with hold_sweep(plan, stream) as ledger, open_folder(plan, ledger):
        record_start(ledger, folder, plan.settings, None)
        key = ledger.sweep().key
    assert read_identity(folder).key == key
    assert ("copy of" in stream.getvalue()) is ("copy" in folder.name)
    return key


def find_address(words: tuple[str, ...]) -> str | None:
    return next((word.partition("=")[2] for word in words if word.startswith("study.storage=")), None)


def test_a_copied_folder_becomes_a_sweep_of_its_own(tmp_path: Path) -> None:
    first, copy = tmp_path / "first", tmp_path / "copy"
    key = hold(first, new=True)
    with contextlib.closing(start_ledger(None, first, new=False)) as ledger:
        ledger.trials.add({}, [1])
        ledger.trials.change(0, mlflow_run_id="child")
        ledger.change_sweep(mlflow_run_id="parent")
        ledger.mark_reports("mlflow", 7)
        ledger.mark_trial("wandb", "trials", 0, revision=1)
    shutil.copytree(first, copy)
    assert hold(copy) != key
    with contextlib.closing(start_ledger(None, copy, new=False)) as ledger:
        assert (ledger.sweep().mlflow_run_id, ledger.trials.record(0).mlflow_run_id) == (None, None)
        assert ledger.read_delivered_report("mlflow") == 0
        assert [trial.delivered for trial in ledger.read_pending_trials("wandb")] == [0]
    assert hold(first) == key, "the original goes on as it was"
    again = tmp_path / "copy-of-the-copy"
    shutil.copytree(copy, again)
    assert len({hold(again), hold(copy.rename(tmp_path / "moved")), key}) == 3


def test_a_moved_folder_stays_the_same_sweep(tmp_path: Path) -> None:
    key = hold(tmp_path / "first", new=True)
    moved = (tmp_path / "first").rename(tmp_path / "moved")
    (tmp_path / "link").symlink_to(moved)
    hold(tmp_path / "first", new=True)
    assert hold(moved) == hold(tmp_path / "link") == key, "another sweep has its earlier place"


@pytest.mark.parametrize("step", ["set_journal", "list_sessions", "write_settings", "logging.FileHandler"])
def test_a_copy_whose_driver_was_killed_is_still_a_copy(step: str, tmp_path: Path) -> None:
    first, copy = tmp_path / "first", tmp_path / "copy"
    key = hold(first, new=True)
    with contextlib.closing(start_ledger(None, first, new=False)) as ledger:
        ledger.change_sweep(mlflow_run_id="parent")
    shutil.copytree(first, copy)
    die_in(step, plan_of(copy))
    plan = plan_of(copy)
    with hold_sweep(plan, io.StringIO()) as ledger, open_folder(plan, ledger):
        assert (ledger.sweep().key == key, ledger.sweep().mlflow_run_id) == (False, None)


@pytest.mark.parametrize("step", [None, "set_journal", "list_sessions", "write_settings"])
def test_a_sweep_taken_over_shares_no_run_with_the_old_driver(
    step: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger in the bucket is older than what the driver that was given up has sent, and may still send."""
    files = LocalFileSystem()

    def open_bucket(machine: Path) -> Store:
        (tmp_path / "bucket").mkdir(exist_ok=True)
        return Store(Client(lambda: files), str(tmp_path / "bucket"), machine, address="s3://bucket/turns")

    monkeypatch.setattr(Plan, "open_store", lambda plan: open_bucket(plan.folder))
    first, second, third = (tmp_path / name / "turns" for name in ("first", "second", "third"))
    for folder in (first, second, third):
        folder.mkdir(parents=True)
    key = hold(first, new=True)
    fetch_sweep(open_bucket(third))
    plan = plan_of(first)
    with hold_sweep(plan) as ledger, open_folder(plan, ledger):
        ledger.trials.add({}, [1])
        ledger.trials.change(0, mlflow_run_id="child")
        ledger.change_sweep(mlflow_run_id="parent")
        ledger.mark_reports("MLflow", 7)
        store_results(plan, ledger)
        take(plan.open_store(), ledger.lease.id)  # it goes on
        fetch_sweep(open_bucket(second), for_driver=True, take_over=True)
        if step:
            die_in(step, plan_of(second))
        plan = plan_of(second)
        with hold_sweep(plan, io.StringIO()) as taken, open_folder(plan, taken):
            assert taken.sweep().key not in (key, None)
            assert taken.trials.record(0).mlflow_run_id is None
            assert taken.read_delivered_report("MLflow") == 0
            key = taken.sweep().key
        assert ledger.has_lost_ownership()
    assert hold(second) == key, "once"
    fetch_sweep(open_bucket(third), for_driver=True)
    assert hold(third) == key, "a machine that changed nothing meanwhile goes on"
    fetch_sweep(open_bucket(first))
    with pytest.raises(StudyError) as refused:
        fetch_sweep(open_bucket(first), for_driver=True)
    assert refused.value.key == "sweep"


def test_a_row_that_another_folder_has_taken_is_refused(tmp_path: Path) -> None:
    address = f"study.storage=sqlite:///{tmp_path / 'shared.db'}"
    ours, theirs = tmp_path / "ours/night", tmp_path / "theirs/night"
    for folder in (ours, theirs):
        folder.parent.mkdir()
        plan = replace(plan_of(folder, address), ledger_url=find_address((address,)))
        if folder == ours:
            die_in("logging.FileHandler", plan)
    hold(theirs, address, new=True)
    with pytest.raises(StudyError) as refused:
        hold(ours, address)
    assert (refused.value.key, refused.value.exit_code, "name=" in refused.value.fix) == ("sweep", 2, True)
    with pytest.raises(StudyError):
        open_ledger(ours)
    (result,) = SweepReader().read([ours]).values()
    assert isinstance(result, StudyError)
    hold(theirs, address)


def test_a_copy_with_the_ledger_of_its_original_is_refused(tmp_path: Path) -> None:
    address = f"study.storage=sqlite:///{tmp_path / 'shared.db'}"
    first = tmp_path / "first/night"
    first.parent.mkdir()
    hold(first, address, new=True)
    shutil.copytree(first.parent, tmp_path / "second")
    with pytest.raises(StudyError) as refused:
        hold(tmp_path / "second/night", address)
    assert (refused.value.key, "resume sweep=night" in refused.value.fix) == ("sweep", True)


def read_status(folder: Path) -> str | None:
    """Read a sweep's status as later commands do."""
    with contextlib.closing(start_ledger(None, folder, new=False)) as ledger:
        return ledger.sweep().status


def test_a_logged_traceback_holds_no_login() -> None:
    conceal("http://me:open/sesame@mlflow.example")
    try:
        raise ValueError("host 'sesame@mlflow.example'")
    except ValueError:
        record = logging.LogRecord("rltune", logging.ERROR, __file__, 1, "lost open/sesame", (), sys.exc_info())
    shown = RedactingFormatter("%(message)s").format(record)
    assert "lost ***" in shown
    assert "sesame" not in shown


# -- one sweep, driven from several machines by turns ------------------------------------------------------------------


@pytest.fixture
def drive(
    request_of: Callable[..., Any], s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: io.StringIO
) -> Callable[..., list[int]]:
    """Go on with the sweep ``turns`` on a machine by name, where one more trial is added; without a Ray."""

    def go_on(
        machine: str, *words: str, killed: bool = False, meanwhile: Callable[[], object] = lambda: None
    ) -> list[int]:
        numbers: list[int] = []

        def work(plan: Plan, *_: Any) -> Any:
            with contextlib.ExitStack() as stack:
                ledger = stack.enter_context(hold_sweep(plan))
                if killed:  # it stores nothing any more
                    patch = stack.enter_context(monkeypatch.context())
                    patch.setattr(folder_module, "store_results", lambda *_: None)
                stack.enter_context(open_folder(plan, ledger))
                ledger.trials.add({"quality": 0.5}, [ledger.trials.num_trials])
                numbers.extend(record.number for record in ledger.trials.records())
                meanwhile()
                ledger.close()

        monkeypatch.setattr(run_module, "drive", work)
        storage = make_address(s3, tmp_path.name)
        place = f"output_dir={tmp_path / machine}", "name=turns", f"storage={storage!r}", "tracking=off", "resume=auto"
        run_module.run_sweep(request_of(*place, *words), stream=stream)
        return numbers

    return go_on


@pytest.mark.slow  # a server
def test_a_driver_that_was_taken_over_stores_nothing(drive: Callable[..., list[int]]) -> None:
    def take_over() -> None:
        assert drive("b", "take_over=true") == [0, 1]
        assert drive("b") == [0, 1, 2]

    assert drive("a") == [0]
    assert drive("a", meanwhile=take_over) == [0, 1]
    assert drive("c") == [0, 1, 2, 3]


@pytest.mark.slow  # a server
def test_a_machine_goes_on_from_where_another_one_came(
    drive: Callable[..., list[int]], tmp_path: Path, stream: io.StringIO
) -> None:
    assert drive("a") == [0]
    assert drive("b") == [0, 1]
    assert drive("b") == [0, 1, 2]
    assert all(line.endswith("starting Ray ...") for line in stream.getvalue().splitlines()), "nothing is reported"
    assert drive("a") == [0, 1, 2, 3], "not from its own ledger, which knows one trial"
    assert drive("b", "budget.trials=90") == [0, 1, 2, 3, 4]


@pytest.mark.slow
def test_a_ledger_that_another_machine_still_has_is_not_gone_without(
    drive: Callable[..., list[int]], tmp_path: Path, stream: io.StringIO
) -> None:
    assert drive("a", "name=kept") == [0]
    assert drive("b", "name=kept", killed=True) == [0, 1]
    with pytest.raises(StudyError) as refused:
        drive("a", "name=kept")
    assert refused.value.key == "sweep"
    assert "take_over=true" in refused.value.fix
    assert drive("b", "name=kept") == [0, 1, 2], "the machine with the newest ledger goes on"
    assert drive("b", "name=kept", killed=True) == [0, 1, 2, 3]
    assert drive("a", "name=kept", "take_over=true") == [0, 1, 2, 3], "the killed driver's trial is lost"
    with pytest.raises(StudyError) as refused:
        drive("b", "name=kept")
    assert refused.value.key == "sweep"
    with contextlib.closing(sqlite3.connect(tmp_path / "b/kept/ledger.db")) as opened:
        assert len(opened.execute("SELECT number FROM sweep_trials").fetchall()) == 4, "it is kept"
    (tmp_path / "b/kept").rename(tmp_path / "b/aside")
    assert drive("b", "name=kept") == [0, 1, 2, 3, 4]


@pytest.mark.slow
def test_two_machines_that_begin_at_once_do_not_both_go_on(
    drive: Callable[..., list[int]], tmp_path: Path, s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert drive("a", "name=race") == [0]
    fetch = run_module.fetch_sweep

    def be_late(*arguments: Any, **options: Any) -> None:
        monkeypatch.setattr(run_module, "fetch_sweep", fetch)
        fetch(*arguments, **options)
        assert drive("b", "name=race") == [0, 1], "meanwhile"

    monkeypatch.setattr(run_module, "fetch_sweep", be_late)
    with pytest.raises(StudyError) as refused:
        drive("a", "name=race")
    assert refused.value.key == "sweep"
    assert drive("b", "name=race") == [0, 1, 2], "nothing of the late one's went into the storage"


def test_a_log_takes_any_text(tmp_path: Path) -> None:
    with _log_to_file(tmp_path / "sweep.log"):
        logging.getLogger("rltune").error("a lone surrogate: \ud800")
    assert "\\ud800" in (tmp_path / "sweep.log").read_text()
