"""``rltune show sweep=latest``: one sweep's trials."""

from dataclasses import dataclass, field

from omegaconf import MISSING, DictConfig

from rltune.commands.application.command import StudyConfig, command


@dataclass
class ShowConfig:
    """The settings of conf/show.yaml."""

    sweep: str = MISSING
    output_dir: str = MISSING
    storage: str | None = None
    study: StudyConfig = field(default_factory=StudyConfig)


def work(settings: DictConfig) -> int:
    """Print one line a trial, the best first."""
    from rltune.reporting.tables import show_sweep

    show_sweep(settings.sweep, settings.output_dir, storage=settings.study.storage, bucket=settings.storage)
    return 0


def main() -> None:
    """Run the command."""
    command("show", ShowConfig, work)


if __name__ == "__main__":
    main()
