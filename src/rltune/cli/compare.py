"""``rltune compare sweeps=[a,b]``: compare sweeps on one environment."""

from dataclasses import dataclass, field
from pathlib import Path

from omegaconf import DictConfig

from rltune.cli.application.command import ServiceConfig, SweepsConfig, command
from rltune.cli.application.serviced import find_service
from rltune.errors import ConfigError
from rltune.formatting import spell_command


@dataclass
class CompareConfig(SweepsConfig):
    """The settings of conf/compare.yaml."""

    sweeps: list[str] = field(default_factory=list)
    group: str | None = None
    out: str = ""
    service: ServiceConfig = field(default_factory=ServiceConfig)


@command("compare", CompareConfig)
def main(settings: DictConfig) -> int:
    """Print the comparison as Markdown, and write it with its figure."""
    if settings.group is not None:
        settings.sweeps = list_group(settings)
    if not settings.sweeps:
        raise ConfigError("sweeps has no value", "sweeps' names", spell_command("compare sweeps=[first,second]"))
    from rltune.ledger.sweep_ref import SweepRef

    refs = [SweepRef.of(sweep, settings.output_dir, settings.storage) for sweep in settings.sweeps]
    folders = [ref.folder("sweeps") for ref in refs]
    from rltune.views.comparison import compare_sweeps  # Brings SQLAlchemy, for which a wrong name need not wait.

    comparison = compare_sweeps(folders, ledger_url=settings.study.storage)
    print(comparison.markdown())
    for path in comparison.save(Path(settings.out).expanduser().absolute()):
        print(path)
    return 0


def list_group(settings: DictConfig) -> list[str]:
    """List the complete sweeps that were submitted with a group, in the order of submission.

    Raises:
        ConfigError: No service runs, or it has no complete sweep of the group.
    """
    client = find_service(settings)
    sweeps = client.list(settings.group) if client else []
    sweeps.sort(key=lambda sweep: (str(sweep["submitted"]), sweep["id"]))
    complete = [sweep["name"] for sweep in sweeps if sweep["state"] == "complete"]
    if not complete:
        raise ConfigError(
            f"group={settings.group}: no complete sweep of it"
            if client
            else f"group={settings.group}: no service runs",
            "a group whose sweeps were submitted, and have ended",
            spell_command("list") if client else spell_command("serve"),
        )
    return complete


if __name__ == "__main__":
    main()
