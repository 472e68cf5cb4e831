"""Make a sweep's folder, and hold the sweep's lease. Runs in the driver."""

from __future__ import annotations

import contextlib
import functools
import logging
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rltune.checkpoints.clients import StoreError, forget_clients
from rltune.checkpoints.handover import hand_over, has_newest, is_taken_over, take
from rltune.checkpoints.store import Store
from rltune.cluster.shared_storage import check_nodes
from rltune.cluster.stale_processes import end_stale_processes, list_sessions
from rltune.config.authorship import MARK
from rltune.config.settings_file import write_settings
from rltune.config.uris import redact
from rltune.driver.context import SweepContext
from rltune.errors import StudyError
from rltune.ledger.sweep_folder import (
    LEDGER,
    LEDGER_COPY,
    SETTINGS,
    TOLD,
    is_half_made,
    make_distant_ledger_error,
    make_resume_command,
)
from rltune.trial.shared_files import find_blindness, leave_token, make_blind_error

if TYPE_CHECKING:
    from rltune.ledger.ledger import Ledger

BEGUN = (MARK, SETTINGS)  # The files that a storage has of a sweep from its start on: the settings make it a sweep.
RESULTS = ("summary.json", "certification.*", "sweep.log", "report/*", "*/*/failure.txt")
logger = logging.getLogger("rltune")


class RedactingFormatter(logging.Formatter):
    """Format a record, its traceback included, without logins."""

    def format(self, record: logging.LogRecord) -> str:
        """Format it."""
        return redact(super().format(record))


@contextlib.contextmanager
def open_folder(context: SweepContext, ledger: Ledger | None = None) -> Iterator[Ledger]:
    """Make the sweep's folder, or find it; write its settings now and its log meanwhile.

    Args:
        context: What the driver works on.
        ledger: The ledger of a resumed sweep, whose lease this driver holds; None for a new one.

    Yields:
        The ledger.

    Raises:
        StudyError: The folder exists already, or another driver has it.
    """
    folder = context.folder
    with contextlib.ExitStack() as stack:
        if ledger is None:
            _make_folder(context)
            ledger = stack.enter_context(hold_sweep(context))
        assert ledger.lease is not None
        config, store = context.plan.config, context.open_store()
        stack.callback(forget_clients)  # The next driver of this process is in no hurry.
        if config.cluster.address is not None:
            token = stack.enter_context(_leave_token(context, store))
            _check_shared(context, store, token)
        ledger.lease.note_sessions(list_sessions())
        # The store finds the sweep's files by the name in its settings when the folder is renamed.
        write_settings(folder, replace(config, name=config.name or context.name, take_over=False))
        if ledger.is_file and not has_newest(store):
            raise make_distant_ledger_error(folder)
        take(store, ledger.lease.id)
        stack.callback(store_results, context, ledger)
        store.publish(_find_files(folder, BEGUN))
        handler = logging.FileHandler(folder / "sweep.log")
        handler.setFormatter(RedactingFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        loggers = logger, logging.getLogger(TOLD), logging.getLogger("ray.tune")
        for each in loggers:
            each.addHandler(handler)
        try:
            yield ledger
        finally:
            for each in loggers:
                each.removeHandler(handler)
            handler.close()


def _make_folder(context: SweepContext) -> None:
    """Make a new sweep's folder, or take one that a killed driver had only begun to make.

    Raises:
        StudyError: Another sweep has it.
    """
    folder = context.folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        if not is_half_made(folder):
            raise make_name_taken_error(context.name, folder) from None
        folder.chmod(0o700)


@contextlib.contextmanager
def hold_sweep(context: SweepContext) -> Iterator[Ledger]:
    """Open the sweep's ledger and hold its lease; end what an earlier driver left running.

    Raises:
        StudyError: The ledger is missing, damaged, or of another sweep.
        StudyUnavailableError: Another driver has the lease.
    """
    # SQLAlchemy is imported only here: a new sweep does so while Ray starts.
    from rltune.ledger.lease import take_lease
    from rltune.ledger.storage import set_journal, start_ledger

    config, folder = context.plan.config, context.folder
    ledger = start_ledger(config.study.storage, folder, new=not context.resumed)
    with contextlib.closing(ledger), take_lease(ledger) as lease:
        if not context.resumed:
            ledger.require_new()  # another driver may have begun it in between
        set_journal(ledger, context.is_folder_shared())
        if lease.previous:
            end_stale_processes(lease.previous.sessions)
        _clear_leftovers(folder)
        yield ledger


def _clear_leftovers(folder: Path) -> None:
    """Remove Tune's own folder, which a killed driver leaves."""
    shutil.rmtree(folder / ".tune", ignore_errors=True)


def leave_folder(folder: Path, ledger: Ledger) -> None:
    """Remove what this driver has there for itself, where its process ends before its contexts can."""
    if ledger.lease and not ledger.lease.is_lost:
        _clear_leftovers(folder)
        ledger.lease.release()


def make_name_taken_error(name: str, folder: Path) -> StudyError:
    """Describe a name that another sweep has."""
    return StudyError(
        f"name={name}: {folder} exists",
        "a name of its own for each sweep",
        make_resume_command(folder),
    )


@contextlib.contextmanager
def _leave_token(context: SweepContext, store: Store) -> Iterator[str]:
    """Leave a token for the nodes; where that fails, leave nothing of a new sweep."""
    with contextlib.ExitStack() as stack:
        try:
            token = stack.enter_context(leave_token(store))
        except StoreError:
            _forget_folder(context)
            raise
        yield token


def _check_shared(context: SweepContext, store: Store, token: str) -> None:
    """Refuse nodes that do not see the sweep's files, and leave nothing of a new sweep.

    Raises:
        StudyError: There are some.
    """
    if blind := check_nodes(functools.partial(find_blindness, context.folder, store.address, token)):
        error = make_blind_error(store, blind)
        _forget_folder(context)
        raise error


def _forget_folder(context: SweepContext) -> None:
    if not context.resumed:
        shutil.rmtree(context.folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # other sweeps are in it
            context.folder.parent.rmdir()


def store_results(context: SweepContext, ledger: Ledger) -> None:
    """Store what this driver leaves behind, so that it is found from other machines; say what could not be stored.

    A driver that has lost its lease stores nothing: the files are another driver's.
    """
    folder, store = context.folder, context.open_store()
    if ledger.lease is None or ledger.lease.is_lost:
        return
    files = {name: name for name in _find_files(folder, RESULTS)}
    if (folder / LEDGER_COPY).exists():
        files = {LEDGER: LEDGER_COPY} | files
    problem = ""
    try:
        if is_taken_over(store, ledger.lease.id):
            problem = "another machine has taken the sweep over"
        else:
            store.publish(files)
            hand_over(store, ledger.lease.id)
    except (StoreError, OSError) as error:
        logger.warning("storing the sweep's files failed", exc_info=error)
        problem = f"some files of {folder}; {make_resume_command(folder)} stores them again"
    if problem:
        print(f"not stored: {problem}", file=context.stream or sys.stdout, flush=True)


def _find_files(folder: Path, patterns: Sequence[str]) -> list[str]:
    files = [path for pattern in patterns for path in sorted(folder.glob(pattern)) if path.is_file()]
    return [path.relative_to(folder).as_posix() for path in files]
