"""The conductor: checks, starts, watches and ends a sweep. The only module that knows all the others.

A new sweep, a resumed one and an extended one are one code path: open the ledger, go through what is unfinished, ask
for more until the budget is spent. Runs in the driver.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

from omegaconf import DictConfig, OmegaConf

from rltune.cluster.fork_server import ForkServer, acquire_fork_server
from rltune.cluster.ray_cluster import can_fork_workers, connect_ray, prepare_environment
from rltune.cluster.resources import Share
from rltune.compat.patching import is_supported
from rltune.config.names import make_sweep_name, sweep_folder_of
from rltune.config.schema import RunConfig
from rltune.config.settings_file import read_settings
from rltune.config.validation import parse_config
from rltune.errors import RltuneError, StudyError
from rltune.study.disk_full import is_disk_full, make_disk_full_error
from rltune.study.sweep_folder import find_sweep, make_resume_command
from rltune.sweep import plan
from rltune.sweep.context import SweepContext
from rltune.sweep.folder import claim_folder, make_name_taken_error, open_folder
from rltune.sweep.plan import Plan, make_plan
from rltune.sweep.signals import stop_on_signals

if TYPE_CHECKING:
    from rltune.study.outcome import Outcome


def run_sweep(config: RunConfig, *, stream: TextIO | None = None, trainable: type | None = None) -> Outcome:
    """Search, choose the winner, register it.

    Args:
        config: What to do; see `rltune.config.validation.parse_config`.
        stream: Where the console writes; None is standard output.
        trainable: A replacement for `rltune.trial.trainable.Trial`, for tests.

    Returns:
        How it ended; its ``exit_code`` is the command's.

    Raises:
        RltuneError: The request cannot be carried out; nothing was written.
    """
    began = time.monotonic()
    made, folder = check_request(config)
    return _interruptible(SweepContext(made, folder.name, folder, False, began, stream, trainable))


def check_request(config: RunConfig) -> tuple[Plan, Path]:
    """Check what can be checked without Ray: what the sweep will do, and its folder, which is not there yet.

    Raises:
        RltuneError: The request cannot be carried out.
    """
    made = make_plan(config)
    name = make_sweep_name(config)
    folder = sweep_folder_of(config, name)
    if folder.exists():
        raise make_name_taken_error(name, folder)
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
        trainable: A replacement for `rltune.trial.trainable.Trial`, for tests.

    Raises:
        RltuneError: There is no such sweep, another driver works on it, or the new budget is no budget.
    """
    began = time.monotonic()
    folder = find_sweep(sweep, output_dir)
    raw = read_settings(folder, whole=True)
    merged = OmegaConf.merge(raw, _without_none(changes or {}))
    config = parse_config(cast(DictConfig, merged))
    for key, value in (("study.storage", config.study.storage), ("tracking.uri", config.tracking.uri)):
        if value and "***" in value:
            raise StudyError(
                f"{key}={value}: the login is kept in no file, so it has to be given again",
                "the whole address",
                f"python -m sweeps.resume sweep={folder.name} {key}=...",
            )
    return _interruptible(SweepContext(make_plan(config), folder.name, folder, True, began, stream, trainable))


def _without_none(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The changes that were asked for, at any depth."""
    nested = {key: _without_none(value) if isinstance(value, Mapping) else value for key, value in changes.items()}
    return {key: value for key, value in nested.items() if value is not None and value != {}}


def _interruptible(session: SweepContext) -> Outcome:
    """Conduct; a signal that comes before trials can be asked to save their state, or a second one, leaves at once."""
    try:
        return _conduct(session)
    except (KeyboardInterrupt, SystemExit):  # the latter by Ray's handler of SIGTERM, in force from its start (2.60)
        begun = session.resumed or (session.folder / "config.yaml").exists()
        how = f"to go on: {make_resume_command(session.folder)}" if begun else "nothing was begun that could be resumed"
        print(f"interrupted; {how}", file=session.stream or sys.stdout, flush=True)
        raise


def _conduct(session: SweepContext) -> Outcome:
    """Check what is expensive to check while Ray starts, and only then write anything."""
    cluster, modules = session.plan.config.cluster, _modules(session)
    prepare_environment(cluster)
    # Close the fork server before the thread is joined: if Ray does not start, the thread would wait for its answer.
    with ThreadPoolExecutor(1) as beside, contextlib.ExitStack() as stack:
        if session.resumed:  # first of all: what a killed driver left running must not meet what we start
            stack.enter_context(claim_folder(session))
        fork_server = stack.enter_context(acquire_fork_server(bool(modules) and can_fork_workers(cluster)))
        # What the check registers with a Ray that starts meanwhile is only safe in a Ray that was tested.
        checked = beside.submit(_check, session, fork_server) if is_supported("ray") else None
        with connect_ray(cluster, modules, fork_server) as machine:
            session = checked.result() if checked else _check(session, fork_server)
            return _work(session, session.plan.share_of(machine))


def _check(session: SweepContext, fork_server: ForkServer | None) -> SweepContext:
    """Check what needs RLlib, and import what the driver needs next: time spent waiting for Ray otherwise."""
    for module in ("rltune.sweep.tune.run", "alembic.command"):  # Optuna wants the latter to make a ledger
        importlib.import_module(module)
    notes = (fork_server.call(plan.preflight, session.plan) if fork_server else plan.preflight(session.plan)) or ()
    aside = functools.partial(fork_server.call, patience_s=None) if fork_server else None
    return replace(session, plan=replace(session.plan, notes=(*session.plan.notes, *notes)), aside=aside)


def _modules(session: SweepContext) -> list[str]:
    """What a trial's process imports, which takes it 5 s of CPU."""
    if session.trainable is not None:
        return []
    config_module = str(session.plan.build.algo["class"]).partition(":")[0]
    return ["rltune.trial.trainable", "rltune.trial.algorithm_runner", config_module]


def _work(session: SweepContext, share: Share) -> Outcome:
    from rltune.sweep.tune.run import TuneRun  # imported by now, in a thread

    try:
        with open_folder(session), TuneRun(session, share) as conductor, stop_on_signals(conductor.control.request):
            return conductor.run()
    except Exception as error:
        if isinstance(error, RltuneError) or not is_disk_full(error):
            raise
        raise make_disk_full_error(session.folder) from error
