"""Define all metrics that are logged of a trial; the worker computes them and the driver reads them.

A number passes three functions, all in this module: `read_result` takes it out of RLlib's result as a field of
`Progress`, one per seed; `merge_seeds` makes one number of the seeds'; `select_logged` picks out of a trial's report
what goes to MLflow.

To log another number:

- A learner's statistic: add RLlib's name for it to the algorithm's row in `rltune.config.capabilities`. It is logged
  as ``learner/<name>``. Nothing else changes.
- A number about the episodes: add a field to `Progress`, and its value to
  ``rltune.trial.recent_episodes.RecentEpisodes.summarize``. The user's own metrics are in `Progress.metrics`.
- A number of RLlib's ``env_runners`` results: add a field to `Progress` with its key there. Where the fast engine is to
  give it too, add the same key to ``rltune.engine.algorithm.FastAlgorithm``.
- A number that only the trial knows: add its name to `TRIAL_NUMBERS`, and set it in ``rltune.trial.trainable.Trial``.

Imports nothing heavy, because the driver and toy trials read it.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from rltune.config.capabilities import TABLE, UNKNOWN, Capabilities
from rltune.config.criteria import Criteria
from rltune.envs.spec import EPISODE, LAST, name_metric
from rltune.errors import ABSENT, ConfigError, NonFiniteError, choices, nearest
from rltune.records import Report

if TYPE_CHECKING:
    from rltune.policies.result import Evaluation

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

EPISODES_WITH = "episodes_with/"
"""Prefix of the number of recent episodes that have a metric of the user's own."""

NUM_ENDED = "num_ended"
"""The number of episodes that have ended, other than by a failure, in an attempt that has failed."""

RECENT, SCORED = "recent_episodes", "scored_episodes"
"""The number of episodes of which a report has the means, reported where some of them may lack a number, and how many
of them have a score, reported where some have none."""


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
        metrics: Means of the user's own metrics over the last episodes that have them, by name; NaN if none has it.
        episodes_with: How many of the last episodes have each of them.
        recent_episodes: How many the last episodes are.
        scored_episodes: How many of them have a score.
        refused: The names of what callbacks have logged that is no number.
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
    metrics: Mapping[str, float] = field(default_factory=dict)
    episodes_with: Mapping[str, int] = field(default_factory=dict)
    recent_episodes: int = 0
    scored_episodes: int = 0
    refused: Sequence[str] = field(default_factory=list)
    fault: str = ""
    far_value: str = ""

    def __post_init__(self) -> None:
        """Use the mean return as score if no other score is given."""
        if math.isnan(self.score) and not self.recent_episodes:
            object.__setattr__(self, "score", self.return_mean)

    def with_episodes(self, evaluation: Evaluation) -> Progress:
        """Return this with the score and the user's own metrics of episodes that were played for them."""
        measured = evaluation.measure()
        means = {name: math.nan if (mean := one["mean"]) is None else mean for name, one in measured.items()}
        counts = {name: int(one["episodes"] or 0) for name, one in measured.items()}
        return replace(
            self,
            score=evaluation.mean,
            recent_episodes=len(evaluation.returns),
            scored_episodes=len(evaluation.scores),
            metrics={**self.metrics, **means},  # Numbers of callbacks stay those of the training.
            episodes_with={**self.episodes_with, **counts},
        )

    def without_score(self, episodes: int) -> Progress:
        """Return this without a score, because none of so many episodes that were played for it has one."""
        return replace(self, score=math.nan, recent_episodes=episodes, scored_episodes=0)

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
"""Names of all logged numbers but the learner's and those of own metrics. They are drawn over nominal steps;
``env_steps`` were sampled."""


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
    names = dict.fromkeys(name for seed in seeds for name in seed.metrics)
    for name in names:
        # A seed of which no episode has it is left out, too.
        present = [value for seed in seeds if not math.isnan(value := seed.metrics.get(name, math.nan))]
        report[name] = statistics.fmean(present) if present else math.nan
        counts = [seed.episodes_with[name] for seed in seeds if name in seed.episodes_with]
        report |= {EPISODES_WITH + name.removeprefix(EPISODE): sum(counts)} if counts else {}
    num_recent, num_scored = (sum(getattr(seed, name) for seed in seeds) for name in (RECENT, SCORED))
    if num_scored < num_recent:
        report[SCORED] = num_scored
    if num_scored < num_recent or any(name.startswith(EPISODES_WITH) for name in report):
        report[RECENT] = num_recent
    return report


def check_criteria(
    criteria: Criteria, algo: Capabilities | None = None, replicates: int = 2, metrics: Iterable[str] = ()
) -> None:
    """Refuse constraints or a second objective on a metric that the sweep's trials do not report.

    Args:
        criteria: The sweep's.
        algo: What its algorithm can do; None where that is not known: callbacks of its own may log further metrics.
        replicates: Seeds a trial.
        metrics: The user's own metrics, by their keys of the infos.

    Raises:
        ConfigError: Names the key, and the number that was meant.
    """
    rows = TABLE.values() if algo is None else [algo]
    known = {*METRICS, *(LEARNER + name for row in rows for name in row.statistics)}
    known -= {"return_std_over_seeds"} if replicates == 1 else set()
    own = {name_metric(key) for key in metrics}
    known |= own | {EPISODES_WITH + name.removeprefix(EPISODE) for name in own} | ({RECENT} if own else set())
    is_open = algo is None
    for one in criteria.constraints:
        if one.name not in known and not (is_open and one.name.startswith(EPISODE)):
            if one.name.startswith(EPISODE):
                raise _make_metric_error(f"constraints.{one.name}", ABSENT, one.name, own)
            close = _find_meant(one.name, known)
            fix = f"'+constraints.{(close or 'train_s').replace('/', '.')}={one.bound}'"
            allowed = choices(one.name, known, close)
            raise ConfigError(f"constraints.{one.name}", ABSENT, ": no trial reports that", allowed, fix)
    second = criteria.second
    if second is not None and second not in known and not (is_open and second.startswith(EPISODE)):
        if second.startswith(EPISODE):
            raise _make_metric_error("objective.second.key", second, second, own)
        close = _find_meant(second, known)
        fix, allowed = f"objective.second.key={close or 'train_s'}", choices(second, known, close)
        raise ConfigError("objective.second.key", second, ": no trial reports that", allowed, fix)


def _find_meant(name: str, known: Collection[str]) -> str | None:
    """Return the number of a trial that was meant; for ``fuel`` it is ``episode/fuel``."""
    of_episodes = EPISODE + name
    return of_episodes if of_episodes in known else nearest(name, known)


def _make_metric_error(key: str, value: object, name: str, own: Iterable[str]) -> ConfigError:
    """Make the error for a metric of the user's own that ``metrics`` does not declare."""
    fix = f"'+metrics.{name.removeprefix(EPISODE).replace('/', '.')}={LAST}'"
    return ConfigError(key, value, ": metrics does not name it", choices(name, own), fix)


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
    prefixes = (LEARNER, EPISODE, EPISODES_WITH)
    return {
        name: value for name, value in report.items() if name in (*METRICS, RECENT, SCORED) or name.startswith(prefixes)
    }
