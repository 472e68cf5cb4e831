"""Open a sweep to send it requests or to watch it: its ledger, its settings and its driver. Runs anywhere."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import cast

from omegaconf import DictConfig, OmegaConf

from rltune.checkpoints.handover import has_newest
from rltune.checkpoints.store import find_store
from rltune.cluster.stale_processes import read_boot_id
from rltune.config.budget import SpentBudget
from rltune.config.criteria import read_criteria
from rltune.config.schema import RunConfig
from rltune.config.settings_file import read_settings
from rltune.config.validation import parse_config
from rltune.errors import StudyError
from rltune.formatting import name_user, spell_command
from rltune.ledger.journal import has_write_ahead_log
from rltune.ledger.lease import LeaseWatch, find_driver
from rltune.ledger.ledger import Ledger, MissingSweepError
from rltune.ledger.storage import open_ledger, require_login
from rltune.ledger.sweep_folder import make_resume_command
from rltune.ledger.sweep_ref import LATEST, SweepRef
from rltune.ledger.tables import file_of
from rltune.views.sweep_view import SweepView


@dataclass(frozen=True)
class AskedSweep:
    """A sweep to which requests are sent, with its ledger open.

    Attributes:
        name: The sweep's name.
        ledger: The sweep's ledger.
        settings: The settings in the sweep's folder. Where this machine has no folder of the sweep, the settings with
            which the sweep was started, as its ledger has them.
        folder: The sweep's folder; None where this machine has none.
    """

    name: str
    ledger: Ledger
    settings: DictConfig
    folder: Path | None

    @cached_property
    def config(self) -> RunConfig:
        """The sweep's settings as a typed config."""
        return parse_config(self.settings)

    def spent(self) -> SpentBudget:
        """Return how much of its budget the search has spent."""
        trials = self.ledger.trials.records()
        return SpentBudget(self.config, len(trials), self.config.replicates * sum(trial.env_steps for trial in trials))

    @property
    def resume_command(self) -> str:
        """The command that resumes the sweep."""
        if self.folder:
            return make_resume_command(self.folder)
        return spell_command(f"resume sweep={self.name}") + "   # where its folder is"

    def status(self) -> str:
        """Return ``running`` or the state in which the sweep ended; a killed driver leaves ``running`` behind."""
        return self.ledger.sweep().status or "running"

    def describe_end(self, status: str) -> str:
        """Describe the end of the sweep with the number of its ended trials.

        Args:
            status: The sweep's state, as `status` returns it.
        """
        view = SweepView.read(self.ledger)
        return f"{self.name}: {status}, {view.num_ended} of {view.num_trials} trials ended"

    def find_driver(self) -> str | None:
        """Return where the sweep's driver runs, or None without one; takes seconds where it ran on another machine."""
        return find_driver(self.ledger)

    @cached_property
    def lease(self) -> LeaseWatch:
        """Observes the lease without waiting, for loops that ask again and again whether the sweep has a driver."""
        return LeaseWatch(self.ledger.read_lease)

    def require_driver(self, what: str) -> str:
        """Return where the sweep's driver runs.

        Args:
            what: The verb for what cannot be done without a driver, such as ``stop``.

        Raises:
            StudyError: The sweep has no driver.
        """
        if driver := self.find_driver():
            return driver
        status = self.status()
        how = "its driver was killed" if status == "running" else f"it has ended ({status})"
        raise StudyError(
            f"sweep={self.name}: nothing to {what}, {how}",
            f"a sweep that runs: {spell_command('list')} shows them",
            f"{self.resume_command} goes on with it, or extends it by budget.trials=...",
        )

    def ask(self, kind: str, payload: dict[str, object]) -> int:
        """Leave a request for the sweep's driver, and return the request's id.

        Args:
            kind: The kind of request, such as ``STOP`` of `rltune.records`.
            payload: What the driver needs to know beyond the kind.

        Raises:
            StudyError: The ledger is a file that only the driver's machine may write, or a copy that no driver reads.
        """
        file = file_of(self.ledger.url)
        if file and self.folder and not self.find_driver() and not has_newest(find_store(self.folder)):
            raise StudyError(
                f"sweep={self.name}: its ledger here is a copy of an older state, which no driver reads",
                "the same command typed where it ran last",
                "study.storage=postgresql+psycopg://host/db, when a sweep is started, takes requests from everywhere",
            )
        driver = self.ledger.read_lease().driver
        if file and driver and driver.boot != read_boot_id() and has_write_ahead_log(file):
            raise StudyError(
                f"sweep={self.name}: its ledger is a file that only the machine of its driver may write",
                f"the same command typed there, {driver.describe()}",
                "study.storage=postgresql+psycopg://host/db, when a sweep is started, takes requests from everywhere",
            )
        return self.ledger.ask(kind, payload, describe_user())


@contextlib.contextmanager
def open_asked(ref: SweepRef) -> Iterator[AskedSweep]:
    """Open a sweep to send it requests or to watch it.

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
            raise StudyError(f"sweep={ref.name}: {error.what}", error.allowed, error.fix) from None
        with contextlib.closing(ledger):
            settings = cast(DictConfig, OmegaConf.create(ledger.sweep().config or ""))
            settings.pop("format", None)
            yield AskedSweep(ref.name, ledger.judge_by(read_criteria(settings)), settings, None)
        return
    with contextlib.closing(open_ledger(folder, ref.ledger_url)) as ledger:
        yield AskedSweep(folder.name, ledger, read_settings(folder), folder)


def describe_user() -> str:
    """Return the user and the host that send a request, such as ``maria@host``."""
    return f"{name_user()}@{socket.gethostname()}"
