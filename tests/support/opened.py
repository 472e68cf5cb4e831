"""Open sweeps as a driver has them, without a Ray and in milliseconds: the one place that knows how a sweep is made."""

from __future__ import annotations

import contextlib
import functools
import io
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import pytest
from composing import compose

from rltune.cluster.resources import Machine, Share
from rltune.cluster.slots import Slots
from rltune.config.validation import parse_config
from rltune.driver.folder import SweepContext, hold_sweep
from rltune.driver.open_sweep import OpenSweep, open_sweep
from rltune.driver.plan import Plan, make_plan
from rltune.driver.provenance import record_start
from rltune.ledger.storage import set_journal, start_ledger
from rltune.ledger.sweep_folder import LEDGER
from rltune.tracking.feed import Feeds
from rltune.views.console import Console

SHARE = Share(cpus=1.0, gpus=0.0, env_runners=0)


class NotedConsole(Console):
    """A console that keeps its notes.

    Attributes:
        notes: The lines for the user, in their order.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__(stream or io.StringIO())
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        """Keep and print a line."""
        self.notes.append(text)
        super().note(text)


@dataclass
class TuneTrial:
    """What Tune's callbacks read and clear of Tune's trial."""

    @dataclass
    class Metadata:
        """Tune's numbers of a trial."""

        metric_analysis: dict[str, Any] = field(default_factory=dict)
        metric_n_steps: dict[str, Any] = field(default_factory=dict)
        last_result: dict[str, Any] = field(default_factory=dict)

    config: dict[str, Any]
    status: str = "PENDING"
    last_result: dict[str, Any] = field(default_factory=dict)
    run_metadata: Metadata = field(default_factory=Metadata)
    error_file: str | None = None


@functools.cache
def plan_of(*words: str) -> Plan:
    """Make the plan of a small sweep without trackers from overrides, once for all tests that ask for the same."""
    return make_plan(parse_config(compose("run", "tracking=off", "budget.trials=2", *words)))


def make_sweep(
    folder: Path, *words: str, plan: Plan | None = None, share: Share = SHARE, num_slots: int = 2
) -> OpenSweep:
    """Open a sweep for the modules of a driver: real but for its trackers, without a lease and without threads.

    If the folder has a ledger, then the sweep is resumed. Close the ledger of the sweep at the end.

    Args:
        folder: The sweep's folder.
        words: The overrides of a small PPO on CartPole.
        plan: The sweep's plan, instead of one of the overrides.
        share: A trial's share of the machine.
        num_slots: How many trials run at once.
    """
    resumed = (folder / LEDGER).exists()
    folder.mkdir(exist_ok=True)
    context = SweepContext(plan or plan_of(*words), folder, resumed, time.monotonic())
    ledger = start_ledger(None, folder, new=not resumed)
    set_journal(ledger, shared=False)
    with _replace_parts():
        return OpenSweep(context, ledger, share, Slots(share.bundles, 64, [Machine(num_slots, 0)]))


@contextlib.contextmanager
def drive_sweep(
    folder: Path, plan: Plan, resumed: bool = False, stream: TextIO | None = None, trackers: bool = False
) -> Iterator[OpenSweep]:
    """Open a sweep and close it as its driver does, with a lease and with the driver's chores.

    Args:
        folder: The sweep's folder.
        plan: The sweep's plan.
        resumed: Whether the sweep exists.
        stream: Where its console writes.
        trackers: Whether its trackers are opened, which takes a tenth of a second.
    """
    folder.mkdir(exist_ok=True)
    context = SweepContext(plan, folder, resumed, time.monotonic(), stream)
    slots = Slots(SHARE.bundles, 2, [Machine(2, 0)])
    with hold_sweep(context) as ledger, contextlib.ExitStack() as stack:
        with _replace_parts(trackers):
            sweep = stack.enter_context(open_sweep(context, ledger, SHARE, slots))
        record_start(sweep)
        yield sweep


@contextlib.contextmanager
def _replace_parts(trackers: bool = False) -> Iterator[None]:
    """Let a sweep that is opened meanwhile keep its notes, and have no trackers unless they are asked for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rltune.driver.open_sweep.Console", NotedConsole)
        if not trackers:
            patch.setattr("rltune.driver.open_sweep.open_trackers", lambda *_: Feeds())
        yield
