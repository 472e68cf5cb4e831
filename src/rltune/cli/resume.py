"""``rltune resume sweep=latest``: resume an interrupted sweep, or extend a finished one."""

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING, DictConfig, OmegaConf

from rltune.cli.application.command import RequestConfig, TrackingConfig, command, make_sweep_ref
from rltune.cli.application.serviced import find_service_of, print_state
from rltune.cluster.fork_server import begin_fork_server
from rltune.compose.overrides import spell_settings
from rltune.config.changes import CHANGEABLE


@dataclass
class Budget:
    """The budgets that may grow."""

    trials: int | None = None
    total_env_steps: int | None = None
    wall_time_s: float | None = None


@dataclass
class Certify:
    """The certification that a finished sweep is extended by."""

    top: int | None = None
    seeds: int | None = None


@dataclass
class Cluster:
    """Where the sweep runs from now on."""

    address: str | None = None
    num_cpus: int | None = None
    num_gpus: int | None = None
    autoscale: bool | None = None


@dataclass
class ResumeConfig(RequestConfig):
    """The settings of conf/resume.yaml."""

    budget: Budget = field(default_factory=Budget)
    certify: Certify = field(default_factory=Certify)
    cluster: Cluster = field(default_factory=Cluster)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    callbacks: list[str] | None = None
    notify: str | None = None
    trust: bool = MISSING
    take_over: bool = MISSING


@command("resume", ResumeConfig, early=begin_fork_server)
def main(settings: DictConfig) -> int:
    """Resume the sweep with `rltune.driver.run.resume_sweep`."""
    given: Any = OmegaConf.to_container(settings, resolve=True)
    changes = {key: given[key] for key in CHANGEABLE}
    if client := find_service_of(settings):
        del changes["storage"]  # The service has its own.
        words = spell_settings(changes)
        return print_state(client.resume(settings.sweep, *(word for word in words if not word.endswith("=null"))))
    print(f"resuming {settings.sweep}: reading its ledger, starting Ray ...", flush=True)
    from rltune.driver.run import resume_sweep

    ref = make_sweep_ref(settings)
    done = resume_sweep(ref, changes=changes, trust=settings.trust, take_over=settings.take_over)
    return done.exit_code


if __name__ == "__main__":
    main()
