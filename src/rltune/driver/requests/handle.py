"""Open a sweep in a process that is not its driver, to watch it or to send it a request. Runs anywhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rltune.checkpoints.store import find_store
from rltune.cluster.stale_processes import read_boot_id
from rltune.config.budget import SpentBudget
from rltune.config.criteria import read_criteria
from rltune.config.schema import BudgetConfig
from rltune.config.settings_file import load_settings, read_identity, read_settings
from rltune.config.validation import to_typed
from rltune.driver.requests.inbox import describe_user
from rltune.errors import StudyError
from rltune.formatting import spell_command
from rltune.ledger.database import file_of, has_write_ahead_log
from rltune.ledger.handover import has_newest
from rltune.ledger.lease import LeaseWatch
from rltune.ledger.ledger import Ledger, MissingSweepError
from rltune.ledger.storage import open_ledger, require_login
from rltune.ledger.sweep_folder import make_resume_command
from rltune.ledger.sweep_ref import LATEST, SweepRef
from rltune.views.sweep_view import SweepView

POLL_S = 0.5  # Seconds between two reads of the ledger while waiting.


@dataclass(frozen=True)
class SweepHandle:
    """An open sweep in a process that is not the sweep's driver.

    Attributes:
        name: The sweep's name.
        ledger: The sweep's ledger.
        settings: The settings in the sweep's folder. If this machine has no folder of the sweep, the settings with
            which the sweep was started, as its ledger has them.
        folder: The sweep's folder; None if this machine has none.
    """

    name: str
    ledger: Ledger
    settings: Mapping[str, Any]
    folder: Path | None

    @cached_property
    def budget(self) -> BudgetConfig:
        """The sweep's budget."""
        return to_typed(BudgetConfig, self.settings["budget"])

    def compute_spent(self) -> SpentBudget:
        """Return the number of trials and environment steps that the search has used."""
        trials = self.ledger.trials.records()
        replicates = int(self.settings["replicates"])
        return SpentBudget(self.budget, replicates, len(trials), replicates * sum(trial.env_steps for trial in trials))

    @property
    def resume_command(self) -> str:
        """The command line that resumes the sweep."""
        if self.folder:
            return make_resume_command(self.folder)
        return spell_command(f"resume sweep={self.name}") + "   # where its folder is"

    def read_status(self) -> str:
        """Return the sweep's status in the ledger, which stays ``running`` if the driver was killed."""
        return self.ledger.sweep().status or "running"

    def describe_end(self) -> str:
        """Describe in one line how a sweep has ended, and how to resume it if it is unfinished."""
        view, status = SweepView.read(self.ledger), self.read_status()
        how = "its driver died before it ended the sweep" if status == "running" else status
        resume = f"; to continue: {self.resume_command}" if status in ("running", "interrupted") else ""
        return f"{self.name}: {how}, {view.num_ended} of {view.num_trials} trials ended{resume}"

    def find_driver(self) -> str | None:
        """Return where the sweep's driver runs, such as host and pid; None without one. May take seconds."""
        driver = self._lease.find_driver()
        return driver.describe() if driver else None

    @cached_property
    def _lease(self) -> LeaseWatch:
        # Cached: it takes the watch `LEASE_S` to notice that a driver on another machine is dead.
        return LeaseWatch(self.ledger.read_lease)

    def is_outdated(self) -> bool:
        """Return whether the ledger here is an old copy, because another machine has stored a newer one."""
        if self.folder is None or file_of(self.ledger.url) is None or self.find_driver():
            return False
        return not has_newest(find_store(read_identity(self.folder)))

    def require_driver(self) -> str:
        """Return where the driver runs that can stop the sweep.

        Raises:
            StudyError: The sweep has no driver.
        """
        if driver := self.find_driver():
            return driver
        status = self.read_status()
        how = "its driver was killed" if status == "running" else f"it has ended ({status})"
        raise StudyError(
            f": nothing to stop, {how}",
            f"a sweep that runs: {spell_command('list')} shows them",
            f"{self.resume_command} resumes it, or extends it by budget.trials=...",
            key="sweep",
            value=self.name,
        )

    def wait_until(self, condition: Callable[[], bool]) -> bool:
        """Wait until a condition holds; return False if the sweep's driver disappears first."""
        while not condition():
            if self._lease.look() is False:
                return False
            time.sleep(POLL_S)
        return True

    def send(self, kind: str, payload: Mapping[str, Any]) -> int:
        """Write a request for the sweep's driver to the ledger, and return the request's id.

        Args:
            kind: The kind of request, such as ``STOP`` of `rltune.records`.
            payload: The details that the driver needs beyond the kind.

        Raises:
            StudyError: The ledger is a file that only the driver's machine may write, or a copy that no driver reads.
        """
        if self.is_outdated():
            raise self._make_read_only_error(
                "its ledger here is a copy of an older state, which no driver reads",
                "the same command typed where it ran last",
            )
        if file := file_of(self.ledger.url):
            # The boot id also differs if this machine was restarted since, but then the driver is not found alive.
            driver = self._lease.find_driver()
            if driver and driver.boot != read_boot_id() and has_write_ahead_log(file):
                raise self._make_read_only_error(
                    "its ledger is a file that only the machine of its driver may write",
                    f"the same command typed there, {driver.describe()}",
                )
        return self.ledger.add_request(kind, payload, describe_user())

    def _make_read_only_error(self, problem: str, allowed: str) -> StudyError:
        fix = "study.storage=postgresql+psycopg://host/db, when a sweep is started, takes requests from everywhere"
        return StudyError(f": {problem}", allowed, fix, key="sweep", value=self.name)


@contextlib.contextmanager
def open_handle(ref: SweepRef) -> Iterator[SweepHandle]:
    """Open a sweep to watch it or to send it requests.

    Args:
        ref: The sweep. A name and the address of a ledger are enough: this machine need not have the sweep's folder.

    Raises:
        StudyError: There is no such sweep, or its ledger cannot be read.
    """
    try:
        folder = ref.folder()
    except StudyError:
        if ref.ledger_url is None or ref.name == LATEST:
            raise
        require_login(ref.ledger_url, ref.name)
        try:
            ledger = Ledger(ref.ledger_url, ref.name)
        except MissingSweepError as error:
            raise StudyError(f": {error.what}", error.allowed, error.fix, key="sweep", value=ref.name) from None
        with contextlib.closing(ledger):
            settings = load_settings(ledger.sweep().config or "")
            settings.pop("format", None)
            yield SweepHandle(ref.name, ledger.judge_by(read_criteria(settings)), settings, None)
        return
    with contextlib.closing(open_ledger(folder, ref.ledger_url)) as ledger:
        yield SweepHandle(folder.name, ledger, read_settings(folder), folder)
