"""``rltune show sweep=latest``: print the trials of a sweep."""

from omegaconf import DictConfig

from rltune.cli.application.command import SweepConfig, command, make_sweep_ref


@command("show", SweepConfig)
def main(settings: DictConfig) -> int:
    """Print one line for each trial, the best first."""
    from rltune.views.tables import show_sweep

    show_sweep(make_sweep_ref(settings))
    return 0


if __name__ == "__main__":
    main()
