"""Sweeps as they lie on disk when they have ended, for tests of what is reported of them."""

from __future__ import annotations

import functools
import json
import math
import sqlite3
import tempfile
import uuid
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from composing import compose
from ledger import add_reports, make_ledger

from rltune.certification.result import Configuration, SeedResult, judge_configurations
from rltune.config.budget import fit_sizes
from rltune.config.schema import RunConfig
from rltune.config.settings_file import format_settings, redact_config, write_settings
from rltune.config.validation import parse_config
from rltune.ledger.storage import open_ledger
from rltune.records import BASELINE, Direction, Report, RunKey

BEST = ((11, 97.0), (12, 101.0), (13, 99.0), (14, 98.0), (15, 100.0))
SEEDS = ((11, 83.0), (12, 79.0), (13, 80.0), (14, 81.0), (15, 82.0))
Trial = tuple[str, float, list[float]]  # its state, learning rate, and reports at 200, 400, ... steps


def make_certification(above: float = 0.0, direction: Direction = Direction.MAX, **baseline: Any) -> dict[str, Any]:
    """A record as the ledger has it: trial 3 and the baseline on five seeds, trial 3 better by 18.

    Args:
        above: How much better the baseline is than that.
        direction: Which scores are better.
        baseline: What differs in the baseline's configuration.
    """
    best = Configuration("trial 3", 3, {"lr": 1e-3}, 120.0, _make_results(3, BEST))
    seeds = tuple((seed, score + above) for seed, score in SEEDS)
    other = Configuration(BASELINE, None, {}, None, _make_results(None, seeds))
    judged = judge_configurations([replace(other, **baseline), best], [seed for seed, _ in SEEDS], 1, direction)
    assert judged is not None
    return json.loads(json.dumps(replace(judged, env_steps=1000).to_dict()))


def _make_results(trial: int | None, runs: tuple[tuple[int, float], ...]) -> tuple[SeedResult, ...]:
    return tuple(SeedResult(seed, mean, (mean,), run=RunKey(trial, index)) for index, (seed, mean) in enumerate(runs))


def write_sweep(
    folder: Path, num_trials: int = 12, certified: dict[str, Any] | None = None, status: str = "complete", *words: str
) -> Path:
    """A finished sweep's folder: trial n learns n times as fast, and the lower half is stopped at 400 steps."""
    folder.mkdir()
    config, ledger = _make_sweep(num_trials, json.dumps(certified), status, words)
    write_settings(folder, redact_config(config))
    (folder / "ledger.db").write_bytes(ledger)
    with closing(sqlite3.connect(folder / "ledger.db")) as copy, copy:
        copy.execute("UPDATE sweeps SET name = ?, key = ?", (folder.name, uuid.uuid4().hex))
    return folder


@functools.cache
def _make_sweep(num_trials: int, certified: str, status: str, words: tuple[str, ...]) -> tuple[RunConfig, bytes]:
    """The settings and the ledger of such a sweep, which are made once for all tests."""
    space = ("~tuned", "~space", "+space.lr=[loguniform,1e-4,1e-2]")
    config = parse_config(compose("run", "budget.trials=24", "budget.env_steps=1000", *space, *words))
    settings = format_settings(redact_config(fit_sizes(config)[0]))
    with tempfile.TemporaryDirectory() as made:
        with closing(make_ledger(Path(made))) as ledger:
            for number in range(num_trials):
                ledger.trials.add({"lr": 10 ** (-4 + 2 * number / max(1, num_trials - 1))}, [number], train_s=1.0)
                whole = number >= num_trials // 2
                steps = range(200, 1001 if whole else 401, 200)
                add_reports(ledger, number, {each: number * each / 100 if each > 200 else math.nan for each in steps})
                ledger.trials.end(number, "COMPLETE" if whole else "PRUNED", "")
            ledger.change_sweep(status=status, certification=json.loads(certified), config=settings)
        return config, (Path(made) / "ledger.db").read_bytes()


def write_cost_sweep(folder: Path) -> Path:
    """A finished, certified sweep whose trials spend energy, which is to be small: trial 3 of four spends 24 of it."""
    words = ("objective.kind=info", "objective.key=energy", "objective.direction=min")
    write_sweep(folder, 0, make_certification(36.0, Direction.MIN), "complete", *words)
    with closing(open_ledger(folder)) as ledger:
        for number, spent in enumerate((72.0, 48.0, 36.0, 24.0)):
            ledger.trials.add({"lr": 1e-3 / (number + 1)}, [number], train_s=1.0)
            add_reports(ledger, number, dict.fromkeys((200, 400, 600, 800, 1000), spent))
            ledger.trials.end(number, "COMPLETE", "")
    return folder


def write_trials(folder: Path, trials: list[Trial]) -> Path:
    """A sweep of such trials, over learning rates from 1e-4 to 1e-2."""
    write_sweep(folder, 0)
    with closing(open_ledger(folder)) as ledger:
        for number, (state, lr, reports) in enumerate(trials):
            ledger.trials.add({"lr": lr}, [number], train_s=1.0)
            add_reports(ledger, number, {200 * place: value for place, value in enumerate(reports, 1)})
            ledger.trials.end(number, state, "")
    return folder


def write_bounded(folder: Path) -> Path:
    """A sweep of three whole trials and a stopped one, that asks for ``train_s < 60``, and the less the better.

    Trial 0 breaks it, trial 1 is the best that keeps it, trial 2 is quicker and worse, and trial 3 would break it.
    """
    write_sweep(folder, 0, None, "complete", 'constraints.train_s="< 60"', "objective.second.key=train_s")
    with closing(open_ledger(folder)) as ledger:
        for number, (train_s, steps) in enumerate(((75.25, 1000), (50.0, 1000), (40.0, 1000), (20.0, 250))):
            ledger.trials.add({"lr": 10 ** -(2 + number / 2)}, [number], train_s=train_s)
            add_reports(ledger, number, {steps: 100.0 - 10 * number})
            ledger.trials.end(number, "COMPLETE" if steps == 1000 else "PRUNED", "stopped" if steps < 1000 else "whole")
    return folder


def write_measured(folder: Path, num_trials: int = 4) -> Path:
    """A finished sweep with two metrics: of trial n, n + 1 percent of the episodes succeed, and the last lacks energy.

    No report has the third one that is declared.
    """
    write_sweep(folder, 0, None, "complete", "metrics={is_success: last, a.energy: sum, never: last}")
    with closing(open_ledger(folder)) as ledger:
        for number in range(num_trials):
            ledger.trials.add({"lr": 1e-3 / (number + 1)}, [number], train_s=1.0)
            for mark in (200, 400, 600, 800, 1000):
                numbers = {"score": float(number), "episode/is_success": (number + 1) * mark / 1e5}
                numbers |= {"episodes_with/is_success": 5, "train_s": 1.0}
                numbers |= {"episode/a/energy": 40.0 - number} if number < num_trials - 1 else {}
                ledger.trials.add_report(Report(number, mark, float(number), numbers, time_s=float(mark)))
            ledger.trials.end(number, "COMPLETE", "")
    return folder


def damage_table(path: Path, table: str) -> None:
    """Overwrite the first page of a table in a ledger's file, which SQLite notices only when it reads the table."""
    with closing(sqlite3.connect(path)) as ledger:
        ledger.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (size,) = ledger.execute("PRAGMA page_size").fetchone()
        (page,) = ledger.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xa5" * size)


def lock_ledger(folder: Path) -> sqlite3.Connection:
    """Lock a ledger as a driver does that is suspended in the middle of a commit, and change its file."""
    file = folder / "ledger.db"
    with closing(sqlite3.connect(file)) as raw:
        raw.execute("PRAGMA journal_mode=DELETE")
    connection = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    connection.execute("BEGIN EXCLUSIVE")
    return connection
