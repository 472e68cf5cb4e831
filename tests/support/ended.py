"""Sweeps as they lie on disk when they have ended, for tests of what is reported of them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import ledger
from composing import compose
from optuna.distributions import FloatDistribution

from rltune.config.settings_file import format_settings
from rltune.config.validation import parse_config
from rltune.study.study import Study

CONTROL = {"name": "control", "trial": None, "params": {}, "search_score": None, "improvement": None, "optimism": None}
NUMBERS = {"mean": 80.0, "iqm": 81.0, "low": 70.0, "high": 90.0}
BEST = ((11, 97.0), (12, 101.0), (13, 99.0))
SEEDS = [{"seed": seed, "mean": mean, "returns": [mean]} for seed, mean in ((11, 79.0), (12, 83.0), (13, 81.0))]
Trial = tuple[str, float, list[float]]  # its state, learning rate, and reports at 200, 400, ... steps


def make_certification(ties: tuple[str, ...] = ()) -> dict[str, Any]:
    """A record as the ledger has it: trial 3 and the control on three seeds."""
    best = {
        **{"name": "trial 3", "trial": 3, "params": {"lr": 1e-3}, "search_score": 120.0},
        **{"mean": 98.0, "iqm": 99.0, "low": 95.0, "high": 103.0, "improvement": 0.97, "optimism": 21.0},
        "per_seed": [{"seed": seed, "mean": mean, "returns": [mean]} for seed, mean in BEST],
    }
    rows = [best, {**CONTROL, **NUMBERS, "per_seed": SEEDS}]
    return {"seeds": [11, 12, 13], "episodes": 1, "configurations": rows, "winner": "trial 3", "ties": list(ties)}


def write_sweep(
    folder: Path, num_trials: int = 12, certified: dict[str, Any] | None = None, status: str = "complete"
) -> Path:
    """A finished sweep's folder: trial n learns n times as fast, and the lower half is stopped at 400 steps."""
    folder.mkdir()
    config = parse_config(
        compose("run", "budget.env_steps=1000", "~tuned", "~space", "+space.lr=[loguniform,1e-4,1e-2]")
    )
    (folder / "config.yaml").write_text(format_settings(config))
    study = Study(ledger.empty(folder), folder.name, create=True)
    searched = FloatDistribution(1e-4, 1e-2, log=True)
    for number in range(num_trials):
        lr = 10 ** (-4 + 2 * number / max(1, num_trials - 1))
        study.ask(lambda suggest: {"lr": suggest("lr", searched)}, {"lr": lr})
        study.note(number, params={"lr": lr}, seeds=[number], train_s=1.0)
        whole = number >= num_trials // 2
        for env_steps in range(200, 1001 if whole else 401, 200):
            study.report(number, env_steps, number * env_steps / 100 if env_steps > 200 else math.nan)
        study.finish(number, "COMPLETE" if whole else "PRUNED", number * 10.0, "")
    study.set_attribute("status", status)
    study.set_attribute("certification", certified)
    study.close()
    return folder


def write_trials(folder: Path, trials: list[Trial]) -> Path:
    """A sweep of such trials, over learning rates from 1e-4 to 1e-2."""
    write_sweep(folder, 0)
    study = Study(f"sqlite:///{folder / 'study.db'}", folder.name)
    for number, (state, lr, reports) in enumerate(trials):
        study.ask(lambda suggest: {"lr": suggest("lr", FloatDistribution(1e-6, 1.0, log=True))}, {"lr": lr})
        study.note(number, params={"lr": lr}, seeds=[number], train_s=1.0)
        for place, value in enumerate(reports, 1):
            study.report(number, 200 * place, value)
        study.finish(number, state, max(reports, default=0.0), "")
    study.close()
    return folder
