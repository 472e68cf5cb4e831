"""Make and claim a sweep's folder."""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

from rltune.cluster.shared_storage import check_nodes
from rltune.cluster.stale_processes import clear_record, end_stale_processes, record_processes
from rltune.config.settings_file import write_settings
from rltune.errors import StudyError
from rltune.study.sweep_folder import lock_sweep, make_resume_command
from rltune.sweep.context import SweepContext

logger = logging.getLogger("rltune")


@contextlib.contextmanager
def open_folder(session: SweepContext) -> Iterator[None]:
    """The sweep's folder, made exclusively or found, with its settings; its log is written meanwhile.

    Raises:
        StudyError: The folder exists already, or another driver has it.
    """
    folder = session.folder
    with contextlib.ExitStack() as stack:
        if not session.resumed:
            folder.parent.mkdir(parents=True, exist_ok=True)
            if not _unborn(folder):
                try:
                    folder.mkdir(mode=0o700)
                except FileExistsError:
                    raise make_name_taken_error(session.name, folder) from None
            stack.enter_context(claim_folder(session))
        if session.plan.config.cluster.address is not None:
            _check_shared(session)
        record_processes(folder)
        stack.callback(clear_record, folder)
        write_settings(folder, session.plan.config)
        handler = logging.FileHandler(folder / "sweep.log")
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)
        try:
            yield
        finally:
            logger.removeHandler(handler)
            handler.close()


def _unborn(folder: Path) -> bool:
    """Whether a driver was killed between making this folder and writing its settings: nothing is lost in it."""
    return folder.is_dir() and not any((folder / name).exists() for name in ("config.yaml", "study.db", "trials"))


@contextlib.contextmanager
def claim_folder(session: SweepContext) -> Iterator[None]:
    """This driver's alone, with nothing of an earlier one's still running.

    Raises:
        StudyError: Another driver has it.
    """
    with lock_sweep(session.folder) as ours:
        if not ours:
            raise StudyError(
                f"sweep={session.name}: another driver is working on it",
                "one driver at a time",
                "wait for it, or end it with Ctrl-C where it runs",
            )
        end_stale_processes(session.folder)
        _clear_leftovers(session.folder)
        yield


def _clear_leftovers(folder: Path) -> None:
    """Remove what a killed driver and its workers had half done: Tune's own folder, drafts of checkpoints."""
    for leftover in (folder / ".tune", *folder.glob("*/*/.*-*")):  # trials/7/.best-4711, certify/ alike
        shutil.rmtree(leftover, ignore_errors=True)


def make_name_taken_error(name: str, folder: Path) -> StudyError:
    """Describe a name that another sweep has."""
    return StudyError(
        f"name={name}: {folder} exists",
        "a name of its own for each sweep",
        make_resume_command(folder),
    )


def _check_shared(session: SweepContext) -> None:
    """Refuse nodes that do not see the sweep's folder, and leave nothing of a new one.

    Raises:
        StudyError: There are some.
    """
    try:
        check_nodes(session.folder)
    except StudyError:
        if not session.resumed:
            shutil.rmtree(session.folder, ignore_errors=True)
            with contextlib.suppress(OSError):  # other sweeps are in it
                session.folder.parent.rmdir()
        raise
