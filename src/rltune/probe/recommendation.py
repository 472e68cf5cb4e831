"""Choose the best of the measured combinations, for one trial and for a sweep. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rltune.formatting import format_count

WORTH = 0.1  # more CPUs, environments or width must bring this much: less is noise, and costs something elsewhere
MEMORY_FRACTION = 0.8  # of the machine's memory for trials; the rest is Ray's, the driver's and the page cache


@dataclass(frozen=True)
class Combination:
    """What one trial is measured with.

    Attributes:
        envs: Environments that step together in each process that samples.
        env_runners: Remote sampling processes; 0 samples in the trial's own.
        threads: Torch threads of the trial's process.
    """

    envs: int
    env_runners: int
    threads: int

    @property
    def cpus(self) -> int:
        """CPUs of a trial like this, as `rltune.cluster.resources.fit_share` counts them."""
        return self.threads + self.env_runners

    def __str__(self) -> str:
        runners = f"in {'each of ' * (self.env_runners > 1)}{count(self.env_runners, 'env runner')}, "
        return f"{count(self.envs, 'env')}, {runners * bool(self.env_runners)}{count(self.threads, 'thread')}"


@dataclass(frozen=True)
class MeasurementResult:
    """What trials of one combination achieved, side by side where there are several.

    Attributes:
        combination: That of each trial.
        trials: How many were measured at the same time.
        steps_per_s: Environment steps per second of all together, sampling and learning; 0 where it failed.
        memory_gb: Peak of all together.
        settings: Values of ``algo.training`` that were set besides, so that all combinations do the same work.
        fallback: Why stock RLlib trained it where the fast engine was requested; None where nothing was in the way.
        replays: Whether it learns from a replay memory, so that updates see the same with any number of environments.
        failed: Why there is no figure; None with one.
    """

    combination: Combination
    trials: int = 1
    steps_per_s: float = 0.0
    memory_gb: float = 0.0
    settings: Mapping[str, Any] = field(default_factory=dict)
    fallback: str | None = None
    replays: bool = False
    failed: str | None = None

    @property
    def cpus(self) -> int:
        """CPUs of all of them together."""
        return self.trials * self.combination.cpus

    def __str__(self) -> str:
        return self.failed or f"{format_count(self.steps_per_s)} env steps/s"


def count(number: int, name: str) -> str:
    """Write a number of things: ``1 env``, ``2 envs``."""
    return f"{number} {name}{'s' * (number != 1)}"


def choose_for_one_trial(results: Iterable[MeasurementResult]) -> MeasurementResult | None:
    """Choose for a trial that has the machine to itself; None without a figure.

    The fastest, unless another one that needs fewer CPUs, or else fewer environments, comes within `WORTH` of it.
    """
    alone = [result for result in results if result.trials == 1]
    return _choose_cheapest(alone, lambda result: (result.cpus, result.combination.envs))


def choose_for_sweep(results: Iterable[MeasurementResult], cpus: int) -> MeasurementResult | None:
    """Choose for a sweep of at least as many trials as ``cpus``; None without a figure.

    Most steps per second over all trials, as measured and not as multiplied: trials side by side share caches, memory
    and clock. Within `WORTH` of the best, more and narrower trials win: early stopping then has more of them to
    compare, and none waits for its own threads. What leaves room for another trial is not compared.
    """
    full = [result for result in results if result.trials > 1 or 2 * result.cpus > cpus]
    return _choose_cheapest(full, lambda result: (-result.trials, result.cpus, result.combination.envs))


def _choose_cheapest(
    results: Sequence[MeasurementResult], cost: Callable[[MeasurementResult], tuple[int, ...]]
) -> MeasurementResult | None:
    best = max((result.steps_per_s for result in results), default=0.0)
    return min((r for r in results if r.steps_per_s and r.steps_per_s >= best * (1 - WORTH)), key=cost, default=None)


def count_fitting(cpus: int, memory_gb: float, trial: MeasurementResult) -> int:
    """Count the trials like this one that run at once: as the CPUs and, at its peak, the memory allow; at least one."""
    by_memory = int(memory_gb * MEMORY_FRACTION / trial.memory_gb) if trial.memory_gb else cpus
    return max(1, min(cpus // trial.combination.cpus, by_memory))


def write_overrides(result: MeasurementResult, algo: Mapping[str, Any], fitting: int = 0) -> list[str]:
    """Write what to type for trials like these.

    Args:
        result: The combination that was chosen.
        algo: The algo file: what it says already about env runners is left out.
        fitting: Trials that the CPUs have room for; a result with fewer (the memory sets the limit) names its number.
    """
    chosen, own = result.combination, algo.get("env_runners") or {}
    typed = [_override(algo, "env_runners", "num_envs_per_env_runner", chosen.envs)]
    if chosen.env_runners != own.get("num_env_runners", 0):
        typed.append(_override(algo, "env_runners", "num_env_runners", chosen.env_runners))
    typed += [_override(algo, "training", name, value) for name, value in result.settings.items()]
    typed.append(f"resources.cpus_per_trial={chosen.threads}")
    if result.trials < fitting:
        typed.append(f"resources.max_concurrent={result.trials}")
    return typed


def _override(algo: Mapping[str, Any], section: str, name: str, value: Any) -> str:
    """``key=value``, with the plus that Hydra wants for a key that the file does not have."""
    plus = "" if name in (algo.get(section) or {}) else "+"
    return f"{plus}algo.{section}.{name}={value}"
