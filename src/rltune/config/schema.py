"""Define the settings of a sweep as typed values: the schema under the YAML files in ``conf/``.

The defaults of ``conf/run.yaml`` are not repeated here. Nothing heavy is imported, so that a typing error on the
command line is answered at once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING, OmegaConf

from rltune.config.bounds import bounded


def derive_env_name(env_id: str) -> str:
    """Return a name for an environment that has no file of its own: ``my_envs:Drift-v0`` becomes ``my_envs-drift``.

    The module and the namespace stay: two environments of one name would share their champion and their runs in MLflow.
    """
    name = re.sub(r"-v\d+$", "", re.sub(r"[:/]", "-", env_id))
    return re.sub(r"[^\w.-]", "-", name).lstrip("._-").lower()


def take_budget_share(share: float, *, _root_: Any) -> int:
    """Return a share of a trial's environment steps, at least 1, for schedules that follow the budget.

    Commands without a budget, such as ``probe``, take that of a default sweep.
    """
    steps = OmegaConf.select(_root_, "budget.env_steps") or 100_000
    return max(1, round(float(steps) * float(share)))


OmegaConf.register_new_resolver("rltune.env_name", derive_env_name, replace=True)
OmegaConf.register_new_resolver("rltune.budget_share", take_budget_share, replace=True)


ENGINES = ("fast", "rllib")
TRACKERS = {  # The tracker classes behind the short names in `tracking.kinds`, see `rltune.tracking.tracker.Tracker`.
    "mlflow": "rltune.tracking.mlflow_tracker:MLflowTracker",
    "tensorboard": "rltune.tracking.tensorboard:TensorBoardTracker",
    "wandb": "rltune.tracking.wandb_runs:WandbTracker",
}
REMOVED = {  # Settings of earlier versions, and the settings that replace them.
    "callbacks": "tracking.kinds=[mlflow,package.module:Class]",
    "tracking.kind": "tracking.kinds=[mlflow]",
    "tracking.tensorboard": "tracking.kinds=[mlflow,tensorboard]",
}
MEASURED = "auto"  # With this value, `resources.trials_per_gpu` is measured.
MAX_ON_GPU = 100  # The most trials that may share a GPU.
MAX_COUNT = 100_000  # Larger counts would take too long, because all seeds are drawn before the first trial.
MAX_SEED = 2**32 - 1  # NumPy accepts no larger seed.


@dataclass
class BudgetConfig:
    """How much a sweep may do: trials, environment steps of one trial and of all, seconds, reports of one trial."""

    trials: int = bounded(minimum=1, maximum=MAX_COUNT, example=48)
    env_steps: int = bounded(minimum=1, example=100_000)
    total_env_steps: int | None = bounded(None, minimum=1, example=1_000_000)
    wall_time_s: float | None = bounded(None, minimum=1, example=3600)
    reports: int = bounded(minimum=1, example=20)


@dataclass
class RewardsConfig:
    """How the rewards that a policy learns from are shaped; returns are reported as the environment gives them."""

    normalise: bool = False
    scale: float = 1.0
    clip: float | None = None


@dataclass
class EnvConfig:
    """One environment, by its Gymnasium id, or by PettingZoo's module where ``policies`` asks for several agents."""

    name: str = MISSING
    id: str = MISSING
    kwargs: dict[str, Any] = field(default_factory=dict)
    wrappers: list[Any] = field(default_factory=list)
    vectorize: str = bounded("auto", choices=("auto", "sync", "async", "vector_entry_point"))
    normalise_observations: bool = False
    rewards: RewardsConfig = field(default_factory=RewardsConfig)
    policies: Any = None


@dataclass
class SecondObjectiveConfig:
    """A second quantity that trials measure and are compared by besides the objective; None is nothing."""

    key: str | None = None
    direction: str = bounded("min", choices=("min", "max"))


@dataclass
class ObjectiveConfig:
    """The score of an episode: its return, a value of its last info or a function's, to be large or small."""

    kind: str = bounded("return", choices=("return", "info", "package.module:function"))
    key: str | None = None
    direction: str = bounded("max", choices=("max", "min"))
    second: SecondObjectiveConfig = field(default_factory=SecondObjectiveConfig)


@dataclass
class SearcherConfig:
    """The sampler that proposes trials, its arguments, and the earlier sweeps from which it learns."""

    kind: str = MISSING
    args: dict[str, Any] = field(default_factory=dict)
    from_sweeps: list[str] | None = None


@dataclass
class SchedulerConfig:
    """The rule that stops weak trials, and its arguments."""

    kind: str = MISSING
    args: dict[str, Any] = field(default_factory=dict)


@dataclass
class ResourcesConfig:
    """One trial's share of the machine; None lets the sweep decide."""

    cpus_per_trial: float | None = bounded(None, minimum=0.01, example=1)
    gpus_per_trial: float = bounded(0.0, minimum=0)
    trials_per_gpu: int | str | None = bounded(None, minimum=1, maximum=MAX_ON_GPU, choices=(MEASURED,), example=4)
    max_concurrent: int | None = bounded(None, minimum=1)


@dataclass
class TrackingConfig:
    """The tracker that shows a sweep; ``uri`` None means MLflow's own default store in the working directory."""

    kinds: list[str] = MISSING
    uri: str | None = None
    experiment: str | None = None
    register: bool = True


@dataclass
class ClusterConfig:
    """The Ray that runs the trials; ``address`` None starts one on this machine."""

    address: str | None = None
    num_cpus: int | None = bounded(None, minimum=1, example=2)
    num_gpus: int | None = bounded(None, minimum=0)
    dashboard: bool = False
    autoscale: bool = False


@dataclass
class CheckpointConfig:
    """How often a trial's latest state is written, and how large a replay memory it may hold."""

    every_s: float = bounded(minimum=0, example=30)
    replay_gb: float = bounded(minimum=0, example=0.2)


@dataclass
class FailuresConfig:
    """The handling of trials that go wrong."""

    max_retries: int = bounded(minimum=0, example=1)
    stall_s: float = bounded(minimum=1, example=300)
    stop_after: int = bounded(minimum=1, example=10)


@dataclass
class CertifyConfig:
    """The winner is chosen among the ``top`` best trials: retrained on fresh seeds, or with ``seeds`` 0 as they are.

    ``top`` and ``seeds`` None follow from the number of trials, see `rltune.config.budget.size_certification`.
    """

    top: int | None = bounded(None, minimum=0, example=3)
    seeds: int | None = bounded(None, minimum=0, maximum=MAX_COUNT, example=5)
    episodes: int = bounded(minimum=1, example=50)
    champion_episodes: int = bounded(minimum=1, example=100)


@dataclass
class StudyConfig:
    """The place of the ledger; ``storage`` None is a file in the sweep's folder."""

    storage: str | None = None


@dataclass
class PublishedConfig:
    """The source of a file of conf/tuned; ``env_steps`` None where no such file is in use."""

    env_steps: int | None = bounded(None, minimum=1, example=1_000_000)


@dataclass
class RunConfig:
    """One sweep: everything that ``rltune run`` composes."""

    name: str | None = None
    resume: str = bounded("never", choices=("never", "auto"))
    take_over: bool = False
    output_dir: str = MISSING
    storage: str | None = None
    seed: int = bounded(minimum=0, maximum=MAX_SEED)
    replicates: int = bounded(minimum=1)
    engine: str = bounded(choices=ENGINES)
    precision: str = bounded("float32", choices=("float32", "bfloat16"))
    report: bool = MISSING
    notify: str | None = None
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    algo: dict[str, Any] = field(default_factory=dict)
    env: EnvConfig = field(default_factory=EnvConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    constraints: dict[str, Any] = field(default_factory=dict)
    space: dict[str, Any] = field(default_factory=dict)
    wider: dict[str, Any] = field(default_factory=dict)
    published: PublishedConfig = field(default_factory=PublishedConfig)
    warm_start: list[Any] = field(default_factory=list)
    portfolio: list[Any] = field(default_factory=list)
    searcher: SearcherConfig = field(default_factory=SearcherConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    resources: ResourcesConfig = field(default_factory=ResourcesConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    failures: FailuresConfig = field(default_factory=FailuresConfig)
    certify: CertifyConfig = field(default_factory=CertifyConfig)
    study: StudyConfig = field(default_factory=StudyConfig)


@dataclass
class ProbeConfig:
    """The settings of conf/probe.yaml."""

    engine: str = bounded(choices=ENGINES)
    algo: dict[str, Any] = field(default_factory=dict)
    env: EnvConfig = field(default_factory=EnvConfig)
    widths: list[int] = bounded(minimum=1, example="[1,4,16,64]")
    env_runners: list[int] | None = bounded(None, minimum=0, example="[0,1]")
    threads: list[int] = bounded(minimum=1, example="[1,2]")
    seconds: float = bounded(minimum=0.05, example=2)
