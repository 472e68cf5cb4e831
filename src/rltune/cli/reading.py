"""The commands that only read sweeps: show, watch, report and compare."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rltune.cli.application.answer import Answer
from rltune.cli.application.command import (
    RequestConfig,
    ServedConfig,
    command,
    locate_sweep,
    make_sweep_ref,
)
from rltune.cli.submitted import (
    find_remote,
    find_remote_sweep,
    find_service,
    find_submission,
    print_submission,
    wait_for_start,
    watch_remote,
)
from rltune.errors import ABSENT, EXIT_TRY_AGAIN, ConfigError, StudyError
from rltune.formatting import spell_command

if TYPE_CHECKING:
    from rltune.service.client import Client
    from rltune.views.comparison import Comparison


@command("show sweep=latest", RequestConfig)
def show(settings: RequestConfig) -> Answer:
    """Print the trials of a sweep, the best first."""
    if remote := find_remote_sweep(settings):
        waiting = remote.client.show(remote.name) | {"service": True}
        if not waiting["sweep"]:
            return Answer(waiting, lambda: print_submission(waiting))
        return Answer(remote.client.result(remote.name), lambda: print(remote.client.table(remote.name), end=""))
    from rltune.views.tables import read_sweep, show_sweep

    try:
        view = read_sweep(make_sweep_ref(settings))
    except StudyError:
        # A sweep that was submitted to a service and has not started has no folder yet.
        if (submission := find_submission(settings)) and not submission["has_folder"]:
            return Answer(submission, lambda: print_submission(submission))
        raise
    from rltune.views.description import describe

    return Answer(describe(view), lambda: show_sweep(view))


@command("watch sweep=latest", RequestConfig)
def watch(settings: RequestConfig) -> Answer:
    """Watch the live table of a sweep that runs anywhere, until it ends or Ctrl-C."""
    if remote := find_remote_sweep(settings):
        return watch_remote(remote)
    submission = wait_for_start(settings)
    from rltune.driver.requests.watching import EXIT_CODES, watch_sweep

    try:
        ref = locate_sweep(settings)
    except StudyError:
        if submission is None:
            raise
        code = EXIT_CODES.get(submission["state"], EXIT_TRY_AGAIN)
        return Answer({**submission, "exit_code": code}, lambda: print_submission(submission), code)
    from rltune.views.description import describe
    from rltune.views.tables import read_sweep

    code = watch_sweep(ref)
    data: dict[str, Any] = {"name": ref.name}
    with contextlib.suppress(StudyError):  # There may be no folder on this machine if the ledger is in a database.
        view = read_sweep(ref)
        # Only the watch has noticed it if the driver died on another machine.
        data = describe(view.end_as("interrupted") if code == EXIT_CODES["interrupted"] else view)
    return Answer({**data, "exit_code": code}, exit_code=code)


@dataclass
class ReportConfig(RequestConfig):
    """The settings of conf/report.yaml."""

    dashboard: bool = False


@command("report sweep=latest", ReportConfig)
def report(settings: ReportConfig) -> Answer:
    """Write the report page of a sweep's present state, also while the sweep runs."""
    if not settings.dashboard and (remote := find_remote_sweep(settings)):
        file = Path(f"{remote.name}.html").absolute()
        file.write_text(remote.client.report(remote.name))
        return Answer({"report": file}, lambda: print(file))
    ref = make_sweep_ref(settings)
    folder = ref.folder()
    from rltune.views import html  # Imported after the name is checked, because SQLAlchemy loads slowly.

    if settings.dashboard:
        from rltune.views.study import write_study
        from rltune.views.sweep_view import load_view

        address = f"sqlite:///{write_study(load_view(folder, ref.ledger_url))}"
        hint = "" if shutil.which("optuna-dashboard") else "   # pip install optuna-dashboard"
        return Answer({"study": address}, lambda: print(f"optuna-dashboard {address}{hint}"))
    page = html.write_report(folder, ledger_url=ref.ledger_url) / html.PAGE
    return Answer({"report": page}, lambda: print(page))


@dataclass
class CompareConfig(ServedConfig):
    """The settings of conf/compare.yaml."""

    sweeps: list[str] = field(default_factory=list)
    group: str | None = None
    out: str = ""


@command("compare sweeps=[a,b]", CompareConfig)
def compare(settings: CompareConfig) -> Answer:
    """Compare sweeps on one environment."""
    client = find_service(settings) if settings.group is not None else None
    sweeps = settings.sweeps if settings.group is None else list_group(settings.group, client)
    if not sweeps:
        raise ConfigError(
            "sweeps", ABSENT, "has no value", "sweeps' names", spell_command("compare sweeps=[first,second]")
        )
    comparison = compare_remote(settings, sweeps) or compare_here(settings, sweeps)
    files = comparison.save(Path(settings.out).expanduser().absolute())
    data = {**comparison.to_dict(), "files": files}
    return Answer(data, lambda: print(comparison.markdown(), *files, sep="\n"))


def compare_here(settings: CompareConfig, sweeps: Sequence[str]) -> Comparison:
    """Compare sweeps whose folders are on this machine, or in their storage."""
    from rltune.ledger.sweep_ref import SweepRef

    folders = [SweepRef.of(sweep, settings.output_dir, settings.storage).folder("sweeps") for sweep in sweeps]
    # Imported after the names are checked, because SQLAlchemy loads slowly.
    from rltune.views.comparison import compare_sweeps

    return compare_sweeps(folders, ledger_url=settings.study.storage)


def compare_remote(settings: CompareConfig, sweeps: Sequence[str]) -> Comparison | None:
    """Let the service that the user named compare its sweeps; None without one, or if none of these are its own.

    Raises:
        StudyError: One of them is not the service's, and so cannot be compared with those that are.
    """
    client = find_remote(settings)
    names = {sweep["name"] for sweep in client.list()} if client else set()
    if client is None or not names & {*sweeps}:
        return None
    from rltune.views.comparison import Comparison

    return Comparison.from_dict(client.compare(*sweeps))


def list_group(group: str, client: Client | None) -> list[str]:
    """List the names of the complete sweeps that were submitted with ``group=NAME``, in the order of submission.

    Raises:
        ConfigError: No service runs, or it has no complete sweep of the group.
    """
    sweeps = client.list(group) if client else []
    sweeps.sort(key=lambda sweep: (str(sweep["submitted"]), sweep["id"]))
    complete = [sweep["name"] for sweep in sweeps if sweep["state"] == "complete"]
    if not complete:
        raise ConfigError(
            "group",
            group,
            f": {'no sweep of this group is complete' if client else 'no service runs'}",
            "a group whose sweeps were submitted, and have ended",
            spell_command("list") if client else spell_command("serve"),
        )
    return complete
