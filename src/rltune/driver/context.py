"""Describe what one driver works on. Runs in the driver."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from rltune.checkpoints.clients import make_address
from rltune.checkpoints.store import Store, open_store
from rltune.driver.plan import Plan


@dataclass(frozen=True)
class SweepContext:
    """One driver's work on a sweep, as it is known before anything is opened.

    Attributes:
        plan: What is run.
        name: The sweep.
        folder: Its folder, absolute.
        resumed: Whether the ledger exists already.
        began: When the command started, on the monotonic clock.
        stream: Where the console writes; None is standard output.
        trainable: The Tune trainable; None is `rltune.trial.trainable.Trial`. Tests give a toy.
        typed: The command that does the same, for the report; None is what was typed in this process.
        call_aside: Calls a function in a process that has RLlib imported, as `ForkServer.call` does; None where there
            is none.
        retry: Numbers of what failed and is tried again, by TRIALS and CERTIFY.
    """

    plan: Plan
    name: str
    folder: Path
    resumed: bool
    began: float
    stream: TextIO | None = None
    trainable: type | None = None
    typed: str | None = None
    call_aside: Callable[..., Any] | None = None
    retry: Mapping[str, Sequence[int]] | None = None

    def open_store(self) -> Store:
        """Open the sweep's store; its name there stays when its folder is renamed."""
        config = self.plan.config
        address = make_address(config.storage, config.name or self.name) if config.storage else None
        return open_store(self.folder, address)

    def is_folder_shared(self) -> bool:
        """Return whether nodes of a cluster that the sweep has joined use its folder itself."""
        return self.plan.config.cluster.address is not None and self.open_store().is_shared_folder
