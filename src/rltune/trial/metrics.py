"""Define all metrics that are logged of a trial; the worker computes them and the driver reads them.

A number passes three functions, all in this module: `read_result` takes it out of RLlib's result as a field of
`Progress`, one per seed; `merge_seeds` makes one number of the seeds'; `select_logged` picks out of a trial's report
what goes to MLflow.

To log another number:

- A learner's statistic: add RLlib's name for it to the algorithm's row in `rltune.config.capabilities`. It is logged
  as ``learner/<name>``. Nothing else changes.
- A number about the episodes: add a field to `Progress`, and its value to
  ``rltune.trial.recent_episodes.RecentEpisodes.summarize``.
- A number of RLlib's ``env_runners`` results: add a field to `Progress` with its key there. Where the fast engine is to
  give it too, add the same key to ``rltune.engine.algorithm.FastAlgorithm``.
- A number that only the trial knows: add its name to `TRIAL_NUMBERS`, and set it in ``rltune.trial.trainable.Trial``.

Imports nothing heavy, because the driver and toy trials read it.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from rltune.config.capabilities import TABLE, UNKNOWN, Capabilities
from rltune.config.criteria import Criteria
from rltune.errors import ABSENT, ConfigError, NonFiniteError, choices, nearest
from rltune.records import Report

# MLflow shows metrics with the prefix "system/" on its tab for system metrics.
CPU, MEMORY = "system/process_cpu_percentage", "system/process_memory_megabytes"
GPU_MEMORY = "system/process_gpu_memory_megabytes"  # torch's peak of allocated GPU memory since the trial began.
# The next two metrics include other processes on the same GPU.
GPU_USED, GPU_UTILISATION = "system/gpu_memory_usage_megabytes", "system/gpu_utilization_percentage"
TRIAL_NUMBERS = (
    *("return_std_over_seeds", "env_steps_per_s", "train_s", CPU, MEMORY),
    *(GPU_MEMORY, GPU_USED, GPU_UTILISATION),
)
"""Logged numbers that no seed has: the trial computes them."""

RESTARTS = "env_restarts"
"""The number of repaired copies of the environment; trials report it if ``env.restarts`` allows repairs."""

LEARNER = "learner/"
"""Prefix of the learner's statistics in a report and in MLflow."""


class _Number(NamedTuple):
    """How a field of `Progress` is read from RLlib's results, and aggregated over the seeds of a trial.

    Attributes:
        over_seeds: What makes one number of several seeds'.
        key: Its name among RLlib's ``env_runners`` results, where it is 0 at first; None for a number about the last
            episodes, which is NaN before the first has ended.
    """

    over_seeds: Callable[[Iterable[Any]], float]
    key: str | None = None


def _number(*declared: Any) -> Any:
    """Declare a field of `Progress`; the arguments are those of `_Number`."""
    number = _Number(*declared)
    return field(default=0 if number.key else math.nan, metadata={"number": number})


@dataclass(frozen=True)
class Progress:
    """The progress and the metrics of one seed of a trial.

    Attributes:
        env_steps: Environment steps since the trial began.
        episodes: Finished episodes since then.
        return_mean: Over the last episodes (`rltune.trial.recent_episodes.RecentEpisodes`); NaN before the first.
        return_min: Least of them.
        return_max: Greatest of them.
        episode_length_mean: In environment steps.
        learner: Statistics of the last update, by name.
        score: Mean score of the last episodes (`rltune.envs.objective`), the return where it is that.
        episode_length_max: Longest of the last episodes: at an environment's time limit the curve is flat.
        env_restarts: How many times a copy of the environment was made again after a failure.
        fault: The first of these failures in one line.
        far_value: A note on the first far value in observations that are normalised.
    """

    env_steps: int = _number(min, "num_env_steps_sampled_lifetime")
    episodes: int = _number(sum, "num_episodes_lifetime")
    return_mean: float = _number(statistics.fmean)
    return_min: float = _number(min)
    return_max: float = _number(max)
    episode_length_mean: float = _number(statistics.fmean)
    learner: Mapping[str, float] = field(default_factory=dict)
    episode_length_max: float = _number(max)
    score: float = _number(statistics.fmean)
    env_restarts: int = _number(sum, RESTARTS)
    fault: str = ""
    far_value: str = ""

    def __post_init__(self) -> None:
        """Use the mean return as score if no other score is given."""
        if math.isnan(self.score):
            object.__setattr__(self, "score", self.return_mean)

    def require_finite_returns(self) -> None:
        """Refuse mean returns that are NaN or infinite although an episode has ended.

        Raises:
            NonFiniteError: Their mean is NaN or infinite.
        """
        if self.episodes and not math.isfinite(self.return_mean):
            raise NonFiniteError(f"non-finite numbers: return_mean={self.return_mean}")


_NUMBERS: dict[str, _Number] = {
    entry.name: entry.metadata["number"] for entry in fields(Progress) if "number" in entry.metadata
}
METRICS = (*TRIAL_NUMBERS, *_NUMBERS)
"""Names of all logged numbers but the learner's. They are drawn over nominal steps; ``env_steps`` were sampled."""


def read_result(result: Mapping[str, Any], names: Iterable[str] = UNKNOWN.statistics) -> Progress:
    """Read the metrics of RLlib's result; those about recent episodes stay NaN, because the runner adds them.

    Args:
        result: What ``Algorithm.train`` gave.
        names: Which of the learner's numbers to take; those that are not there are left out.
    """
    sampled = result.get("env_runners", {})
    numbers = {name: int(sampled.get(number.key, 0)) for name, number in _NUMBERS.items() if number.key}
    modules = [values for name, values in result.get("learners", {}).items() if name != "__all_modules__"]
    learner = {}
    for name in names:
        values = [float(module[name]) for module in modules if module.get(name) is not None]
        if values:  # In multi-agent training, a statistic is the mean over all policies.
            learner[name] = statistics.fmean(values)
    return Progress(**numbers, learner=learner)  # type: ignore[arg-type]


def merge_seeds(seeds: Sequence[Progress], train_s: float) -> dict[str, Any]:
    """Aggregate the metrics of a trial's seeds to those of one report.

    Args:
        seeds: One per replicate; none counts as one that has not begun.
        train_s: Seconds that the trial has trained, all seeds together.
    """
    seeds = seeds or [Progress()]
    report: dict[str, Any] = {
        name: number.over_seeds(getattr(seed, name) for seed in seeds) for name, number in _NUMBERS.items()
    }
    report["train_s"] = train_s
    if len(seeds) > 1:
        means = [seed.return_mean for seed in seeds]
        report["return_std_over_seeds"] = statistics.pstdev(means) if all(map(math.isfinite, means)) else math.nan
    for name in seeds[0].learner:
        report[LEARNER + name] = statistics.fmean(seed.learner.get(name, math.nan) for seed in seeds)
    return report


def check_criteria(criteria: Criteria, algo: Capabilities | None = None, replicates: int = 2) -> None:
    """Refuse constraints or a second objective on a metric that the sweep's trials do not report.

    Args:
        criteria: The sweep's.
        algo: What its algorithm can do; None where that is not known.
        replicates: Seeds a trial.

    Raises:
        ConfigError: Names the key, and the number that was meant.
    """
    rows = TABLE.values() if algo is None else [algo]
    known = {*METRICS, *(LEARNER + name for row in rows for name in row.statistics)}
    known -= {"return_std_over_seeds"} if replicates == 1 else set()
    for one in criteria.constraints:
        if one.name not in known:
            meant = (nearest(one.name, known) or "train_s").replace("/", ".")
            fix = f"'+constraints.{meant}={one.bound}'"
            raise ConfigError(
                f"constraints.{one.name}", ABSENT, ": no trial reports that", choices(one.name, known), fix
            )
    if (second := criteria.second) is not None and second not in known:
        fix = f"objective.second.key={nearest(second, known) or 'train_s'}"
        raise ConfigError("objective.second.key", second, ": no trial reports that", choices(second, known), fix)


def is_report(result: Mapping[str, Any]) -> bool:
    """Whether a result of Tune's trainable is a report, and not only a checkpoint, an interruption or a failure."""
    return "nominal_steps" in result


def make_report(result: Mapping[str, Any]) -> Report:
    """Make the ledger's report from a result of Tune's trainable; it gets the driver's clock time."""
    nominal, sampled = int(result["nominal_steps"]), int(result["env_steps"])
    numbers = select_logged(result)
    return Report(int(result["number"]), nominal, float(result["score"]), numbers, time.time(), sampled - nominal)


def select_logged(report: Mapping[str, Any]) -> dict[str, float]:
    """Select the metrics of a report that MLflow shows."""
    return {name: value for name, value in report.items() if name in METRICS or name.startswith(LEARNER)}
