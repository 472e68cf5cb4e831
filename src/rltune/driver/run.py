"""Run a sweep from the request to the champion.

A new sweep, a resumed one and an extended one are one code path: open the ledger, go through what is unfinished, ask
for more until the budget is spent. Runs in the driver.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

from omegaconf import DictConfig, OmegaConf

from rltune.checkpoints.handover import read_stored_driver
from rltune.checkpoints.store import find_store
from rltune.cluster.background_imports import worker_imports
from rltune.cluster.fork_server import ForkServer, acquire_fork_server
from rltune.cluster.ray_cluster import can_fork_workers, connect_ray, prepare_environment
from rltune.cluster.resources import Share
from rltune.cluster.slots import Slots
from rltune.config.changes import CHANGEABLE, check_budgets, check_changes, keep_measured
from rltune.config.names import make_sweep_name, sweep_folder_of
from rltune.config.schema import RunConfig
from rltune.config.settings_file import read_settings, require_own_sweep
from rltune.config.uris import HIDDEN
from rltune.config.validation import check_whole, parse_config
from rltune.driver import plan
from rltune.driver.context import SweepContext
from rltune.driver.folder import hold_sweep, make_name_taken_error, open_folder
from rltune.driver.plan import Plan, make_plan
from rltune.driver.requests.inbox import prepare_requests
from rltune.driver.signals import stop_on_signals
from rltune.driver.warm_starts import widen_ranges
from rltune.errors import StudyError
from rltune.formatting import spell_command
from rltune.ledger.disk_full import explain_full_disk
from rltune.ledger.sweep_folder import (
    follow_sweep,
    is_half_made,
    make_resume_command,
)
from rltune.ledger.sweep_ref import SweepRef
from rltune.records import RETRY

logger = logging.getLogger(__name__)
LOCAL = "local"  # The address that means a local Ray, because no address means no change.
AUTO = "auto"  # The value of `resume` that begins a sweep or goes on with it.
ENDED = ("complete", "stopped", "failed")
PREFLIGHT_S = 300.0  # The least time-out of RLlib's checks before a sweep, which include its import.

if TYPE_CHECKING:
    from rltune.ledger.ledger import Ledger
    from rltune.ledger.outcome import Outcome


def run_sweep(
    config: RunConfig, *, stream: TextIO | None = None, trainable: type | None = None, typed: str | None = None
) -> Outcome:
    """Search, certify, register and report.

    Args:
        config: The sweep's settings; see `rltune.config.validation.parse_config`.
        stream: Where the console writes; None is standard output.
        trainable: A replacement for `rltune.trial.trainable.Trial`, for tests.
        typed: The command that does the same, for the report; None is what was typed in this process.

    Returns:
        How it ended; its ``exit_code`` is the command's.

    Raises:
        RltuneError: The request cannot be carried out; nothing was written.
    """
    began = time.monotonic()
    check_whole(config)
    if config.resume == AUTO and (begun := find_begun(config)):
        _follow(begun, stream, take_over=config.take_over)
        config, grows = compare_with_begun(begun, config)
        if not grows and (ended := find_end(begun, config)):
            how = f"{begun.name} has ended ({ended.status}) and nothing asks for more: see {begun / 'summary.json'}"
            print(how, file=stream or sys.stdout, flush=True)
            return ended
        require_own_sweep(begun, make_resume_command(begun))
        return _run_interruptibly(
            SweepContext(make_plan(config, resumed=True), begun.name, begun, True, began, stream, trainable)
        )
    checked, folder = check_request(config)
    context = SweepContext(checked, folder.name, folder, False, began, stream, trainable, typed=typed)
    return _run_interruptibly(context)


def compare_with_begun(begun: Path, config: RunConfig) -> tuple[RunConfig, bool]:
    """Refuse settings with which a sweep that was begun cannot go on.

    Args:
        begun: The sweep's folder.
        config: The settings of this request.

    Returns:
        The settings to go on with, and whether a budget is larger than it was.

    Raises:
        RltuneError: Other settings than budgets and addresses differ, or a budget is smaller.
    """
    settings = read_settings(begun, whole=True)
    config = keep_measured(settings, config)
    wanted, _ = plan.fit_grid(widen_ranges(config))
    return config, check_changes(begun.name, settings, wanted)


def find_begun(config: RunConfig) -> Path | None:
    """Find the folder of the sweep that a request names; None if it is still to be begun.

    A sweep that is only in the storage, as for a job on a fresh disk, is fetched.

    Raises:
        StudyError: The storage cannot be used.
    """
    name = make_sweep_name(config)
    folder = sweep_folder_of(config, name)
    is_here = folder.exists() and not is_half_made(folder)
    ref = SweepRef(name, config.output_dir, config.storage)
    if ref.is_stored():
        return ref.folder()
    return folder if is_here else None


def _follow(folder: Path, stream: TextIO | None, *, take_over: bool) -> None:
    """Fetch the state that another machine has stored of a sweep, if it is newer, and print a line about it."""
    if note := follow_sweep(folder, take_over=take_over):
        print(note, file=stream or sys.stdout, flush=True)


def find_end(folder: Path, config: RunConfig) -> Outcome | None:
    """Find how a sweep has ended; None if there is something left to do.

    The ledger decides, because a summary may be of an earlier end, before the sweep was extended. A driver that was
    killed before it stored the ledger in remote storage has left that to do.

    Args:
        folder: Its folder.
        config: Names the ledger's address, login included.
    """
    from rltune.ledger.outcome import load_outcome
    from rltune.ledger.storage import open_ledger

    try:
        with contextlib.closing(open_ledger(folder, config.study.storage)) as ledger:
            status = ledger.sweep().status
            records = (*ledger.trials.records(), *ledger.runs.records())
            if ledger.read_requests(RETRY):
                return None
    except StudyError:
        return None  # Opening the ledger to go on creates it, or raises an error that says why not.
    driver = read_stored_driver(find_store(folder))
    if driver and not driver.ended:
        return None
    outcome = load_outcome(folder) if status in ENDED else None
    if outcome and any(record.state == "RUNNING" for record in records):
        return None  # The wall time counts anew, and trials that an error has left unfinished go on.
    return outcome


def check_request(config: RunConfig) -> tuple[Plan, Path]:
    """Check what can be checked without Ray: what the sweep will do, and its folder, which must not exist yet.

    Raises:
        RltuneError: The request cannot be carried out.
    """
    checked = make_plan(config)
    name = make_sweep_name(config)
    folder = sweep_folder_of(config, name)
    if config.resume == AUTO:  # A sweep that exists goes on.
        return checked, folder
    if folder.exists() and not is_half_made(folder):
        raise make_name_taken_error(name, folder)
    if SweepRef(name, config.output_dir, config.storage).is_stored():
        raise StudyError(
            f"name={name}: {config.storage} has a sweep of this name",
            "a name of its own for each sweep",
            make_resume_command(folder, {"storage": config.storage}),
        )
    return checked, folder


def resume_sweep(
    ref: SweepRef,
    *,
    changes: Mapping[str, Any] | None = None,
    stream: TextIO | None = None,
    trainable: type | None = None,
    trust: bool = False,
    take_over: bool = False,
    retry: Mapping[str, Sequence[int]] | None = None,
) -> Outcome:
    """Go on with an interrupted sweep, or extend a finished one.

    Args:
        ref: The sweep. Its ``storage`` and its ``ledger_url`` are the sweep's from now on, where they are given.
        changes: What conf/resume.yaml lets change: ``{"budget": {"trials": 48}}``, a larger budget, another address, or
            one whose login is not kept; None stands for no change.
        stream: Where the console writes.
        trainable: A replacement for `rltune.trial.trainable.Trial`, for tests.
        trust: Go on with a sweep that somebody else made: its settings and checkpoints run code.
        take_over: Go on from the ledger in the storage although a driver on another machine has a newer one and has not
            ended, because that machine is gone.
        retry: Numbers of what failed and is tried again, by TRIALS and CERTIFY of `rltune.records`.

    Raises:
        RltuneError: There is no such sweep, it is somebody else's, another driver works on it, the new budget is no
            budget, or something else is to change: its trials were searched and judged by what it had.
    """
    began = time.monotonic()
    for key in sorted((changes or {}).keys() - set(CHANGEABLE)):
        raise StudyError(
            f"{key}={(changes or {})[key]}: a sweep that is resumed keeps its own {key}",
            f"changes of {', '.join(CHANGEABLE)}",
            spell_command("run name=... begins another sweep"),
        )
    folder = ref.folder()
    _follow(folder, stream, take_over=take_over)
    raw = read_settings(folder, whole=True)
    if not trust:
        require_own_sweep(folder, make_resume_command(folder))
    wanted = _without_none(changes or {})
    if wanted.get("cluster", {}).get("address") == LOCAL:
        wanted["cluster"]["address"] = None
    addresses = _without_none({"storage": ref.storage, "study": {"storage": ref.ledger_url}})
    merged = OmegaConf.merge(raw, addresses, wanted)
    config = parse_config(cast(DictConfig, merged))
    check_budgets(folder.name, raw, config)
    for key, value in (("study.storage", config.study.storage), ("tracking.uri", config.tracking.uri)):
        if value and HIDDEN in value:
            raise StudyError(
                f"{key}={value}: the login is kept in no file, so it has to be given again",
                "the whole address",
                make_resume_command(folder),
            )
    if HIDDEN in (config.notify or ""):
        how = f"notify={config.notify}: nobody is told of the end, no file keeps all of it; notify=... has them told"
        print(how, file=stream or sys.stdout, flush=True)
    plan = make_plan(config, resumed=True)
    context = SweepContext(plan, folder.name, folder, True, began, stream, trainable, retry=retry)
    return _run_interruptibly(context)


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
    """Run the expensive checks while Ray starts, and only then write anything."""
    cluster = context.plan.config.cluster
    modules = [] if context.trainable else worker_imports(str(context.plan.build.algo["class"]))
    prepare_environment(cluster)
    # Close the fork server before the thread is joined: if Ray does not start, the thread would wait for its answer.
    with contextlib.ExitStack() as stack:
        thread = stack.enter_context(ThreadPoolExecutor(1))
        ledger = None
        if context.resumed:  # First of all: processes that a killed driver left running must not meet new ones.
            ledger = stack.enter_context(hold_sweep(context))
            prepare_requests(ledger, context.retry)
        context = replace(context, plan=plan.measure_share(context.plan))
        server = stack.enter_context(acquire_fork_server(bool(modules) and can_fork_workers(cluster)))
        # The check registers classes with Ray: beside Ray's start that is safe only in another process.
        thread.submit(_import_modules)
        checked = thread.submit(_check, context, server) if server else None
        with connect_ray(cluster, modules, server) as nodes:
            context = checked.result() if checked else _check(context, None)
            thread.shutdown()
            share = context.plan.share_of(*(() if cluster.autoscale else nodes))  # a larger node may be to come
            slots = Slots(share.bundles, context.plan.request.limit, nodes, cluster.autoscale)
            return _run(context, ledger, share, slots)


def _import_modules() -> None:
    """Import what `_run` needs while Ray starts."""
    import alembic.command  # noqa: F401  Optuna makes a ledger with it

    import rltune.driver.end
    import rltune.driver.tune.fit  # noqa: F401


def _check(context: SweepContext, server: ForkServer | None) -> SweepContext:
    """Check what needs RLlib."""
    stall_s, call_aside = context.plan.config.failures.stall_s, None
    if server is None:
        notes = plan.preflight(context.plan) or ()
    else:  # the check imports RLlib first, without a sign of progress: a limit for short iterations is none for it
        notes = server.call(plan.preflight, context.plan, patience_s=max(PREFLIGHT_S, stall_s)) or ()
        call_aside = functools.partial(server.call, patience_s=stall_s)
    return replace(context, plan=replace(context.plan, notes=(*context.plan.notes, *notes)), call_aside=call_aside)


def _run(context: SweepContext, held: Ledger | None, share: Share, slots: Slots) -> Outcome:
    """Search, certify, register, report.

    Args:
        context: What the driver works on.
        held: The ledger of a resumed sweep, whose lease this driver holds; None for a new one.
        share: A trial's share of the machine.
        slots: How many trials run at once.
    """
    # Not at the top: a wrong name in the request is answered before these, and Ray with them, are imported.
    from rltune.driver.end import end_sweep, watch_head
    from rltune.driver.open_sweep import open_sweep
    from rltune.driver.provenance import record_start
    from rltune.driver.publish import notify_users_of_crash, start_console, start_tracking
    from rltune.driver.tune.fit import run_trials
    from rltune.ledger.lease import LeaseLostError
    from rltune.views.sweep_view import SweepView

    with (
        explain_full_disk(context.folder),
        open_folder(context, held) as ledger,
        open_sweep(context, ledger, share, slots) as sweep,
        stop_on_signals(sweep.stopper.request),
    ):
        watch_head(sweep)
        try:
            record_start(sweep)
            start_tracking(sweep)
            start_console(sweep)
            sweep.housekeeping.add(sweep.console.draw_every_s, sweep.display.draw)
            if not (SweepView.read(sweep.ledger).is_searched and sweep.is_certified()):
                run_trials(sweep)
            return end_sweep(sweep)
        except LeaseLostError:  # The sweep goes on with another driver.
            raise
        except Exception as error:
            notify_users_of_crash(sweep, error)
            raise
