"""``rltune report sweep=latest``: a sweep's report as it is now, also while the sweep runs."""

from dataclasses import dataclass, field

from omegaconf import MISSING, DictConfig

from rltune.commands.application.command import StudyConfig, command


@dataclass
class ReportConfig:
    """The settings of conf/report.yaml."""

    sweep: str = MISSING
    output_dir: str = MISSING
    storage: str | None = None
    study: StudyConfig = field(default_factory=StudyConfig)


def work(settings: DictConfig) -> int:
    """Write it and say where it is."""
    from rltune.study.sweep_folder import find_sweep

    folder = find_sweep(settings.sweep, settings.output_dir, bucket=settings.storage)
    from rltune.reporting import html  # brings SQLAlchemy with it, which a wrong name need not wait for
    from rltune.reporting.html import write_report

    print(write_report(folder, storage=settings.study.storage) / html.PAGE)
    return 0


def main() -> None:
    """Run the command."""
    command("report", ReportConfig, work)


if __name__ == "__main__":
    main()
