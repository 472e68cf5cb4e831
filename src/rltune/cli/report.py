"""``rltune report sweep=latest``: write the report of a sweep's present state, also while the sweep runs."""

from omegaconf import DictConfig

from rltune.cli.application.command import SweepConfig, command, make_sweep_ref


@command("report", SweepConfig)
def main(settings: DictConfig) -> int:
    """Write the report and print its path."""
    ref = make_sweep_ref(settings)
    folder = ref.folder()
    from rltune.views import html  # Brings SQLAlchemy, for which a wrong name need not wait.
    from rltune.views.html import write_report

    print(write_report(folder, ledger_url=ref.ledger_url) / html.PAGE)
    return 0


if __name__ == "__main__":
    main()
