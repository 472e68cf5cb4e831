"""``rltune logs sweep=my-sweep follow=true``: print the log of a submitted sweep."""

import sys
from dataclasses import dataclass, field

from omegaconf import MISSING, DictConfig, OmegaConf

from rltune.cli.application.command import ServiceConfig, command
from rltune.errors import ConfigError
from rltune.formatting import spell_command


@dataclass
class LogsConfig:
    """The settings of conf/logs.yaml."""

    sweep: str = MISSING
    follow: bool = MISSING
    output_dir: str = MISSING
    service: ServiceConfig = field(default_factory=ServiceConfig)


@command("logs", LogsConfig)
def main(settings: DictConfig) -> int:
    """Print the log."""
    if OmegaConf.is_missing(settings, "sweep"):
        raise ConfigError("sweep has no value", "a sweep that was submitted", spell_command("list"))
    from rltune.service.client import Client

    client = Client(settings.service.address, output_dir=settings.output_dir)
    if position := client.show(settings.sweep)["queue"]:
        print(f"{settings.sweep}: number {position} in the queue; it says more when its turn comes", file=sys.stderr)
    for part in client.logs(settings.sweep, follow=settings.follow):
        print(part, end="", flush=True)
    return 0


if __name__ == "__main__":
    main()
