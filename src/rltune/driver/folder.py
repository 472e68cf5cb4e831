"""Make a sweep's folder, hold the sweep's lease, and store the folder's files in the bucket."""

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
from rltune.secrets import redact
from rltune.trial.shared_store import leave_token

if TYPE_CHECKING:
    from rltune.ledger.ledger import Ledger

# These files are uploaded at a sweep's start, because other machines recognize a sweep by its settings file.
BEGUN = (MARK, SETTINGS)
RESULTS = ("summary.json", "certification.*", "sweep.log", "report/*", "*/*/failure.txt")
logger = logging.getLogger("rltune")


@dataclass(frozen=True)
class SweepContext:
    """What a driver knows about a sweep before it opens the ledger: plan, folder, command.

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
        """The name of the sweep, which is that of its folder."""
        return self.folder.name

    @property
    def config(self) -> RunConfig:
        """The settings of the sweep, as its plan has them."""
        return self.plan.config

    def open_store(self) -> Store:
        """Open the sweep's checkpoint store; in a bucket, the sweep's files stay under its original name."""
        address = make_address(self.config.storage, self.config.name or self.name) if self.config.storage else None
        return open_store(self.folder, address)

    def is_folder_shared(self) -> bool:
        """Return whether the nodes of a joined cluster use the sweep's folder on a shared disk, and not a bucket."""
        return self.config.cluster.address is not None and self.open_store().is_shared_folder


class RedactingFormatter(logging.Formatter):
    """Formats log records, including their tracebacks, without passwords."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a log record."""
        return redact(super().format(record))


@contextlib.contextmanager
def hold_sweep(context: SweepContext) -> Iterator[Ledger]:
    """Open a sweep's ledger, take its lease, and then kill processes that an earlier, dead driver left running.

    The folder of a new sweep is made first.

    Raises:
        StudyError: The folder is another sweep's, or the ledger is missing, damaged, or of another sweep.
        StudyUnavailableError: Another driver has the lease.
    """
    # Imported only now, because SQLAlchemy's import then overlaps with Ray's start.
    from rltune.ledger.lease import take_lease
    from rltune.ledger.storage import set_journal, start_ledger

    folder = context.folder
    if not context.resumed:
        _make_folder(folder)
    ledger = start_ledger(context.config.study.storage, folder, new=not context.resumed)
    with contextlib.closing(ledger), take_lease(ledger) as lease:
        if not context.resumed:
            ledger.require_new()  # Fails if another driver has started this sweep meanwhile.
        set_journal(ledger, context.is_folder_shared())
        if lease.previous:
            end_stale_processes(lease.previous.sessions)
        _clear_leftovers(folder)
        yield ledger


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
def open_folder(context: SweepContext, ledger: Ledger) -> Iterator[None]:
    """Write the settings to the sweep's folder, log to ``sweep.log``, and upload the results at the end.

    Args:
        context: The driver's work.
        ledger: The sweep's ledger, whose lease this driver holds.

    Raises:
        StudyError: The storage cannot be used, or has a newer state of the sweep.
    """
    assert ledger.lease is not None
    folder, config, store = context.folder, context.config, context.open_store()
    with contextlib.ExitStack() as stack:
        # Drop this sweep's clients of the bucket, so that the next sweep of the process gets clients without a
        # deadline.
        stack.callback(forget_clients)
        ledger.lease.note_sessions(list_sessions())
        # The name is stored too, because the bucket keeps the sweep's files under it even if the folder is renamed.
        write_settings(folder, replace(config, name=config.name or context.name))
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


def store_results(context: SweepContext, ledger: Ledger) -> None:
    """Upload the ledger and the results to the bucket; print what could not be uploaded.

    A driver that has lost its lease stores nothing: the files are another driver's.
    """
    from rltune.ledger.storage import copy_ledger

    folder, store = context.folder, context.open_store()
    if ledger.lease is None or ledger.lease.is_lost:
        return
    if not store.address:
        # Without a bucket, nothing has to be uploaded.
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
