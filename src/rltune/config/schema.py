"""Define the settings of a sweep as typed values: the schema under the YAML files in ``conf/``.

Each field declares its type and its bounds. Its default and its description are in ``conf/``. Imports nothing heavy, so
that a typo on the command line is answered at once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING, OmegaConf

from rltune.config.bounds import bounded


def derive_env_name(env_id: str) -> str:
    """Return a name for an environment without a file in conf/env: ``my_envs:Drift-v0`` becomes ``my_envs-drift``.

    The name keeps the module and the namespace, because environments of the same name share a champion in MLflow.
    """
    name = re.sub(r"-v\d+$", "", re.sub(r"[:/]", "-", env_id))
    return re.sub(r"[^\w.-]", "-", name).lstrip("._-").lower()


OmegaConf.register_new_resolver("rltune.env_name", derive_env_name, replace=True)


ENGINES = ("fast", "rllib")
MLFLOW = ("local", "server")  # The kinds of tracking that are MLflow.
MEASURED = "auto"  # The value of `resources.trials_per_gpu` that measures how many trials fit.
MAX_ON_GPU = 100  # Trials that may share a GPU.
MAX_COUNT = 100_000  # The seeds of all trials and retrainings are drawn before the first trial.
MAX_SEED = 2**32 - 1  # The largest seed of NumPy.


@dataclass
class BudgetConfig:
    """The budget of a sweep: its trials, their environment steps and reports, and its wall time."""

    trials: int = bounded(minimum=1, maximum=MAX_COUNT, example=24)
    env_steps: int = bounded(minimum=1, example=100_000)
    total_env_steps: int | None = bounded(None, minimum=1, example=1_000_000)
    wall_time_s: float | None = bounded(None, minimum=1, example=3600)
    reports: int = bounded(minimum=1, example=20)


@dataclass
class RewardsConfig:
    """The shaping of the rewards that a policy learns from; reported returns are those of the environment."""

    normalise: bool = False
    scale: float = bounded(1.0, minimum=0, exclusive_minimum=True, example=1)
    clip: float | None = bounded(None, minimum=0, exclusive_minimum=True, example=1)


@dataclass
class EnvConfig:
    """The environment: a Gymnasium id or, if ``policies`` is set, a module of PettingZoo."""

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
    """The second objective: a number that trials measure; without a key there is none."""

    key: str | None = None
    direction: str = bounded("min", choices=("min", "max"))


@dataclass
class ObjectiveConfig:
    """The score of an episode: its return, a value in the info of its last step, or a function's result."""

    kind: str = bounded("return", choices=("return", "info", "package.module:function"))
    key: str | None = None
    direction: str = bounded("max", choices=("max", "min"))
    over: str = bounded("end", choices=("end", "training"))
    second: SecondObjectiveConfig = field(default_factory=SecondObjectiveConfig)


@dataclass
class SearcherConfig:
    """The sampler that proposes trials, its arguments, and which trials it learns from."""

    kind: str = MISSING
    args: dict[str, Any] = field(default_factory=dict)
    view: str = bounded("auto", choices=("auto", "pruned", "complete"))  # See rltune.search.views.
    from_sweeps: list[str] | None = None


@dataclass
class SchedulerConfig:
    """The rule that stops weak trials, and its arguments."""

    kind: str = MISSING
    args: dict[str, Any] = field(default_factory=dict)


@dataclass
class ResourcesConfig:
    """The share of the machine that a trial has; None lets the sweep decide."""

    cpus_per_trial: float | None = bounded(None, minimum=0.01, example=1)
    gpus_per_trial: float = bounded(0.0, minimum=0)
    trials_per_gpu: int | str | None = bounded(None, minimum=1, maximum=MAX_ON_GPU, choices=(MEASURED,), example=4)
    max_concurrent: int | None = bounded(None, minimum=1)


@dataclass
class TrackingConfig:
    """The tracker of a sweep; without ``uri``, MLflow uses its own default store in the working directory."""

    kind: str = bounded(choices=(*MLFLOW, "wandb", "off", "package.module:Class"))
    uri: str | None = None
    experiment: str | None = None
    register: bool = True
    tensorboard: bool = False


@dataclass
class ClusterConfig:
    """The Ray cluster that runs the trials; without ``address``, Ray is started on this machine."""

    address: str | None = None
    num_cpus: int | None = bounded(None, minimum=1, example=2)
    num_gpus: int | None = bounded(None, minimum=0)
    dashboard: bool = False
    autoscale: bool = False


@dataclass
class CheckpointConfig:
    """The interval of checkpoints, and the largest replay memory that a checkpoint may contain."""

    every_s: float = bounded(minimum=0, example=30)
    replay_gb: float = bounded(minimum=0, example=0.2)


@dataclass
class FailuresConfig:
    """The handling of trials that fail or hang."""

    max_retries: int = bounded(minimum=0, example=1)
    stall_s: float = bounded(minimum=1, example=300)
    stop_after: int = bounded(minimum=1, example=10)


@dataclass
class CertifyConfig:
    """Certification: the ``top`` best trials are retrained on ``seeds`` fresh seeds; 0 compares them as they are."""

    top: int = bounded(minimum=0, example=3)
    seeds: int = bounded(minimum=0, maximum=MAX_COUNT, example=5)
    episodes: int = bounded(minimum=1, example=50)
    champion_episodes: int = bounded(minimum=1, example=100)


@dataclass
class StudyConfig:
    """The database of the ledger; without ``storage`` it is a file in the sweep's folder."""

    storage: str | None = None


@dataclass
class PublishedConfig:
    """The budget for which a file in conf/tuned was published; None if no such file is used."""

    env_steps: int | None = bounded(None, minimum=1, example=1_000_000)


@dataclass
class RunConfig:
    """All settings of a sweep."""

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
    callbacks: list[str] = field(default_factory=list)
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
    searcher: SearcherConfig = field(default_factory=SearcherConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    resources: ResourcesConfig = field(default_factory=ResourcesConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    failures: FailuresConfig = field(default_factory=FailuresConfig)
    certify: CertifyConfig = field(default_factory=CertifyConfig)
    study: StudyConfig = field(default_factory=StudyConfig)
