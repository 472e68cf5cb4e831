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
def open_folder(context: SweepContext) -> Iterator[None]:
    """Make the sweep's folder exclusively, or find it; write its settings now and its log meanwhile.

    Raises:
        StudyError: The folder exists already, or another driver has it.
    """
    folder = context.folder
    with contextlib.ExitStack() as stack:
        if not context.resumed:
            folder.parent.mkdir(parents=True, exist_ok=True)
            if not is_half_made(folder):
                try:
                    folder.mkdir(mode=0o700)
                except FileExistsError:
                    raise make_name_taken_error(context.name, folder) from None
            stack.enter_context(claim_folder(context))
        if context.plan.config.cluster.address is not None:
            _check_shared(context)
        record_processes(folder)
        stack.callback(clear_record, folder)
        write_settings(folder, context.plan.config)
        handler = logging.FileHandler(folder / "sweep.log")
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)
        try:
            yield
        finally:
            logger.removeHandler(handler)
            handler.close()


def is_half_made(folder: Path) -> bool:
    """Whether a driver was killed between making this folder and writing its settings: nothing is lost in it."""
    return folder.is_dir() and not any((folder / name).exists() for name in ("config.yaml", "ledger.db", "trials"))


@contextlib.contextmanager
def claim_folder(context: SweepContext) -> Iterator[None]:
    """Claim the folder for this driver alone, and end what an earlier one left running.

    Raises:
        StudyError: Another driver has it.
    """
    with lock_sweep(context.folder) as ours:
        if not ours:
            raise StudyError(
                f"sweep={context.name}: another driver is working on it",
                "one driver at a time",
                "wait for it, or end it with Ctrl-C where it runs",
            )
        end_stale_processes(context.folder)
        _clear_leftovers(context.folder)
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


def _check_shared(context: SweepContext) -> None:
    """Refuse nodes that do not see the sweep's folder, and leave nothing of a new one.

    Raises:
        StudyError: There are some.
    """
    try:
        check_nodes(context.folder)
    except StudyError:
        if not context.resumed:
            shutil.rmtree(context.folder, ignore_errors=True)
            with contextlib.suppress(OSError):  # other sweeps are in it
                context.folder.parent.rmdir()
        raise
