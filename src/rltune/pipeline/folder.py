"""Make a sweep's folder, and hold the sweep's lease. Runs in the driver."""

from __future__ import annotations

import contextlib
import functools
import logging
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rltune.cluster.shared_storage import check_nodes
from rltune.cluster.stale_processes import end_stale_processes, list_sessions
from rltune.config.authorship import MARK
from rltune.config.settings_file import write_settings
from rltune.config.uris import redact
from rltune.errors import StudyError
from rltune.pipeline.context import SweepContext
from rltune.study.bucket import GLANCE_S, Bucket, BucketError, choose_place, find_bucket, link_bucket, open_bucket
from rltune.study.sweep_folder import (
    LEDGER,
    LEDGER_COPY,
    SETTINGS,
    TOLD,
    is_half_made,
    make_resume_command,
    take_sweep,
)
from rltune.trial.shared_files import find_blindness, leave_token, make_blind_error

if TYPE_CHECKING:
    from rltune.study.ledger import Ledger

BEGUN = (MARK, SETTINGS)  # what a bucket has of a sweep from its start on: the settings make it one
RESULTS = ("summary.json", "certification.*", "sweep.log", "report/*", "*/*/failure.txt")
FLUSH_S = 20.0  # for what still waits to be sent
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
        link_bucket(folder, choose_place(folder, context.plan.config.storage))
        if context.plan.config.cluster.address is not None:
            token = stack.enter_context(_leave_token(context))
            _check_shared(context, token)
        ledger.lease.note_sessions(list_sessions())
        write_settings(folder, context.plan.config)
        if bucket := find_bucket(folder):
            stack.callback(open_bucket.cache_clear)  # the next driver of this process is in no hurry
            take_sweep(folder, bucket)  # where it cannot be taken, nothing of this folder's belongs in the bucket
            stack.callback(_store_results, bucket, context, ledger)
            store_files(bucket, folder, BEGUN)
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
    from rltune.study.lease import take_lease
    from rltune.study.storage import set_journal, start_ledger

    config, folder = context.plan.config, context.folder
    ledger = start_ledger(config.study.storage, folder, new=not context.resumed)
    with contextlib.closing(ledger), take_lease(ledger) as lease:
        if not context.resumed:
            ledger.require_new()  # another driver may have begun it in between
        set_journal(ledger, shared=config.cluster.address is not None and config.storage is None)
        if lease.previous:
            end_stale_processes(lease.previous.sessions)
        _clear_leftovers(folder)
        yield ledger


def _clear_leftovers(folder: Path) -> None:
    """Remove what a killed driver and its workers had half done: Tune's own folder, drafts of checkpoints."""
    for leftover in (folder / ".tune", *folder.glob("*/*/.*-*")):  # trials/7/.best-4711, certify/ alike
        shutil.rmtree(leftover, ignore_errors=True)


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
def _leave_token(context: SweepContext) -> Iterator[str]:
    """Leave a token for the nodes; where that fails, leave nothing of a new sweep."""
    with contextlib.ExitStack() as stack:
        try:
            token = stack.enter_context(leave_token(context.folder))
        except BucketError:
            _forget_folder(context)
            raise
        yield token


def _check_shared(context: SweepContext, token: str) -> None:
    """Refuse nodes that do not see the sweep's files, and leave nothing of a new sweep.

    Raises:
        StudyError: There are some.
    """
    bucket = find_bucket(context.folder)
    look = functools.partial(find_blindness, context.folder, bucket.address if bucket else None, token)
    if blind := check_nodes(look):
        error = make_blind_error(context.folder, blind)
        _forget_folder(context)
        raise error


def _forget_folder(context: SweepContext) -> None:
    if not context.resumed:
        shutil.rmtree(context.folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # other sweeps are in it
            context.folder.parent.rmdir()


def _store_results(bucket: Bucket, context: SweepContext, ledger: Ledger) -> None:
    if ledger.lease and not ledger.lease.is_lost:  # else they are another driver's
        store_results(bucket, context)


def store_results(bucket: Bucket, context: SweepContext) -> None:
    """Store what this driver leaves behind, so that it is found from other machines; say what could not be stored."""
    folder = context.folder
    left = {path.relative_to(folder).as_posix(): path for path in _find_files(folder, RESULTS)}
    if (folder / LEDGER_COPY).exists() and context.plan.config.study.storage is None:
        left = {LEDGER: folder / LEDGER_COPY} | left  # first of all: without it, no other machine goes on
    try:
        for name, path in list(left.items()):
            bucket.write(name, path.read_bytes(), GLANCE_S)
            del left[name]
        whole = bucket.flush(GLANCE_S if bucket.is_hurried else FLUSH_S)
    except (BucketError, OSError) as error:
        logger.warning("storing the sweep's files failed", exc_info=error)
        whole = False
    if not whole:
        what = ", ".join(left) or "what was still on its way"
        print(
            f"not stored in the bucket: {what}, of {folder}; {make_resume_command(folder)} stores it again",
            file=context.stream or sys.stdout,
            flush=True,
        )


def store_files(bucket: Bucket, folder: Path, patterns: Sequence[str]) -> None:
    """Store files of a sweep's folder in its bucket, those that are there.

    Args:
        bucket: The sweep's.
        folder: The sweep's.
        patterns: Which, relative to it.
    """
    for path in _find_files(folder, patterns):
        bucket.write(path.relative_to(folder).as_posix(), path.read_bytes(), GLANCE_S)


def _find_files(folder: Path, patterns: Sequence[str]) -> list[Path]:
    return [path for pattern in patterns for path in sorted(folder.glob(pattern)) if path.is_file()]
