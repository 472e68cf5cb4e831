"""The dataclasses that define all settings of a sweep; their defaults are in the YAML files in ``conf/``.

The defaults of ``conf/run.yaml`` are not repeated here. Nothing heavy is imported, so that a typing error on the
command line is answered at once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING, OmegaConf

from rltune.config.bounds import Checked, bounded
from rltune.config.uris import conceal_setting
from rltune.records import EVALUATION_STEPS
from rltune.secrets import conceal


def derive_env_name(env_id: str) -> str:
    """Return a name for an environment that has no file of its own: ``my_envs:Drift-v0`` becomes ``my_envs-drift``.

    The module and the namespace stay: two environments of one name would share their champion and their runs in MLflow.
    """
    name = re.sub(r"-v\d+$", "", re.sub(r"[:/]", "-", env_id))
    return re.sub(r"[^\w.-]", "-", name).lstrip("._-").lower()


def take_budget_share(share: float, *, _root_: Any) -> int:
    """Return a fraction of a trial's environment steps, at least 1; YAML schedules use it to follow the budget.

    Commands without a budget, such as ``probe``, take that of a default sweep.
    """
    steps = OmegaConf.select(_root_, "budget.env_steps") or 100_000
    return max(1, round(float(steps) * float(share)))


OmegaConf.register_new_resolver("rltune.env_name", derive_env_name, replace=True)
OmegaConf.register_new_resolver("rltune.budget_share", take_budget_share, replace=True)


ENGINES = ("fast", "rllib")
TRACKERS = {  # The tracker class for each short name in `tracking.kinds`, see `rltune.tracking.tracker.Tracker`.
    "mlflow": "rltune.tracking.mlflow_tracker:MLflowTracker",
    "tensorboard": "rltune.tracking.tensorboard:TensorBoardTracker",
    "wandb": "rltune.tracking.wandb_runs:WandbTracker",
}
MEASURED = "auto"  # `resources.trials_per_gpu=auto` measures how many trials fit on a GPU.
MAX_ON_GPU = 100  # The largest number of trials that share a GPU.
MAX_COUNT = 100_000  # All seeds are drawn before the first trial, which larger counts would delay.
MAX_SEED = 2**32 - 1  # The largest seed that NumPy accepts.


@dataclass
class BudgetConfig:
    """Limits of a sweep: trials, environment steps of one trial and of all, wall time, reports of one trial."""

    trials: int = bounded(minimum=1, maximum=MAX_COUNT, example=48)
    env_steps: int = bounded(minimum=1, example=100_000)
    total_env_steps: int | None = bounded(None, minimum=1, example=1_000_000)
    wall_time_s: float | None = bounded(None, minimum=1, example=3600)
    reports: int = bounded(minimum=1, example=20)


@dataclass
class RewardsConfig:
    """Transformations of the rewards for training; the reported returns are those of the environment."""

    scale: float = 1.0
    clip: float | None = None


@dataclass
class EnvConfig:
    """One environment: its Gymnasium id, or its PettingZoo module if ``policies`` names several agents' policies."""

    name: str = MISSING
    id: str = MISSING
    kwargs: dict[str, Any] = field(default_factory=dict)
    wrappers: list[Any] = field(default_factory=list)
    vectorize: str = bounded("auto", choices=("auto", "sync", "async", "vector_entry_point"))
    rewards: RewardsConfig = field(default_factory=RewardsConfig)
    restarts: int = bounded(0, minimum=0, example=3)
    policies: Any = None
    evaluation_steps: int = bounded(EVALUATION_STEPS, minimum=1)
    encode: dict[Any, Any] = field(default_factory=dict)
    action_mask: str = bounded("auto", choices=("auto", "off"))
    per_copy: dict[str, Any] = field(default_factory=dict)
    max_copies: int | None = bounded(None, minimum=1, example=4)

    def __post_init__(self) -> None:
        """Read the word off in a file, which YAML takes for false."""
        self.action_mask = "off" if self.action_mask == "False" else self.action_mask


@dataclass
class SecondObjectiveConfig:
    """A second objective, which trials are compared by besides the score; with ``key`` None there is none."""

    key: str | None = None
    direction: str = bounded("min", choices=("min", "max"))


@dataclass
class ObjectiveConfig:
    """How an episode is scored: by its return, a value of its last info or a function; to be maximized or minimized."""

    kind: str = bounded("return", choices=("return", "info", "package.module:function"))
    key: str | None = None
    direction: str = bounded("max", choices=("max", "min"))
    second: SecondObjectiveConfig = field(default_factory=SecondObjectiveConfig)


@dataclass
class SearcherConfig:
    """The sampler that proposes configurations, its arguments, and the earlier sweeps from which it learns."""

    kind: str = MISSING
    args: dict[str, Any] = field(default_factory=dict)
    from_sweeps: list[str] | None = None


@dataclass
class SchedulerConfig:
    """The stopping rule for weak trials, such as successive halving, and its arguments."""

    kind: str = MISSING
    args: dict[str, Any] = field(default_factory=dict)


@dataclass
class ResourcesConfig:
    """CPUs and GPUs of each trial; None lets rltune choose them."""

    cpus_per_trial: float | None = bounded(None, minimum=0.01, example=1)
    gpus_per_trial: float = bounded(0.0, minimum=0)
    trials_per_gpu: int | str | None = bounded(None, minimum=1, maximum=MAX_ON_GPU, choices=(MEASURED,), example=4)
    max_concurrent: int | None = bounded(None, minimum=1)


@dataclass
class TrackingConfig:
    """The trackers, such as MLflow, to which a sweep is logged; ``uri`` None is MLflow's default store."""

    kinds: list[str] = MISSING
    uri: str | None = None
    experiment: str | None = None
    register: bool = True

    def __post_init__(self) -> None:
        """Conceal the login of the address."""
        self.uri = self.uri and conceal(self.uri)


@dataclass
class ClusterConfig:
    """The Ray cluster that runs the trials; ``address`` None starts a local Ray."""

    address: str | None = None
    num_cpus: int | None = bounded(None, minimum=1, example=2)
    num_gpus: int | None = bounded(None, minimum=0)
    dashboard: bool = False
    autoscale: bool = False


@dataclass
class CheckpointConfig:
    """How often a trial's training state is saved, and the largest replay memory that is saved with it."""

    every_s: float = bounded(minimum=0, example=30)
    replay_gb: float = bounded(minimum=0, example=0.2)


@dataclass
class FailuresConfig:
    """How often failed trials are retried, when a trial counts as stalled, and when a sweep gives up."""

    max_retries: int = bounded(minimum=0, example=1)
    stall_s: float = bounded(minimum=1, example=300)
    stop_after: int = bounded(minimum=1, example=10)


@dataclass
class CertifyConfig:
    """Certification: the ``top`` best trials are retrained on ``seeds`` fresh seeds; 0 seeds only evaluates them.

    ``top`` and ``seeds`` None follow from the number of trials, see `rltune.config.budget.size_certification`.
    """

    top: int | None = bounded(None, minimum=0, example=3)
    seeds: int | None = bounded(None, minimum=0, maximum=MAX_COUNT, example=5)
    episodes: int = bounded(minimum=1, example=50)
    champion_episodes: int = bounded(minimum=1, example=100)


@dataclass
class StudyConfig:
    """The database of the sweep's ledger; ``storage`` None is an SQLite file in the sweep's folder."""

    storage: str | None = None

    def __post_init__(self) -> None:
        """Conceal the login of the address."""
        self.storage = self.storage and conceal(self.storage)


@dataclass
class PublishedConfig:
    """The training length for which the settings in a file of conf/tuned were published; None without such a file."""

    env_steps: int | None = bounded(None, minimum=1, example=1_000_000)


@dataclass
class RunConfig(Checked):
    """All settings of one sweep, as ``rltune run`` composes them."""

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

    def __post_init__(self) -> None:
        """Conceal the path of the address to notify, and check this instance."""
        self.notify = self.notify and conceal_setting("notify", self.notify)
        super().__post_init__()


@dataclass
class ProbeConfig(Checked):
    """The settings of conf/probe.yaml."""

    engine: str = bounded(choices=ENGINES)
    algo: dict[str, Any] = field(default_factory=dict)
    env: EnvConfig = field(default_factory=EnvConfig)
    widths: list[int] = bounded(minimum=1, example="[1,4,16,64]")
    env_runners: list[int] | None = bounded(None, minimum=0, example="[0,1]")
    threads: list[int] = bounded(minimum=1, example="[1,2]")
    seconds: float = bounded(minimum=0.05, example=2)
