"""``rltune serve``: run submitted sweeps from a queue, with a web page and a REST interface."""

import sys
from dataclasses import dataclass, field

from omegaconf import MISSING, DictConfig

from rltune.cli.application.command import command
from rltune.cli.application.multirun import read_start
from rltune.config.validation import to_typed
from rltune.errors import ConfigError


@dataclass
class Cluster:
    """The cluster that runs the sweeps."""

    address: str | None = None


@dataclass
class ServeConfig:
    """The settings of conf/serve.yaml."""

    output_dir: str = MISSING
    host: str = MISSING
    port: int = MISSING
    names: list[str] = field(default_factory=list)
    width: int = MISSING
    storage: str | None = None
    cluster: Cluster = field(default_factory=Cluster)


def work(settings: DictConfig) -> int:
    """Run the service."""
    config = to_typed(ServeConfig, settings)
    if config.width < 1:
        raise ConfigError(f"width={config.width} is out of range", "width of at least 1", "width=1")
    if not 0 <= config.port <= 65535:
        raise ConfigError(
            f"port={config.port} is out of range", "port from 1 to 65535, or 0 for any free one", "port=8288"
        )
    print("starting the service ...", flush=True)
    from rltune.service.serving import ServiceSettings, serve

    plain = {name: value for name, value in vars(config).items() if name not in ("cluster", "names")}
    service = ServiceSettings(
        **plain, names=tuple(config.names), address=config.cluster.address, program=find_program()
    )
    # uvicorn raises the signal again itself, except for a signal that the parent process has had ignored.
    return 128 + serve(service)


def find_program() -> tuple[str, ...]:
    """Return the program that runs a sweep, started in the same way as this one: ``rltune run`` or ``sweeps.run``."""
    start = read_start()
    return (sys.executable, *start[1:-1], f"{start[-1].removesuffix('serve')}run")


def main() -> None:
    """Run the command."""
    command("serve", ServeConfig, work)


if __name__ == "__main__":
    main()
