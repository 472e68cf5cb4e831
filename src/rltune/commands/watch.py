"""``rltune watch sweep=latest``: the live table of a sweep that runs anywhere; Ctrl-C leaves it."""

from dataclasses import dataclass, field

from omegaconf import MISSING, DictConfig

from rltune.commands.application.command import StudyConfig, command, locate_sweep


@dataclass
class WatchConfig:
    """The settings of conf/watch.yaml."""

    sweep: str = MISSING
    output_dir: str = MISSING
    storage: str | None = None
    study: StudyConfig = field(default_factory=StudyConfig)


def work(settings: DictConfig) -> int:
    """Show the sweep until it ends; return its exit code."""
    where = locate_sweep(settings)
    from rltune.pipeline.requests.watching import watch_sweep

    return watch_sweep(settings.sweep, **where)


def main() -> None:
    """Run the command."""
    command("watch", WatchConfig, work)


if __name__ == "__main__":
    main()
