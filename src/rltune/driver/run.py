"""Run a sweep from the request to the registered champion, or resume one.

A new sweep, a resumed sweep and an extended one go through the same steps, see `drive`. Runs in the driver.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TextIO

from rltune.checkpoints.store import find_store
from rltune.cluster.fork_server import ForkServer, acquire_fork_server
from rltune.cluster.ray_cluster import can_fork_workers, connect_ray, prepare_environment
from rltune.cluster.resources import Machine
from rltune.cluster.slots import Slots
from rltune.config.schema import MEASURED, ClusterConfig, RunConfig
from rltune.config.settings_file import read_identity, require_own_sweep
from rltune.driver import plan as planning
from rltune.driver.background_imports import LOADED_BEFORE_FORK, worker_imports
from rltune.driver.folder import hold_sweep, open_folder
from rltune.driver.plan import Invocation, Plan
from rltune.driver.requests.inbox import withdraw_stops
from rltune.driver.signals import end_process, stop_on_signals
from rltune.driver.starting import (
    AUTO,
    change_settings,
    check_request,
    compare_with_begun,
    find_begun,
    find_end,
    plan_begun,
    require_changeable,
)
from rltune.errors import ConfigError, StudyError, StudyUnavailableError, UnavailableError
from rltune.ledger.disk_full import DISK_FULL, explain_full_disk, find_full_temp_folder
from rltune.ledger.handover import fetch_sweep
from rltune.ledger.sweep_folder import make_resume_command
from rltune.ledger.sweep_ref import SweepRef, name_start
from rltune.secrets import lacks_login

if TYPE_CHECKING:
    from rltune.ledger.outcome import Outcome

LEAVE_S = 20.0  # How long a driver that has lost its lease may take to exit.
NOT_FORKED = "each attempt at a trial has a process of its own, which imports RLlib first: about 5 s of CPU each"
PREFLIGHT_S = 300.0  # The shortest time-out of the checks with RLlib, which include its import.


def run_sweep(
    config: RunConfig,
    *,
    stream: TextIO | None = None,
    trainable: type | None = None,
    typed: str | None = None,
    has_tables: bool = True,
) -> Outcome:
    """Run a sweep: search, certify the best configurations, register the winner, and write the report.

    Args:
        config: The sweep's settings; see `rltune.config.validation.parse_config`.
        stream: The stream to which the console writes; None is standard output.
        trainable: A replacement for `rltune.trial.trainable.Trial`, for tests.
        typed: The command that runs the sweep again, for the report; None if a script has started the sweep.
        has_tables: Whether the console prints tables at the end.

    Returns:
        The outcome; its ``exit_code`` is the command's.

    Raises:
        RltuneError: The request cannot be carried out; nothing was written.
    """
    began = time.monotonic()
    if not isinstance(config, RunConfig):
        allowed = "a RunConfig, as rltune.config.validation.parse_config makes it"
        raise ConfigError("config", config, "is none", allowed, 'rltune.sweep("algo=ppo", budget={"trials": 8})')
    # Printed first, because the next imports and the start of Ray take seconds.
    _print(stream, f"{config.algo['name']} in {config.env.id}: checking the request, starting Ray ...")
    folder = find_begun(config) if config.resume == AUTO else None
    if folder is None:
        with RayStart(config.cluster, config.algo, trainable) as ray:
            # A simulator may take long to start, and Ray starts meanwhile. What is measured on a GPU comes before Ray.
            is_measured = config.resources.trials_per_gpu == MEASURED
            plan = check_request(config, None if is_measured else lambda: ray.nodes)
            return drive(plan, Invocation(began, stream, trainable, typed, has_tables=has_tables), ray)
    fetch_sweep(find_store(read_identity(folder)), for_driver=True, take_over=config.take_over)
    config, grows = compare_with_begun(folder, config)
    from rltune.driver.requests.actions import request_retry  # Imported here, because SQLAlchemy loads slowly.

    outcome = None if grows else find_end(folder, config.study.storage)
    if outcome and outcome.status == "failed":
        # What let its trials fail may be mended by now, so that the same line of a crontab heals it.
        with contextlib.suppress(StudyError):  # None of them can be retried.
            request_retry(SweepRef(folder.name, folder.parent, ledger_url=config.study.storage))
            outcome = None
    if outcome:
        summary = folder / "summary.json"
        _print(stream, f"{folder.name} has ended ({outcome.status}) and no setting asks for more: see {summary}")
        return outcome
    require_own_sweep(folder, make_resume_command(folder))
    return drive(plan_begun(config, folder), Invocation(began, stream, trainable, has_tables=has_tables))


def resume_sweep(
    ref: SweepRef | str | os.PathLike[str],
    *,
    changes: Mapping[str, Any] | None = None,
    stream: TextIO | None = None,
    trainable: type | None = None,
    trust: bool = False,
    take_over: bool = False,
) -> Outcome:
    """Resume an interrupted sweep, or extend a finished one.

    Args:
        ref: The sweep: a reference, its name or its folder. The ``storage`` and ``ledger_url`` of a reference are the
            sweep's from now on, if they are given.
        changes: What conf/resume.yaml lets change: ``{"budget": {"trials": 48}}``, a larger budget, another address, or
            one whose login is not kept; None stands for no change.
        stream: The stream to which the console writes; None is standard output.
        trainable: A replacement for `rltune.trial.trainable.Trial`, for tests.
        trust: Resume a sweep that another user made: its settings and checkpoints run code.
        take_over: Continue from the ledger in the storage although a driver on another machine has a newer one and has
            not ended, because that machine is gone.

    Raises:
        RltuneError: There is no such sweep, another user made it, another driver works on it, or the changes are not
            possible: a sweep's trials were searched and judged by its other settings.
    """
    began = time.monotonic()
    require_changeable(changes or {})
    ref = ref if isinstance(ref, SweepRef) else SweepRef.of(ref)
    folder = ref.folder()
    _print(stream, f"resuming {folder.name}: reading its ledger, starting Ray ...")
    fetch_sweep(find_store(read_identity(folder)), for_driver=True, take_over=take_over)
    if not trust:
        require_own_sweep(folder, make_resume_command(folder))
    config = change_settings(folder, ref, changes or {})
    if lacks_login(config.notify or ""):
        _print(stream, f"notify={config.notify}: its login is not saved in any file; add notify=... to be notified")
    with name_start(ref):
        plan = plan_begun(config, folder)
    return drive(plan, Invocation(began, stream, trainable))


def drive(plan: Plan, invocation: Invocation, ray: RayStart | None = None) -> Outcome:
    """Take a sweep's lease, start Ray, open the sweep, run its trials and end it.

    Args:
        plan: The checked sweep.
        invocation: How the driver was called.
        ray: Its Ray, if that may have started already; it ends here.

    Raises:
        RltuneError: A check has failed, another driver works on the sweep, or the disk or the storage does not work.
    """
    ray = ray or RayStart(plan.cluster, plan.build.algo, invocation.trainable)
    with _explain_interrupt(plan, invocation.stream), explain_full_disk(plan.folder), contextlib.ExitStack() as stack:
        # The driver that takes over kills this driver's Ray, and calls to a dead Ray hang for a minute. The timer exits
        # this process sooner.
        lost = StudyUnavailableError(
            ": another driver has taken it over", "one driver at a time", key="sweep", value=plan.name
        )
        leaving = threading.Timer(LEAVE_S, end_process, (lost,))
        leaving.daemon = True
        stack.callback(leaving.cancel)
        ledger = None
        if plan.resumed:  # Taking the lease kills processes of a dead driver, before this driver starts its own.
            ledger = stack.enter_context(hold_sweep(plan, invocation.stream))
            withdraw_stops(ledger)
        plan = planning.measure_share(plan)
        plan, invocation = stack.enter_context(ray).start(plan, invocation)
        # With an autoscaler, nodes that come later may be larger than the present ones.
        share = plan.share_of(*(() if plan.cluster.autoscale else ray.nodes))
        request, autoscales = plan.request, plan.cluster.autoscale
        slots = Slots(share.bundles, request.limit, ray.nodes, autoscales, request.trials_per_node)
        # A new sweep's folder is made only now, so that a failed check leaves none behind.
        ledger = ledger or stack.enter_context(hold_sweep(plan, invocation.stream))
        stack.enter_context(open_folder(plan, ledger, invocation.stream))

        # Imported only now, so that errors in the settings are reported without waiting for Ray's import.
        from rltune.driver.end import SweepEnd
        from rltune.driver.open_sweep import keep_house, open_sweep
        from rltune.driver.provenance import record_start
        from rltune.driver.publish import start_console
        from rltune.driver.tune.fit import run_trials
        from rltune.views.sweep_view import SweepView

        sweep = stack.enter_context(open_sweep(plan, invocation, ledger, share, slots))
        sweep.stopper.on_lease_lost = leaving.start
        stack.enter_context(stop_on_signals(sweep.stopper.request))
        end = SweepEnd(sweep)
        record_start(ledger, plan.folder, plan.settings, plan.build.facts, invocation.typed)
        start_console(sweep.plan, share, sweep.display, sweep.console)
        imports = stack.enter_context(keep_house(sweep, end.leave_without_head))
        if not (SweepView.read(ledger).is_searched and sweep.is_certified()):
            run_trials(sweep)
        if not sweep.stopper.is_urgent():  # An urgent end writes no report.
            imports.finish()
        return end.run()


class RayStart:
    """Starts a local Ray or joins a cluster when it is first needed, and ends that with its context.

    Args:
        cluster: Which Ray runs the trials.
        algo: The algorithm's settings, whose class the processes of trials import.
        trainable: What replaces `rltune.trial.trainable.Trial`, and needs no RLlib.
    """

    def __init__(self, cluster: ClusterConfig, algo: Mapping[str, Any], trainable: type | None = None) -> None:
        self._cluster = cluster
        self._modules = [] if trainable else worker_imports(str(algo["class"]))
        self._stack = contextlib.ExitStack()
        prepare_environment(cluster)

    def __enter__(self) -> RayStart:
        return self

    def __exit__(self, *raised: Any) -> None:
        self._stack.__exit__(*raised)

    @functools.cached_property
    def nodes(self) -> Sequence[Machine]:
        """What each of its nodes has for trials when it starts, which is when this is first read.

        Raises:
            RltuneError: Ray does not start.
        """
        try:
            return self._stack.enter_context(connect_ray(self._cluster, self._modules, self._helpers[1]))
        except UnavailableError as error:
            # Ray only says that its node is not up in time (Ray 2.60).
            place = find_full_temp_folder()
            if self._cluster.address is not None or place is None:
                raise
            raise UnavailableError(
                f": Ray did not start, because {DISK_FULL}, in {place}",
                "room for the sockets and logs of Ray's processes",
                f"make room in {place}, or name another folder in RAY_TMPDIR; then the same command again",
                key="cluster",
                value="local",
            ) from error

    @functools.cached_property
    def _helpers(self) -> tuple[ThreadPoolExecutor, ForkServer | None]:
        """A thread for work beside Ray's start, and the fork server, started when this is first read."""
        # The order matters: closing the fork server ends the call that the thread may still wait for if Ray does not
        # start.
        thread = self._stack.enter_context(ThreadPoolExecutor(1))
        is_wanted = bool(self._modules) and can_fork_workers(self._cluster)
        server = self._stack.enter_context(acquire_fork_server(is_wanted, LOADED_BEFORE_FORK))
        thread.submit(_import_modules)
        return thread, server

    def start(self, plan: Plan, invocation: Invocation) -> tuple[Plan, Invocation]:
        """Start it, unless it has started beside the check of the environment, and run the checks that need RLlib.

        Returns:
            The plan with the notes of the checks, and how to fork processes that have RLlib.

        Raises:
            RltuneError: Ray does not start, or a check has failed.
        """
        thread, server = self._helpers
        # The check registers classes with Ray, which while Ray is starting only another process can do safely.
        checked = thread.submit(_check, plan, server) if server else None
        _ = self.nodes
        notes = checked.result() if checked else _check(plan, None)
        thread.shutdown()
        if self._modules and not server:
            notes = *notes, NOT_FORKED
        return plan.with_notes(*notes), replace(invocation, fork_child=server.fork_child if server else None)


def _import_modules() -> None:
    """Import slow modules in a thread while Ray starts."""
    import alembic.command  # noqa: F401  Optuna needs alembic to make a ledger.

    import rltune.driver.end
    import rltune.driver.tune.fit  # noqa: F401


def _check(plan: Plan, server: ForkServer | None) -> tuple[str, ...]:
    """Run the checks that need RLlib, in a subprocess if possible, and return their notes."""
    request = plan.build, plan.space, plan.engine
    if server is None:
        return planning.preflight(*request)
    # The time-out has to cover the import of RLlib.
    return server.call(planning.preflight, *request, patience_s=max(PREFLIGHT_S, plan.failures.stall_s))


@contextlib.contextmanager
def _explain_interrupt(plan: Plan, stream: TextIO | None) -> Iterator[None]:
    """On an interrupt, print how to resume the sweep or that there is nothing to resume."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as stop:
        # Ray's own handler of SIGTERM raises SystemExit (Ray 2.60).
        how = "there is nothing to resume"
        if plan.resumed or (plan.folder / "config.yaml").exists():
            command = make_resume_command(plan.folder)
            stop.add_note(command)  # The command line puts it into its JSON answer.
            how = f"to continue: {command}"
        _print(stream, f"interrupted; {how}")
        raise


def _print(stream: TextIO | None, text: str | None) -> None:
    if text:
        print(text, file=stream, flush=True)
