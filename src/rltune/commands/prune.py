"""``rltune prune``: free the checkpoints that no winner and no unfinished trial needs."""

from dataclasses import dataclass, field

from omegaconf import MISSING, DictConfig

from rltune.commands.application.command import StudyConfig, command


@dataclass
class PruneConfig:
    """The settings of conf/prune.yaml."""

    sweep: str = MISSING
    output_dir: str = MISSING
    storage: str | None = None
    delete: bool = MISSING
    study: StudyConfig = field(default_factory=StudyConfig)


def work(settings: DictConfig) -> int:
    """Say what would be freed; with ``delete`` free it."""
    from rltune.study.sweep_folder import find_sweep

    if settings.sweep != "all":
        find_sweep(
            settings.sweep, settings.output_dir, bucket=settings.storage
        )  # a wrong name need not wait for SQLAlchemy
    from rltune.pipeline.prune import prune_sweeps

    prune_sweeps(
        settings.sweep, settings.output_dir, settings.delete, storage=settings.study.storage, bucket=settings.storage
    )
    return 0


def main() -> None:
    """Run the command."""
    command("prune", PruneConfig, work)


if __name__ == "__main__":
    main()
