"""``python -m sweeps.resume sweep=latest``: go on with an interrupted sweep, or extend a finished one."""

from dataclasses import dataclass, field

from omegaconf import MISSING, DictConfig

from sweeps._command import command


@dataclass
class Budget:
    """What may change on the way."""

    trials: int | None = None
    total_env_steps: int | None = None
    wall_time_s: float | None = None


@dataclass
class ResumeConfig:
    """The settings of conf/resume.yaml."""

    sweep: str = MISSING
    output_dir: str = MISSING
    budget: Budget = field(default_factory=Budget)


def work(settings: DictConfig) -> int:
    """Resume the sweep."""
    from rltune.sweep import resume_sweep

    budget = {str(key): value for key, value in settings.budget.items()}
    return resume_sweep(settings.sweep, output_dir=settings.output_dir, budget=budget).exit_code


if __name__ == "__main__":
    command("resume", ResumeConfig, work)
