"""Describe what one driver works on. Runs in the driver."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from rltune.checkpoints.clients import make_address
from rltune.checkpoints.store import Store, open_store
from rltune.config.schema import RunConfig
from rltune.driver.plan import Plan


@dataclass(frozen=True)
class SweepContext:
    """One driver's work on a sweep, as it is known before anything is opened.

    Attributes:
        plan: The sweep that is run.
        folder: The sweep's folder, as an absolute path.
        resumed: Whether the ledger exists already.
        began: The start of the command, on the monotonic clock.
        stream: The stream to which the console writes; None is standard output.
        trainable: The Tune trainable; None is `rltune.trial.trainable.Trial`. Tests give a toy.
        typed: The command that does the same, for the report; None is the command typed in this process.
        call_aside: Calls a function in a process that has RLlib imported, as `ForkServer.call` does; None without one.
        retry: The numbers of the failed trials and runs that are retried, by TRIALS and CERTIFY.
    """

    plan: Plan
    folder: Path
    resumed: bool
    began: float
    stream: TextIO | None = None
    trainable: type | None = None
    typed: str | None = None
    call_aside: Callable[..., Any] | None = None
    retry: Mapping[str, Sequence[int]] | None = None

    @property
    def name(self) -> str:
        """The sweep's name."""
        return self.folder.name

    @property
    def config(self) -> RunConfig:
        """The sweep's settings."""
        return self.plan.config

    def open_store(self) -> Store:
        """Open the sweep's store; its name there stays when its folder is renamed."""
        address = make_address(self.config.storage, self.config.name or self.name) if self.config.storage else None
        return open_store(self.folder, address)

    def is_folder_shared(self) -> bool:
        """Return whether nodes of a cluster that the sweep has joined use its folder itself."""
        return self.config.cluster.address is not None and self.open_store().is_shared_folder
