"""``rltune show sweep=latest``: print the trials of a sweep."""

from omegaconf import DictConfig

from rltune.cli.application.command import SweepConfig, command, make_sweep_ref


def work(settings: DictConfig) -> int:
    """Print one line for each trial, the best first."""
    from rltune.views.tables import show_sweep

    show_sweep(make_sweep_ref(settings))
    return 0


def main() -> None:
    """Run the command."""
    command("show", SweepConfig, work)


if __name__ == "__main__":
    main()
