"""Run a sweep from the request to the champion.

A new sweep, a resumed one and an extended one are one code path: open the ledger, go through what is unfinished, ask
for more until the budget is spent. Runs in the driver.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

from omegaconf import DictConfig, OmegaConf

from rltune.cluster.background_imports import worker_imports
from rltune.cluster.fork_server import ForkServer, acquire_fork_server
from rltune.cluster.ray_cluster import can_fork_workers, connect_ray, prepare_environment
from rltune.cluster.resources import Share
from rltune.compat.patching import is_supported
from rltune.config.names import make_sweep_name, sweep_folder_of
from rltune.config.schema import RunConfig
from rltune.config.settings_file import read_settings
from rltune.config.validation import parse_config
from rltune.errors import StudyError
from rltune.study.disk_full import explain_full_disk
from rltune.study.sweep_folder import find_sweep, make_resume_command
from rltune.sweep import plan
from rltune.sweep.context import SweepContext
from rltune.sweep.folder import claim_folder, is_half_made, make_name_taken_error, open_folder
from rltune.sweep.plan import Plan, make_plan
from rltune.sweep.signals import stop_on_signals

if TYPE_CHECKING:
    from rltune.study.outcome import Outcome


def run_sweep(config: RunConfig, *, stream: TextIO | None = None, trainable: type | None = None) -> Outcome:
    """Search, certify, register and report.

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
    checked, folder = check_request(config)
    return _run_interruptibly(SweepContext(checked, folder.name, folder, False, began, stream, trainable))


def check_request(config: RunConfig) -> tuple[Plan, Path]:
    """Check what can be checked without Ray: what the sweep will do, and its folder, which is not there yet.

    Raises:
        RltuneError: The request cannot be carried out.
    """
    checked = make_plan(config)
    name = make_sweep_name(config)
    folder = sweep_folder_of(config, name)
    if folder.exists() and not is_half_made(folder):
        raise make_name_taken_error(name, folder)
    return checked, folder


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
    return _run_interruptibly(SweepContext(make_plan(config), folder.name, folder, True, began, stream, trainable))


def _without_none(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Drop the changes that stand for none, at any depth."""
    nested = {key: _without_none(value) if isinstance(value, Mapping) else value for key, value in changes.items()}
    return {key: value for key, value in nested.items() if value is not None and value != {}}


def _run_interruptibly(context: SweepContext) -> Outcome:
    """Run; a signal that comes before trials can be asked to save their state, or a second one, leaves at once."""
    try:
        return _start(context)
    except (KeyboardInterrupt, SystemExit):  # the latter by Ray's handler of SIGTERM, in force from its start (2.60)
        begun = context.resumed or (context.folder / "config.yaml").exists()
        how = f"to go on: {make_resume_command(context.folder)}" if begun else "nothing was begun that could be resumed"
        print(f"interrupted; {how}", file=context.stream or sys.stdout, flush=True)
        raise


def _start(context: SweepContext) -> Outcome:
    """Check what is expensive to check while Ray starts, and only then write anything."""
    cluster = context.plan.config.cluster
    modules = [] if context.trainable else worker_imports(str(context.plan.build.algo["class"]))
    prepare_environment(cluster)
    # Close the fork server before the thread is joined: if Ray does not start, the thread would wait for its answer.
    with ThreadPoolExecutor(1) as thread, contextlib.ExitStack() as stack:
        if context.resumed:  # first of all: what a killed driver left running must not meet what we start
            stack.enter_context(claim_folder(context))
        server = stack.enter_context(acquire_fork_server(bool(modules) and can_fork_workers(cluster)))
        # The check registers classes with a Ray that starts meanwhile: only a Ray that was tested allows that.
        checked = thread.submit(_check, context, server) if is_supported("ray") else None
        with connect_ray(cluster, modules, server) as machine:
            context = checked.result() if checked else _check(context, server)
            return _run(context, context.plan.share_of(machine))


def _check(context: SweepContext, server: ForkServer | None) -> SweepContext:
    """Check what needs RLlib, and import what `_run` needs: time spent waiting for Ray otherwise."""
    import alembic.command  # noqa: F401  Optuna makes a ledger with it

    import rltune.sweep.publish
    import rltune.sweep.tune.run
    import rltune.sweep.winner  # noqa: F401

    notes = (server.call(plan.preflight, context.plan) if server else plan.preflight(context.plan)) or ()
    call_aside = functools.partial(server.call, patience_s=None) if server else None
    return replace(context, plan=replace(context.plan, notes=(*context.plan.notes, *notes)), call_aside=call_aside)


def _run(context: SweepContext, share: Share) -> Outcome:
    """Search, certify, register, report."""
    # Not at the top: a wrong name in the request is answered before these, and Ray with them, are imported.
    from rltune.sweep.open_sweep import open_sweep
    from rltune.sweep.provenance import record_start
    from rltune.sweep.publish import publish_outcome, start_console, start_tracking
    from rltune.sweep.tune.run import run_trials
    from rltune.sweep.winner import register_winner, save_outcome, select_winner

    with (
        explain_full_disk(context.folder),
        open_folder(context),
        open_sweep(context, share) as sweep,
        stop_on_signals(sweep.stopper.request),
    ):
        record_start(sweep)
        start_tracking(sweep)
        start_console(sweep)
        if not (sweep.is_searched() and sweep.is_certified()):
            run_trials(sweep)
        records = sweep.ledger.trials.records()
        winner, certification = select_winner(sweep, records)
        model = register_winner(sweep, winner, certification)
        outcome = save_outcome(sweep, records, winner, certification, model)
        publish_outcome(sweep, records, outcome, certification)
        return outcome
