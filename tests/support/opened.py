"""Open sweeps as a driver has them, without a Ray and in milliseconds: the one place that knows how a sweep is made."""

from __future__ import annotations

import contextlib
import functools
import io
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

import pytest
from composing import compose

from rltune.cluster.resources import Machine, Share
from rltune.cluster.slots import Slots
from rltune.config.validation import parse_config
from rltune.driver import open_sweep as module
from rltune.driver.folder import hold_sweep
from rltune.driver.plan import Invocation, Plan, make_plan
from rltune.driver.provenance import record_start
from rltune.driver.sweep import Sweep
from rltune.driver.tune.assignments import Assignments
from rltune.driver.tune.proposals import SearchProposals
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

    def __init__(self, stream: TextIO | None = None, **settings: Any) -> None:
        super().__init__(stream or io.StringIO(), **settings)
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


def plan_of(folder: Path, *words: str) -> Plan:
    """Make the plan of a small sweep without trackers, of two trials; if its folder has a ledger, it is resumed.

    Args:
        folder: The sweep's folder.
        words: Overrides of PPO on CartPole.
    """
    plan, is_begun = _make_plan(*words), (folder / LEDGER).exists()
    return replace(plan, folder=folder, resumed=is_begun, given_settings={**plan.given_settings, "name": folder.name})


@functools.cache
def _make_plan(*words: str) -> Plan:
    """Make a plan once for all tests that ask for the same."""
    return make_plan(parse_config(compose("run", "tracking=off", "budget.trials=2", *words)))


def make_sweep(folder: Path, *words: str, share: Share = SHARE, num_slots: int = 2) -> Sweep:
    """Open a sweep for the modules of a driver: real but for its trackers, without a lease and without threads.

    Close the sweep's ledger at the end.

    Args:
        folder: The sweep's folder, as for `plan_of`.
        words: Overrides, as for `plan_of`.
        share: A trial's share of the machine.
        num_slots: How many trials run at once.
    """
    plan = plan_of(folder, *words)
    folder.mkdir(exist_ok=True)
    ledger = start_ledger(None, folder, new=not plan.resumed)
    set_journal(ledger, shared=False)
    with _replace_parts():
        return module.make_sweep(plan, Invocation(time.monotonic()), ledger, share, _make_slots(share, num_slots))


def make_proposals(sweep: Sweep) -> SearchProposals:
    """Make what proposes a sweep's trials."""
    search = sweep.search
    return SearchProposals(
        sweep.plan, sweep.ledger.trials, search.study, search.inbox, sweep.stopper, sweep.console.note
    )


def make_assignments(sweep: Sweep, kind: type[Assignments] = Assignments) -> Assignments:
    """Make what makes the assignments of a sweep's workers."""
    return kind(sweep.plan, sweep.search.share, sweep.store, sweep.console.note)


@contextlib.contextmanager
def drive_sweep(folder: Path, *words: str, stream: TextIO | None = None) -> Iterator[Sweep]:
    """Open a sweep and close it as its driver does, with a lease and with the driver's chores.

    Its trackers are opened only if an override names some.

    Args:
        folder: The sweep's folder, as for `plan_of`.
        words: Overrides, as for `plan_of`.
        stream: Where its console writes.
    """
    plan = plan_of(folder, *words)
    folder.mkdir(exist_ok=True)
    with hold_sweep(plan) as ledger, contextlib.ExitStack() as stack:
        invocation = Invocation(time.monotonic(), stream)
        with _replace_parts(has_trackers=any(word.startswith(("tracking", "notify")) for word in words)):
            sweep = stack.enter_context(module.open_sweep(plan, invocation, ledger, SHARE, _make_slots(SHARE, 2)))
        stack.enter_context(module.keep_house(sweep, lambda: None))
        record_start(sweep.ledger, sweep.plan.folder, sweep.plan.settings, sweep.plan.build.facts)
        yield sweep


def _make_slots(share: Share, num_slots: int) -> Slots:
    return Slots(share.bundles, 64, [Machine(num_slots * share.cpus, num_slots * share.gpus)])


@contextlib.contextmanager
def _replace_parts(has_trackers: bool = False) -> Iterator[None]:
    """Let a sweep that is opened meanwhile keep its notes, and have no trackers unless it is to."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rltune.driver.open_sweep.Console", NotedConsole)
        if not has_trackers:
            patch.setattr("rltune.driver.open_sweep.open_trackers", lambda *_: Feeds())
        yield
