"""Find a sweep that something is asked of: its ledger, its settings, and where its driver is. Runs anywhere."""

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
from rltune.study.journal import has_write_ahead_log
from rltune.study.lease import LeaseWatch, find_driver
from rltune.study.ledger import Ledger, MissingSweepError
from rltune.study.storage import open_ledger, require_login
from rltune.study.sweep_folder import make_resume_command
from rltune.study.sweep_ref import LATEST, SweepRef
from rltune.study.tables import file_of


@dataclass(frozen=True)
class AskedSweep:
    """A sweep that something is asked of.

    Attributes:
        name: Its name.
        ledger: Its ledger.
        settings: As its folder has them; where this machine has none, as it was begun with, which its ledger keeps.
        folder: Its folder; None where this machine has none.
    """

    name: str
    ledger: Ledger
    settings: DictConfig
    folder: Path | None

    @cached_property
    def config(self) -> RunConfig:
        """Its settings, typed."""
        return parse_config(self.settings)

    def spent(self) -> SpentBudget:
        """Return what its search has had of its budget."""
        records = self.ledger.trials.records()
        return SpentBudget(self.config, len(records), self.config.replicates * sum(one.env_steps for one in records))

    @property
    def resume_command(self) -> str:
        """What to type to go on with it."""
        if self.folder:
            return make_resume_command(self.folder)
        return spell_command(f"resume sweep={self.name}") + "   # where its folder is"

    def status(self) -> str:
        """Return ``running``, or how it ended; running too where its driver was killed."""
        return self.ledger.sweep().status or "running"

    def describe_end(self, status: str) -> str:
        """Say how it ended, and how many of its trials have.

        Args:
            status: As `status` returns it.
        """
        ended = sum(state != "RUNNING" for state in self.ledger.trials.read_states().values())
        return f"{self.name}: {status}, {ended} of {self.config.budget.trials} trials ended"

    def find_driver(self) -> str | None:
        """Find where its driver is; None where none lives, which takes seconds to see of another machine's."""
        return find_driver(self.ledger)

    @cached_property
    def lease(self) -> LeaseWatch:
        """What shows without waiting whether it has a driver, to whoever looks again and again."""
        return LeaseWatch(self.ledger.read_lease)

    def require_driver(self, what: str) -> str:
        """Return where its driver is.

        Args:
            what: What cannot be done without one, for a person: ``stop``.

        Raises:
            StudyError: There is none.
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
        """Leave a request for its driver; return the request's id.

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
    """Open a sweep that something is asked of.

    Args:
        ref: The sweep. By its name and the address of its ledger it is found without a folder on this machine.

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
    """Describe who asks: ``maria@host``."""
    return f"{name_user()}@{socket.gethostname()}"
