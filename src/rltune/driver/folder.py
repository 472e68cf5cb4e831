"""Make a sweep's folder, hold the sweep's lease, and store the folder's files. Runs in the driver."""

from __future__ import annotations

import contextlib
import logging
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rltune.checkpoints.clients import StoreError, forget_clients, make_address
from rltune.checkpoints.store import Store, open_store
from rltune.cluster.stale_processes import end_stale_processes, list_sessions
from rltune.config.authorship import MARK
from rltune.config.schema import RunConfig
from rltune.config.settings_file import write_settings
from rltune.config.uris import redact
from rltune.driver.plan import Plan
from rltune.errors import StudyError
from rltune.ledger.handover import hand_over, has_newest, is_taken_over, make_distant_ledger_error, take
from rltune.ledger.sweep_folder import (
    LEDGER,
    SETTINGS,
    SWEEP_LOGGER,
    is_half_made,
    make_resume_command,
)
from rltune.trial.shared_store import leave_token

if TYPE_CHECKING:
    from rltune.ledger.ledger import Ledger

BEGUN = (MARK, SETTINGS)  # The files that are stored at a sweep's start. A folder with settings belongs to a sweep.
RESULTS = ("summary.json", "certification.*", "sweep.log", "report/*", "*/*/failure.txt")
logger = logging.getLogger("rltune")


@dataclass(frozen=True)
class SweepContext:
    """One driver's work on a sweep, as it is known before anything is opened.

    Attributes:
        plan: The sweep that is run.
        folder: The sweep's folder, as an absolute path.
        resumed: Whether the ledger exists already.
        began: The start of the command, on the monotonic clock.
        stream: The stream to which the console writes; None is standard output.
        trainable: The Tune trainable; None is `rltune.trial.trainable.Trial`. Tests give a toy.
        typed: The command that runs the sweep again, for the report; None if a script has started the sweep.
        call_in_subprocess: Calls a function in a process that has RLlib imported, as `ForkServer.call` does; None
            without a fork server.
    """

    plan: Plan
    folder: Path
    resumed: bool
    began: float
    stream: TextIO | None = None
    trainable: type | None = None
    typed: str | None = None
    call_in_subprocess: Callable[..., Any] | None = None

    @property
    def name(self) -> str:
        """The sweep's name."""
        return self.folder.name

    @property
    def config(self) -> RunConfig:
        """The sweep's settings."""
        return self.plan.config

    def open_store(self) -> Store:
        """Open the sweep's store; its name there stays when its folder is renamed."""
        address = make_address(self.config.storage, self.config.name or self.name) if self.config.storage else None
        return open_store(self.folder, address)

    def is_folder_shared(self) -> bool:
        """Return whether nodes of a cluster that the sweep has joined use its folder itself."""
        return self.config.cluster.address is not None and self.open_store().is_shared_folder


class RedactingFormatter(logging.Formatter):
    """Format a record, its traceback included, without logins."""

    def format(self, record: logging.LogRecord) -> str:
        """Format it."""
        return redact(super().format(record))


@contextlib.contextmanager
def hold_sweep(context: SweepContext) -> Iterator[Ledger]:
    """Open a sweep's ledger and hold its lease; end the processes that an earlier driver left running.

    The folder of a new sweep is made first.

    Raises:
        StudyError: The folder is another sweep's, or the ledger is missing, damaged, or of another sweep.
        StudyUnavailableError: Another driver has the lease.
    """
    # SQLAlchemy is imported only now, so that a new sweep imports it while Ray starts.
    from rltune.ledger.lease import take_lease
    from rltune.ledger.storage import set_journal, start_ledger

    folder = context.folder
    if not context.resumed:
        _make_folder(folder)
    ledger = start_ledger(context.config.study.storage, folder, new=not context.resumed)
    with contextlib.closing(ledger), take_lease(ledger) as lease:
        if not context.resumed:
            ledger.require_new()  # Another driver may have started the sweep meanwhile.
        set_journal(ledger, context.is_folder_shared())
        if lease.previous:
            end_stale_processes(lease.previous.sessions)
        _clear_leftovers(folder)
        yield ledger


def _make_folder(folder: Path) -> None:
    """Make a new sweep's folder, or take one that a killed driver had only begun to make.

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
def open_folder(context: SweepContext, ledger: Ledger) -> Iterator[None]:
    """Write the settings into the sweep's folder, keep the sweep's log meanwhile, and store the results at the end.

    Args:
        context: The driver's work.
        ledger: The sweep's ledger, whose lease this driver holds.

    Raises:
        StudyError: The storage cannot be used, or has a newer state of the sweep.
    """
    assert ledger.lease is not None
    folder, config, store = context.folder, context.config, context.open_store()
    with contextlib.ExitStack() as stack:
        stack.callback(forget_clients)  # A later sweep of this process then gets clients with the usual time-outs.
        ledger.lease.note_sessions(list_sessions())
        # The settings contain the sweep's name, by which the store finds its files even if the folder is renamed.
        write_settings(folder, replace(config, name=config.name or context.name, take_over=False))
        if ledger.is_file and not has_newest(store):
            raise make_distant_ledger_error(folder)
        take(store, ledger.lease.id)
        stack.callback(store_results, context, ledger)
        store.publish(_find_files(folder, BEGUN))
        if config.cluster.address is not None:
            stack.enter_context(leave_token(store, ledger.lease.id))
        stack.enter_context(_log_to_file(folder / "sweep.log"))
        yield


@contextlib.contextmanager
def _log_to_file(path: Path) -> Iterator[None]:
    handler = logging.FileHandler(path)
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
    """Remove Tune's own folder, which a killed driver leaves."""
    shutil.rmtree(folder / ".tune", ignore_errors=True)


def leave_folder(folder: Path, ledger: Ledger) -> None:
    """Clean up a driver's folder and release its lease, if its process ends before its context managers can."""
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


def store_results(context: SweepContext, ledger: Ledger) -> None:
    """Store the ledger and the results for other machines; print what could not be stored.

    A driver that has lost its lease stores nothing: the files are another driver's.
    """
    from rltune.ledger.storage import copy_ledger

    folder, store = context.folder, context.open_store()
    if ledger.lease is None or ledger.lease.is_lost:
        return
    if not store.address:  # Without a bucket, the sweep's folder is already the store.
        return
    files = {name: name for name in _find_files(folder, RESULTS)}
    draft, problem = folder / f".{LEDGER}", ""
    try:
        if is_taken_over(store, ledger.lease.id):
            problem = "another machine has taken the sweep over"
        else:
            if ledger.is_file:
                copy_ledger(folder / LEDGER, draft)
                files = {LEDGER: draft.name} | files
            store.publish(files)
            hand_over(store, ledger.lease.id)
    except (StoreError, OSError, sqlite3.Error) as error:
        logger.warning("storing the sweep's files failed", exc_info=error)
        problem = f"some files of {folder}; {make_resume_command(folder)} stores them again"
    finally:
        draft.unlink(missing_ok=True)
    if problem:
        print(f"not stored: {problem}", file=context.stream, flush=True)


def _find_files(folder: Path, patterns: Sequence[str]) -> list[str]:
    files = [path for pattern in patterns for path in sorted(folder.glob(pattern)) if path.is_file()]
    return [path.relative_to(folder).as_posix() for path in files]
