"""From measured combinations to the best use of the cores, for one trial and for a sweep. Pure arithmetic.

Runs in the driver of `rltune.probe`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rltune.measurement import Cell

WORTH = 0.1  # more CPUs, environments or width must bring this much: less is noise, and costs something elsewhere
MEMORY_FRACTION = 0.8  # of the machine's memory for trials; the rest is Ray's, the driver's and the page cache


@dataclass(frozen=True)
class Row:
    """What one combination achieved.

    Attributes:
        cell: The combination, that of each trial.
        trials: Trials like this that were measured side by side.
        steps_per_s: Environment steps per second of all of them together; None where it failed.
        memory_gb: Peak of all of them together.
        settings: Values of ``algo.training`` that were set besides, so that all cells do the same work.
        stock: Why stock RLlib trained it; None when the fast engine did.
        failed: Why there is no figure.
    """

    cell: Cell
    trials: int = 1
    steps_per_s: float | None = None
    memory_gb: float = 0.0
    settings: Mapping[str, Any] = field(default_factory=dict)
    stock: str | None = None
    failed: str | None = None

    @property
    def cpus(self) -> int:
        """CPUs of all of them together."""
        return self.trials * self.cell.cpus


def one_trial(rows: Sequence[Row]) -> Row | None:
    """The best combination where one trial has the machine to itself; None without a measurement.

    The fastest, unless another one that needs fewer CPUs, or else fewer environments, comes within `WORTH` of it.
    """
    alone = [row for row in rows if row.trials == 1 and row.steps_per_s]
    return _frugal(alone, lambda row: (row.cpus, row.cell.envs))


def whole_sweep(rows: Sequence[Row], cpus: int) -> Row | None:
    """The best use of all the cores when there are at least as many trials as CPUs; None without a measurement.

    Most environment steps per second over all trials, as measured and not as multiplied: trials side by side share
    caches, memory and clock. Within `WORTH` of the best, more and narrower trials win: early stopping then has more of
    them to compare, and none waits for its own threads. Only what leaves no room for another trial is compared.

    Args:
        rows: What was measured.
        cpus: The machine's.
    """
    full = [row for row in rows if row.steps_per_s and (row.trials > 1 or 2 * row.cpus > cpus)]
    return _frugal(full, lambda row: (-row.trials, row.cpus, row.cell.envs))


def _frugal(rows: Sequence[Row], cost: Any) -> Row | None:
    best = max((row.steps_per_s or 0.0 for row in rows), default=0.0)
    close = [row for row in rows if (row.steps_per_s or 0.0) >= best * (1 - WORTH)]
    return min(close, key=cost, default=None)


def fitting(cpus: int, memory_gb: float, each: Row) -> int:
    """Trials like ``each`` that run at once: as many as the CPUs allow and, at its peak, the memory; at least one."""
    by_memory = int(memory_gb * MEMORY_FRACTION / each.memory_gb) if each.memory_gb else cpus
    return max(1, min(cpus // each.cell.cpus, by_memory))


def overrides(row: Row, algo: Mapping[str, Any], fits: int = 0) -> list[str]:
    """What to type for trials like ``row``.

    Args:
        row: The combination.
        algo: The algo file: what it says already about env runners is left out.
        fits: Trials that the CPUs have room for; a row with fewer (the memory sets the limit) names its number.
    """
    section = algo.get("env_runners") or {}
    typed = [_override(algo, "env_runners", "num_envs_per_env_runner", row.cell.envs)]
    if row.cell.env_runners != section.get("num_env_runners", 0):
        typed.append(_override(algo, "env_runners", "num_env_runners", row.cell.env_runners))
    typed += [_override(algo, "training", name, value) for name, value in row.settings.items()]
    typed.append(f"resources.cpus_per_trial={row.cell.threads}")
    if row.trials < fits:
        typed.append(f"resources.max_concurrent={row.trials}")
    return typed


def _override(algo: Mapping[str, Any], section: str, name: str, value: Any) -> str:
    """``key=value``, with the plus that Hydra wants for a key that the file does not have."""
    plus = "" if name in (algo.get(section) or {}) else "+"
    return f"{plus}algo.{section}.{name}={value}"


def fragment(row: Row, algo: Mapping[str, Any]) -> int | None:
    """Steps that each environment contributes to one update; None for algorithms that replay."""
    training = algo.get("training") or {}
    batch = training.get("train_batch_size_per_learner")
    if not isinstance(batch, int) or "replay_buffer_config" in training:
        return None
    return max(1, batch // (row.cell.envs * max(1, row.cell.env_runners)))
