"""Define the settings of a sweep as typed values: the schema under the YAML files in ``conf/``.

The defaults of ``conf/run.yaml`` are not repeated here. Nothing heavy is imported, so that a typing error on the
command line is answered at once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING, OmegaConf


def derive_env_name(env_id: str) -> str:
    """Return a name for an environment that has no file of its own: ``my_envs:Drift-v0`` becomes ``my_envs-drift``.

    The module and the namespace stay: two environments of one name would share their champion and their runs in MLflow.
    """
    name = re.sub(r"-v\d+$", "", re.sub(r"[:/]", "-", env_id))
    return re.sub(r"[^\w.-]", "-", name).lstrip("._-").lower()


OmegaConf.register_new_resolver("rltune.env_name", derive_env_name, replace=True)


MLFLOW = ("local", "server")
"""The kinds of tracking that are MLflow."""


@dataclass
class BudgetConfig:
    """How much a sweep may do: trials, environment steps of one trial and of all, seconds, reports of one trial."""

    trials: int = MISSING
    env_steps: int = MISSING
    total_env_steps: int | None = None
    wall_time_s: float | None = None
    reports: int = MISSING


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
    vectorize: str = "auto"
    normalise_observations: bool = False
    rewards: RewardsConfig = field(default_factory=RewardsConfig)
    policies: Any = None


@dataclass
class SecondObjectiveConfig:
    """What trials are compared by besides the objective: something that they measure; None is nothing."""

    key: str | None = None
    direction: str = "min"


@dataclass
class ObjectiveConfig:
    """What an episode is worth: its return, a value of its last info or a function's, to be large or small."""

    kind: str = "return"  # older sweeps' settings have none
    key: str | None = None
    direction: str = "max"
    over: str = "end"
    second: SecondObjectiveConfig = field(default_factory=SecondObjectiveConfig)


@dataclass
class SearcherConfig:
    """Which sampler proposes trials, its arguments, and what it is told: of bad trials, and of earlier sweeps."""

    kind: str = MISSING
    args: dict[str, Any] = field(default_factory=dict)
    view: str = "auto"
    from_sweeps: list[str] | None = None  # older sweeps' settings have none


@dataclass
class SchedulerConfig:
    """Which rule stops weak trials, and its arguments."""

    kind: str = MISSING
    args: dict[str, Any] = field(default_factory=dict)


@dataclass
class ResourcesConfig:
    """One trial's share of the machine; None lets the sweep decide."""

    cpus_per_trial: float | None = None
    gpus_per_trial: float = 0.0
    trials_per_gpu: int | str | None = None  # older sweeps' settings have none
    max_concurrent: int | None = None


@dataclass
class TrackingConfig:
    """Where a sweep is shown; ``uri`` None means MLflow's own default store in the working directory."""

    kind: str = MISSING
    uri: str | None = None
    experiment: str | None = None
    register: bool = True
    tensorboard: bool = False  # older sweeps' settings have none


@dataclass
class ClusterConfig:
    """Which Ray runs the trials; ``address`` None starts one on this machine."""

    address: str | None = None
    num_cpus: int | None = None
    num_gpus: int | None = None
    dashboard: bool = False
    autoscale: bool = False


@dataclass
class CheckpointConfig:
    """How often a trial's latest state is written, and how large a replay memory it may hold."""

    every_s: float = MISSING
    replay_gb: float = MISSING


@dataclass
class FailuresConfig:
    """What is done about trials that go wrong."""

    max_retries: int = MISSING
    stall_s: float = MISSING
    stop_after: int = MISSING


@dataclass
class CertifyConfig:
    """The winner is chosen among the ``top`` best trials: retrained on fresh seeds, or with ``seeds`` 0 as they are."""

    top: int = MISSING
    seeds: int = MISSING
    episodes: int = MISSING
    champion_episodes: int = MISSING


@dataclass
class StudyConfig:
    """Where the ledger is kept; ``storage`` None is a file in the sweep's folder."""

    storage: str | None = None


@dataclass
class PublishedConfig:
    """What a file of conf/tuned says of its source; ``env_steps`` None where no such file is in use."""

    env_steps: int | None = None


@dataclass
class RunConfig:
    """One sweep: everything that ``rltune run`` composes."""

    name: str | None = None
    resume: str = "never"  # older sweeps' settings have none
    take_over: bool = False  # likewise
    output_dir: str = MISSING
    storage: str | None = None
    seed: int = MISSING
    replicates: int = MISSING
    engine: str = MISSING
    precision: str = "float32"  # older sweeps' settings have none
    report: bool = MISSING
    callbacks: list[str] = field(default_factory=list)  # older sweeps' settings have none
    notify: str | None = None  # likewise
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    algo: dict[str, Any] = field(default_factory=dict)
    env: EnvConfig = field(default_factory=EnvConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    constraints: dict[str, Any] = field(default_factory=dict)  # older sweeps' settings have none
    space: dict[str, Any] = field(default_factory=dict)
    wider: dict[str, Any] = field(default_factory=dict)
    published: PublishedConfig = field(default_factory=PublishedConfig)  # older sweeps' settings have none
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
