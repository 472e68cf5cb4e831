"""``rltune serve``: run submitted sweeps from a queue, with a web page and a REST interface."""

import sys
from dataclasses import dataclass, field

from omegaconf import MISSING, DictConfig

from rltune.cli.application.command import command
from rltune.cli.application.multirun import read_start
from rltune.config.bounds import bounded
from rltune.config.validation import to_typed


@dataclass
class Cluster:
    """The cluster that runs the sweeps."""

    address: str | None = None


@dataclass
class ServeConfig:
    """The settings of conf/serve.yaml."""

    output_dir: str = MISSING
    host: str = MISSING
    port: int = bounded(minimum=0, maximum=65535, example=8288)
    names: list[str] = field(default_factory=list)
    width: int = bounded(minimum=1)
    storage: str | None = None
    cluster: Cluster = field(default_factory=Cluster)


@command("serve", ServeConfig)
def main(settings: DictConfig) -> int:
    """Run the service."""
    config = to_typed(ServeConfig, settings)
    print("starting the service ...", flush=True)
    from rltune.service.serving import serve

    plain = {name: value for name, value in vars(config).items() if name != "cluster"}
    number = serve(**plain, address=config.cluster.address, program=find_program())
    # uvicorn raises the signal again itself, except for a signal that the parent process has had ignored.
    return 128 + number


def find_program() -> tuple[str, ...]:
    """Return the program that runs a sweep, started in the same way as this one: ``rltune run`` or ``sweeps.run``."""
    start = read_start()
    return (sys.executable, *start[1:-1], f"{start[-1].removesuffix('serve')}run")


if __name__ == "__main__":
    main()
