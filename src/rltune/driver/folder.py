"""Make a sweep's folder, hold the sweep's lease, and store the folder's files in the bucket."""

from __future__ import annotations

import contextlib
import functools
import logging
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from rltune.checkpoints.clients import StoreError, forget_clients
from rltune.cluster.stale_processes import end_stale_processes, list_sessions
from rltune.config.authorship import MARK
from rltune.config.settings_file import write_settings
from rltune.driver.plan import Plan
from rltune.errors import StudyError
from rltune.ledger.handover import (
    find_successor,
    hand_over,
    has_newest,
    is_older_ledger,
    make_distant_ledger_error,
    take,
)
from rltune.ledger.sweep_folder import (
    LEDGER,
    SETTINGS,
    SWEEP_LOGGER,
    find_original,
    is_half_made,
    make_resume_command,
)
from rltune.secrets import redact
from rltune.trial.shared_store import leave_token

if TYPE_CHECKING:
    from rltune.ledger.lease import Lease
    from rltune.ledger.ledger import Ledger

# These files are uploaded at a sweep's start, because other machines recognize a sweep by its settings file.
BEGUN = (MARK, SETTINGS)
RESULTS = ("summary.json", "certification.*", "sweep.log", "report/*", "*/*/failure.txt")
logger = logging.getLogger("rltune")


class RedactingFormatter(logging.Formatter):
    """Formats log records, including their tracebacks, without passwords."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a log record."""
        return redact(super().format(record))


@contextlib.contextmanager
def hold_sweep(plan: Plan, stream: TextIO | None = None) -> Iterator[Ledger]:
    """Open a sweep's ledger, take its lease, and then kill processes that an earlier, dead driver left running.

    The folder of a new sweep is made first. A copy of a sweep's folder becomes a sweep of its own, with another key. So
    does a sweep that was taken over from a driver whose ledger is lost, which may still write to the trackers.

    Args:
        plan: The sweep's plan.
        stream: Where to print that the folder is a copy; None is standard output.

    Raises:
        StudyError: The folder is another sweep's, or the ledger is missing, damaged, or of another sweep.
        StudyUnavailableError: Another driver has the lease.
    """
    # Imported only now, because SQLAlchemy's import then overlaps with Ray's start.
    from rltune.ledger.ledger import make_key
    from rltune.ledger.storage import set_journal, start_ledger

    folder = plan.folder
    if not plan.resumed:
        _make_folder(folder)
    ledger = start_ledger(plan.ledger_url, folder, new=not plan.resumed)
    with contextlib.closing(ledger):
        original = _find_original(plan, ledger) if plan.resumed else None
        branch = ""  # Why the sweep goes on as another one.
        if original:
            branch = f"is a copy of {original}: from now on a sweep of its own"
        elif plan.resumed and is_older_ledger(folder):
            branch = "goes on from an older ledger: in MLflow, too, as a sweep beside the one that was given up"
        with _hold_lease(ledger, make_key() if branch or not plan.resumed else None) as lease:
            if branch:
                # The tracker of a sweep that was taken over ends the old runs, which it knows by their key.
                old_run_id = None if original else ledger.sweep().mlflow_run_id
                ledger.forget_mlflow()
                ledger.change_sweep(mlflow_run_id=old_run_id)
                print(f"{folder.name} {branch}", file=stream, flush=True)
            if plan.resumed:
                ledger.add_columns()
            set_journal(ledger, plan.is_folder_shared())
            if lease.previous:
                end_stale_processes(lease.previous.sessions)
            _clear_leftovers(folder)
            yield ledger


@contextlib.contextmanager
def _hold_lease(ledger: Ledger, new_key: str | None) -> Iterator[Lease]:
    """Hold a sweep's lease, and set the sweep's status back if nothing was begun, as when a check fails."""
    from sqlalchemy.exc import SQLAlchemyError

    from rltune.ledger.lease import take_lease

    with take_lease(ledger, new_key) as lease:
        try:
            yield lease
        finally:
            if lease.replaced_status and not lease.is_lost:
                with contextlib.suppress(StudyError, SQLAlchemyError):
                    ledger.change_sweep(status=lease.replaced_status)


def _find_original(plan: Plan, ledger: Ledger) -> Path | None:
    """Return the folder of which a sweep's folder is a copy with a ledger of its own; None if it is no copy.

    Folders of a sweep in a bucket are places where it is driven by turns, so that a copy there is the same sweep.

    Raises:
        StudyError: It is a copy whose ledger is the original's row in a database.
    """
    original = None if plan.open_store().address else find_original(plan.folder, ledger.sweep().folder)
    if original and plan.ledger_url:
        raise StudyError(
            f": {plan.folder} is a copy of {original}, and both have the same ledger",
            "the folder of the sweep that is in the database",
            make_resume_command(original),
            key="sweep",
            value=plan.name,
        )
    return original


def _make_folder(folder: Path) -> None:
    """Make the folder of a new sweep; a folder that a killed driver has only begun to fill is used again.

    Raises:
        StudyError: Another sweep has it.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        if not is_half_made(folder):
            raise make_name_taken_error(folder.name, folder) from None
        folder.chmod(0o700)


@contextlib.contextmanager
def open_folder(plan: Plan, ledger: Ledger, stream: TextIO | None = None) -> Iterator[None]:
    """Write the settings to the sweep's folder, log to ``sweep.log``, and upload the results at the end.

    Args:
        plan: The sweep's plan.
        ledger: The sweep's ledger, whose lease this driver holds.
        stream: Where to print what could not be uploaded; None is standard output.

    Raises:
        StudyError: The storage cannot be used, or has a newer state of the sweep.
    """
    assert ledger.lease is not None
    folder, store = plan.folder, plan.open_store()
    with contextlib.ExitStack() as stack:
        # Drop this sweep's clients of the bucket, so that the next sweep of the process gets clients without a
        # deadline.
        stack.callback(forget_clients)
        ledger.lease.note_sessions(list_sessions())
        write_settings(folder, plan.given_settings, ledger.key)
        ledger.lease.replaced_status = ""
        if ledger.is_file and not has_newest(store):
            raise make_distant_ledger_error(folder)
        take(store, ledger.lease.id)
        ledger.lease.find_successor = functools.partial(find_successor, store, ledger.lease.id)
        stack.callback(store_results, plan, ledger, stream)
        store.publish(_find_files(folder, BEGUN))
        if plan.is_joined:
            stack.enter_context(leave_token(store, ledger.lease.id))
        stack.enter_context(_log_to_file(folder / "sweep.log"))
        yield


@contextlib.contextmanager
def _log_to_file(path: Path) -> Iterator[None]:
    handler = logging.FileHandler(path, encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(RedactingFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    loggers = logger, logging.getLogger(SWEEP_LOGGER), logging.getLogger("ray.tune")
    for each in loggers:
        each.addHandler(handler)
    try:
        yield
    finally:
        for each in loggers:
            each.removeHandler(handler)
        handler.close()


def _clear_leftovers(folder: Path) -> None:
    """Remove the temporary folder of Ray Tune, which a driver leaves behind if it is killed or exits at once."""
    shutil.rmtree(folder / ".tune", ignore_errors=True)


def leave_folder(folder: Path, ledger: Ledger) -> None:
    """Clean up and release the lease in a process that exits without closing its context managers."""
    if ledger.lease and not ledger.lease.is_lost:
        _clear_leftovers(folder)
        ledger.lease.release()


def make_name_taken_error(name: str, folder: Path) -> StudyError:
    """Make the error for a new sweep whose name is already taken."""
    return StudyError(
        f": {folder} exists", "a name of its own for each sweep", make_resume_command(folder), key="name", value=name
    )


def store_results(plan: Plan, ledger: Ledger, stream: TextIO | None = None) -> None:
    """Upload the ledger and the results to the bucket; print what could not be uploaded.

    A driver that has lost its lease stores nothing: the files are another driver's.
    """
    from rltune.ledger.lease import LeaseLostError
    from rltune.ledger.storage import copy_ledger

    folder, store = plan.folder, plan.open_store()
    if ledger.lease is None or ledger.lease.is_lost:
        return
    if not store.address:
        # Without a bucket, nothing has to be uploaded.
        return
    files = {name: name for name in _find_files(folder, RESULTS)}
    draft, problem = folder / f".{LEDGER}", ""
    try:
        ledger.lease.check_bucket()
        if ledger.is_file:
            copy_ledger(folder / LEDGER, draft)
            files = {LEDGER: draft.name} | files
        store.publish(files)
        hand_over(store, ledger.lease.id)
    except LeaseLostError as error:
        problem = error.what
    except (StoreError, OSError, sqlite3.Error) as error:
        logger.warning("storing the sweep's files failed", exc_info=error)
        problem = f"some files of {folder}; {make_resume_command(folder)} stores them again"
    finally:
        draft.unlink(missing_ok=True)
    if problem:
        print(f"not stored: {problem}", file=stream, flush=True)


def _find_files(folder: Path, patterns: Sequence[str]) -> list[str]:
    files = [path for pattern in patterns for path in sorted(folder.glob(pattern)) if path.is_file()]
    return [path.relative_to(folder).as_posix() for path in files]
