"""How fast this machine trains one algorithm in one environment, over vector width, env runners and threads.

Each combination is measured in a process of its own (`rltune.measuring`), one after another; then trials side by
side, which is what a sweep does. Imports nothing heavy: torch and RLlib live in those processes. Runs in the driver.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TextIO

from omegaconf import MISSING, DictConfig
from rich.console import Console
from rich.table import Table

from rltune import environment
from rltune.advice import Row, fitting, fragment, one_trial, overrides, whole_sweep
from rltune.config import EnvConfig, check_pair, typed
from rltune.errors import ConfigError, ResourceError, RltuneError
from rltune.measurement import Cell, Order
from rltune.measuring import CellFailedError, measure
from rltune.memory import total_gb
from rltune.resources import available_cpus
from rltune.summary import format_count, format_duration

BUSY = 0.5  # load for each CPU from which others are likely to have slowed the figures


@dataclass
class ProbeConfig:
    """The settings of conf/probe.yaml."""

    engine: str = MISSING
    algo: dict[str, Any] = field(default_factory=dict)
    env: EnvConfig = field(default_factory=EnvConfig)
    widths: list[int] = MISSING
    env_runners: list[int] = MISSING
    threads: list[int] = MISSING
    seconds: float = MISSING
    limit_s: float = MISSING


@dataclass(frozen=True)
class Findings:
    """What a probe measured.

    Attributes:
        config: What was asked.
        cpus: CPUs that trials may use here.
        memory_gb: The machine's memory.
        rows: One for each combination, those of trials side by side last.
        notes: What was left out, and why.
        interrupted: Whether Ctrl-C ended it.
    """

    config: ProbeConfig
    cpus: int
    memory_gb: float
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    interrupted: bool = False


def from_mapping(raw: DictConfig | Mapping[str, Any]) -> ProbeConfig:
    """Turn composed settings into a checked `ProbeConfig`.

    Raises:
        ConfigError: A key is unknown, missing, or its value is out of range.
    """
    config = typed(ProbeConfig, raw)
    check_pair(config.algo, config.env, config.engine)
    for key, low, usual in (("widths", 1, "[1,4,16,64]"), ("env_runners", 0, "[0,1]"), ("threads", 1, "[1,2]")):
        values = getattr(config, key)
        if not values or min(values) < low:
            shown = ",".join(map(str, values))
            raise ConfigError(f"{key}=[{shown}] is no list to try", f"numbers of at least {low}", f"{key}={usual}")
    for key, least, usual in (("seconds", 0.05, "2"), ("limit_s", 1, "300")):
        if not (math.isfinite(getattr(config, key)) and getattr(config, key) >= least):
            raise ConfigError(f"{key}={getattr(config, key)} is out of range", f"at least {least}", f"{key}={usual}")
    return config


def cells(config: ProbeConfig, cpus: int) -> tuple[list[Cell], list[str]]:
    """The combinations to measure, the plainest first, and in words those that the CPUs do not allow.

    Raises:
        ResourceError: None fits.
        ConfigError: Rewards are shaped, and all would sample in other processes.
    """
    spec, fit, notes = environment.spec_of(config.env), [], []
    environment.check_rewards(spec, 0, config.env.vectorize)
    if spec.rewards and min(config.env_runners):
        shown = ",".join(map(str, config.env_runners))
        raise ConfigError(
            f"env_runners=[{shown}] with env.rewards={dict(spec.rewards)}: the true returns would stay there",
            "shaped rewards where the trial's own process samples",
            "env_runners=[0]",
        )
    for env_runners in sorted(set(config.env_runners)):
        if env_runners and spec.rewards:
            notes.append(f"{_count(env_runners, 'env runner')} left out: with shaped rewards the trial samples itself")
            continue
        for threads in sorted(set(config.threads)):
            if env_runners + threads <= cpus:
                fit += [Cell(envs, env_runners, threads) for envs in sorted(set(config.widths))]
            else:
                runners = f"{env_runners} env runner{'s' * (env_runners > 1)} and " if env_runners else ""
                notes.append(
                    f"{runners}{threads} thread{'s' * (threads > 1)} left out: {env_runners + threads} of {cpus} CPUs"
                )
    if not fit:
        least = min(config.env_runners) + min(config.threads)
        raise ResourceError(
            f"env_runners={min(config.env_runners)} with threads={min(config.threads)} needs {least} CPUs",
            f"at most {cpus} here",
            "env_runners=[0] threads=[1]",
        )
    return fit, notes


def run_probe(config: ProbeConfig, say: Callable[[str], None] = lambda _: None) -> Findings:
    """Measure.

    Args:
        config: What; see `from_mapping`.
        say: Told what is measured now, and what came of it.

    Returns:
        What was measured until ``limit_s`` was spent; an interrupt (Ctrl-C) ends it with what there is.

    Raises:
        RltuneError: The algorithm and the environment do not go together, or nothing could be measured.
    """
    environment.check(environment.spec_of(config.env))
    cpus, memory = int(available_cpus()), total_gb()
    grid, notes = cells(config, cpus)
    if (load := os.getloadavg()[0]) > BUSY * cpus:
        notes.append(
            f"the machine is busy (load {load:.1f} on {_count(cpus, 'CPU')}): these figures are what was left of it"
        )
    deadline = time.monotonic() + config.limit_s
    rows: list[Row] = []
    interrupted = False
    try:
        for number, cell in enumerate(grid, start=1):
            if time.monotonic() > deadline:
                notes.append(f"limit_s={config.limit_s:g} is spent: {len(grid) - number + 1} combinations left out")
                break
            say(f"{number} of {len(grid)}: {describe(cell)}")
            rows.append(_measured(config, cell, 1))
            say(f"    {_result(rows[-1])}")
        for cell, trials in _together(rows, cpus, memory):
            say(f"side by side: {trials} x {describe(cell)}" if trials > 1 else f"alone: {describe(cell)}")
            rows.append(_measured(config, cell, trials))
            say(f"    {_result(rows[-1])}")
    except KeyboardInterrupt:
        interrupted = True
        notes.append("interrupted: the rest was not measured")
    if not any(row.steps_per_s for row in rows):
        why = next((row.failed for row in rows if row.failed), "interrupted before the first figure")
        raise RltuneError(f"nothing could be measured: {why}", "at least one combination that trains", "see the reason")
    return Findings(config, cpus, memory, tuple(rows), tuple(notes), interrupted)


def _together(rows: Sequence[Row], cpus: int, memory: float) -> list[tuple[Cell, int]]:
    """What decides between many narrow trials and few wide ones: the cell and how many of it at once.

    The best one-thread trial on every CPU, one trial with a thread for every CPU, and the best trial of all as often as
    it fits; without what has been measured already.
    """
    narrow = one_trial([row for row in rows if row.cell.cpus == 1])
    best = one_trial(rows)
    wanted: list[tuple[Cell, int]] = []
    if narrow is not None:
        wanted.append((narrow.cell, fitting(cpus, memory, narrow)))
        wanted.append((replace(narrow.cell, threads=cpus), 1))
    if best is not None:
        wanted.append((best.cell, fitting(cpus, memory, best)))
    known = {(row.cell, row.trials) for row in rows}
    return [pair for pair in dict.fromkeys(wanted) if pair not in known]


def _measured(config: ProbeConfig, cell: Cell, trials: int) -> Row:
    spec = environment.spec_of(config.env).to_dict()
    order = Order(config.algo, spec, config.env.vectorize, config.engine, cell, config.seconds)
    try:
        results = measure([order] * trials)
    except CellFailedError as error:
        return Row(cell, trials, failed=str(error))
    return Row(
        cell,
        trials,
        steps_per_s=sum(result.steps_per_s for result in results),
        memory_gb=sum(result.memory_gb for result in results),
        settings=results[0].settings,
        stock=results[0].stock,
    )


def describe(cell: Cell) -> str:
    """A combination in words."""
    parts = [_count(cell.envs, "env"), _count(cell.threads, "thread")]
    if cell.env_runners:
        parts.insert(1, f"in {'each of ' if cell.env_runners > 1 else ''}{_count(cell.env_runners, 'env runner')}")
    return ", ".join(parts)


def _count(number: int, name: str) -> str:
    return f"{number} {name}" + "s" * (number != 1)


def _result(row: Row) -> str:
    return f"{format_count(row.steps_per_s)} env steps/s" if row.steps_per_s else str(row.failed)


def show(findings: Findings, stream: TextIO | None = None) -> None:
    """Print the table and what follows from it.

    Args:
        findings: What was measured.
        stream: Where to; None is standard output.
    """
    watched = (stream or sys.stdout).isatty()
    out = Console(file=stream, highlight=False, markup=False, emoji=False, width=None if watched else 160)
    config = findings.config
    out.print(
        f"{config.algo['name']} in {config.env.id}, engine={config.engine}, {_count(findings.cpus, 'CPU')}, "
        f"{findings.memory_gb:.0f} GB; {config.seconds:g} s each after warm-up",
        soft_wrap=True,
    )
    out.print(_table(findings))
    for note in [*findings.notes, *_stock(findings.rows)]:
        out.print(f"note: {note}", soft_wrap=True)
    for line in conclusions(findings):
        out.print(line, soft_wrap=True)


def _table(findings: Findings) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for heading in ("trials", "envs", "env runners", "threads", "CPUs", "env steps/s", "per CPU", "memory", ""):
        table.add_column(heading, justify="right" if heading else "left", overflow="fold")
    one, sweep = one_trial(findings.rows), whole_sweep(findings.rows, findings.cpus)
    for row in findings.rows:
        cell = row.cell
        figures = ["-", "-", "-"]
        if row.steps_per_s:
            per_cpu = row.steps_per_s / row.cpus
            figures = [format_count(row.steps_per_s), format_count(per_cpu), f"{row.memory_gb:.2f} GB"]
        best = " and ".join(["best for one trial"] * (row is one) + ["best for a sweep"] * (row is sweep))
        numbers = (row.trials, cell.envs, cell.env_runners, cell.threads, row.cpus)
        table.add_row(*map(str, numbers), *figures, row.failed or best, style="bold green" if best else "")
    return table


def _stock(rows: Sequence[Row]) -> list[str]:
    """Why the fast engine was not used, once for each reason."""
    return [f"stock RLlib trains this one, because {why}" for why in dict.fromkeys(r.stock for r in rows if r.stock)]


def conclusions(findings: Findings) -> list[str]:
    """The best use of the cores for one trial and for a sweep, each with the overrides to type."""
    lines: list[str] = []
    algo, rows, cpus = findings.config.algo, findings.rows, findings.cpus
    one, sweep = one_trial(rows), whole_sweep(rows, cpus)
    if one is not None:
        lines += [f"one trial   {describe(one.cell)}: {_result(one)}", f"            {' '.join(overrides(one, algo))}"]
    if sweep is not None:
        kind = _count(sweep.trials, "trial") + (" at once" if sweep.trials > 1 else " at a time")
        lines += [
            f"a sweep     {kind}, each {describe(sweep.cell)}: {_result(sweep)} together{_compared(sweep, rows, cpus)}",
            f"            {' '.join(overrides(sweep, algo, cpus // sweep.cell.cpus))}",
        ]
    return lines + _cautions([row for row in (one, sweep) if row is not None], algo)


def _cautions(chosen: Sequence[Row], algo: Mapping[str, Any]) -> list[str]:
    """What speed does not say: more environments leave an on-policy update shorter pieces of each."""
    own = (algo.get("env_runners") or {}).get("num_envs_per_env_runner")
    pieces = {row.cell.envs: fragment(row, algo) for row in chosen if row.cell.envs != own}
    return [
        f"Speed is not learning: with {_count(envs, 'env')} an update sees {_count(steps, 'step')} of each; "
        "compare returns before you keep it."
        for envs, steps in pieces.items()
        if steps is not None
    ]


def _compared(sweep: Row, rows: Sequence[Row], cpus: int) -> str:
    """The other answer to the question of narrow or wide, with its figure."""
    other = whole_sweep([row for row in rows if (row.trials > 1) != (sweep.trials > 1)], cpus)
    if other is None:
        return ""
    name = f"{_count(other.trials, 'trial')} of {_count(other.cell.cpus, 'CPU')}{' each' if other.trials > 1 else ''}"
    return f" ({name}: {_result(other)})"


@contextlib.contextmanager
def progress(stream: TextIO | None = None) -> Iterator[Callable[[str], None]]:
    """Show what is being measured: one changing line on a terminal, a line for each elsewhere.

    Args:
        stream: Where to; None is standard error, so that a pipe gets the table alone.
    """
    out = Console(file=stream or sys.stderr, highlight=False, markup=False, emoji=False, soft_wrap=True)
    if not out.is_terminal:
        yield out.print
        return
    with out.status("measuring") as status:
        began = time.monotonic()
        yield lambda text: status.update(f"measuring {text.strip()}  ({format_duration(time.monotonic() - began)})")
