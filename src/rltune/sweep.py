"""The conductor: checks, starts, watches and ends a sweep. The only module that knows all the others.

A new sweep, a resumed one and an extended one are one code path: open the ledger, go through what is unfinished, ask
for more until the budget is spent. Runs in the driver.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

from omegaconf import DictConfig, OmegaConf

from rltune import disk, orphans, plan, shared_storage
from rltune.cluster import can_fork, connected, prepare
from rltune.config import RunConfig, from_mapping, new_name, read_settings, sweep_folder, write_settings
from rltune.errors import RltuneError, StudyError
from rltune.nursery import Nursery, opened
from rltune.resources import Share
from rltune.session import Session
from rltune.sweep_folder import find_sweep, held, resume_command

if TYPE_CHECKING:
    from rltune.outcome import Outcome

HAND_OVER_S = 0.5e-3

logger = logging.getLogger("rltune")


def run_sweep(config: RunConfig, *, stream: TextIO | None = None, trainable: type | None = None) -> Outcome:
    """Search, choose the winner, register it.

    Args:
        config: What to do; see `rltune.config.from_mapping`.
        stream: Where the console writes; None is standard output.
        trainable: A replacement for `rltune.trial.Trial`, for tests.

    Returns:
        How it ended; its ``exit_code`` is the command's.

    Raises:
        RltuneError: The request cannot be carried out; nothing was written.
    """
    began = time.monotonic()
    made, folder = check_request(config)
    return _interruptible(Session(made, folder.name, folder, False, began, stream, trainable))


def check_request(config: RunConfig) -> tuple[plan.Plan, Path]:
    """Check what can be checked without Ray: what the sweep will do, and its folder, which is not there yet.

    Raises:
        RltuneError: The request cannot be carried out.
    """
    made = plan.make(config)
    name = new_name(config)
    folder = sweep_folder(config, name)
    if folder.exists():
        raise _exists(name, folder)
    return made, folder


def resume_sweep(
    sweep: str,
    *,
    output_dir: str = "outputs",
    changes: Mapping[str, Any] | None = None,
    stream: TextIO | None = None,
    trainable: type | None = None,
) -> Outcome:
    """Go on with an interrupted sweep, or extend a finished one.

    Args:
        sweep: Its name, or ``latest``.
        output_dir: The folder of all sweeps.
        changes: What conf/resume.yaml lets change: ``{"budget": {"trials": 48}}``, a larger budget, or an address
            whose login is not kept; None stands for no change.
        stream: Where the console writes.
        trainable: A replacement for `rltune.trial.Trial`, for tests.

    Raises:
        RltuneError: There is no such sweep, another driver works on it, or the new budget is no budget.
    """
    began = time.monotonic()
    folder = find_sweep(sweep, output_dir)
    raw = read_settings(folder, whole=True)
    merged = OmegaConf.merge(raw, _without_none(changes or {}))
    config = from_mapping(cast(DictConfig, merged))
    for key, value in (("study.storage", config.study.storage), ("tracking.uri", config.tracking.uri)):
        if value and "***" in value:
            raise StudyError(
                f"{key}={value}: the login is kept in no file, so it has to be given again",
                "the whole address",
                f"python -m sweeps.resume sweep={folder.name} {key}=...",
            )
    return _interruptible(Session(plan.make(config), folder.name, folder, True, began, stream, trainable))


def _without_none(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The changes that were asked for, at any depth."""
    nested = {key: _without_none(value) if isinstance(value, Mapping) else value for key, value in changes.items()}
    return {key: value for key, value in nested.items() if value is not None and value != {}}


def _interruptible(session: Session) -> Outcome:
    """Conduct; a signal that comes before trials can be asked to save their state, or a second one, leaves at once."""
    try:
        return _conduct(session)
    except (KeyboardInterrupt, SystemExit):  # the latter by Ray's handler of SIGTERM, in force from its start (2.60)
        begun = session.resumed or (session.folder / "config.yaml").exists()
        how = f"to go on: {resume_command(session.folder)}" if begun else "nothing was begun that could be resumed"
        print(f"interrupted; {how}", file=session.stream or sys.stdout, flush=True)
        raise


def _conduct(session: Session) -> Outcome:
    """Check what is expensive to check while Ray starts, and only then write anything."""
    cluster, modules = session.plan.config.cluster, _modules(session)
    prepare(cluster)
    # A Ray that does not start ends the nursery first, for whose answer the thread beside would wait for ever.
    with ThreadPoolExecutor(1) as beside, contextlib.ExitStack() as stack:
        stack.enter_context(_prompt())
        if session.resumed:  # first of all: what a killed driver left running must not meet what we start
            stack.enter_context(_locked(session))
        nursery = stack.enter_context(opened(bool(modules) and can_fork(cluster)))
        checked = beside.submit(_check, session, nursery)
        with connected(cluster, modules, nursery) as machine:
            session = checked.result()
            return _work(session, session.plan.share_of(machine))


@contextlib.contextmanager
def _prompt() -> Iterator[None]:
    """Let threads hand over sooner: a trial waits for its report to be recorded, MLflow's thread has time.

    Python's own 5 ms are waited for after each write into the ledger while that thread computes.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(HAND_OVER_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def _check(session: Session, nursery: Nursery | None) -> Session:
    """Check what needs RLlib, and import what the driver needs next: time spent waiting for Ray otherwise."""
    for module in ("rltune.conductor", "alembic.command"):  # Optuna wants the latter to make a ledger
        importlib.import_module(module)
    notes = (nursery.call(plan.preflight, session.plan) if nursery else plan.preflight(session.plan)) or ()
    aside = functools.partial(nursery.call, patience_s=None) if nursery else None
    return replace(session, plan=replace(session.plan, notes=(*session.plan.notes, *notes)), aside=aside)


def _modules(session: Session) -> list[str]:
    """What a trial's process imports, which takes it 5 s of CPU."""
    if session.trainable is not None:
        return []
    return ["rltune.trial", "rltune.runner", str(session.plan.build.algo["class"]).partition(":")[0]]


def _work(session: Session, share: Share) -> Outcome:
    from rltune.conductor import Conductor  # imported by now, in a thread

    try:
        with _opened(session), Conductor(session, share) as conductor, _signals(conductor.control.request):
            return conductor.run()
    except Exception as error:
        if isinstance(error, RltuneError) or not disk.is_full(error):
            raise
        raise disk.full(session.folder) from error


@contextlib.contextmanager
def _opened(session: Session) -> Iterator[None]:
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
                    raise _exists(session.name, folder) from None
            stack.enter_context(_locked(session))
        if session.plan.config.cluster.address is not None:
            _check_shared(session)
        orphans.record(folder)
        stack.callback(orphans.clear, folder)
        write_settings(folder, session.plan.config)
        handler = logging.FileHandler(folder / "sweep.log")
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)
        try:
            yield
        finally:
            logger.removeHandler(handler)
            handler.close()


def _check_shared(session: Session) -> None:
    """Refuse nodes that do not see the sweep's folder, and leave nothing of a new one.

    Raises:
        StudyError: There are some.
    """
    try:
        shared_storage.check_nodes(session.folder)
    except StudyError:
        if not session.resumed:
            shutil.rmtree(session.folder, ignore_errors=True)
            with contextlib.suppress(OSError):  # other sweeps are in it
                session.folder.parent.rmdir()
        raise


def _unborn(folder: Path) -> bool:
    """Whether a driver was killed between making this folder and writing its settings: nothing is lost in it."""
    return folder.is_dir() and not any((folder / name).exists() for name in ("config.yaml", "study.db", "trials"))


@contextlib.contextmanager
def _locked(session: Session) -> Iterator[None]:
    """This driver's alone, with nothing of an earlier one's still running.

    Raises:
        StudyError: Another driver has it.
    """
    with held(session.folder) as ours:
        if not ours:
            raise StudyError(
                f"sweep={session.name}: another driver is working on it",
                "one driver at a time",
                "wait for it, or end it with Ctrl-C where it runs",
            )
        orphans.end(session.folder)
        _clear_leftovers(session.folder)
        yield


def _clear_leftovers(folder: Path) -> None:
    """Remove what a killed driver and its workers had half done: Tune's own folder, drafts of checkpoints."""
    for leftover in (folder / ".tune", *folder.glob("*/*/.*-*")):  # trials/7/.best-4711, certify/ alike
        shutil.rmtree(leftover, ignore_errors=True)


def _exists(name: str, folder: Path) -> StudyError:
    return StudyError(
        f"name={name}: {folder} exists",
        "a name of its own for each sweep",
        resume_command(folder),
    )


@contextlib.contextmanager
def _signals(request: Callable[[str, int], None]) -> Iterator[None]:
    """First SIGINT or SIGTERM: end cleanly. Second: at once."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers; a caller's own thread ends its sweep by its budget
        return

    def handle(number: int, _: Any) -> None:
        if handle.__dict__.setdefault("seen", 0):
            raise KeyboardInterrupt(number)
        handle.__dict__["seen"] = 1
        request("interrupted", number)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
