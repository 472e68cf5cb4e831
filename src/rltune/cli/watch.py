"""``rltune watch sweep=latest``: watch the live table of a sweep that runs anywhere, until Ctrl-C."""

from omegaconf import DictConfig

from rltune.cli.application.command import SweepConfig, command, locate_sweep


@command("watch", SweepConfig)
def main(settings: DictConfig) -> int:
    """Show the sweep until it ends, and return its exit code."""
    ref = locate_sweep(settings)
    from rltune.driver.requests.watching import watch_sweep

    return watch_sweep(ref)


if __name__ == "__main__":
    main()
