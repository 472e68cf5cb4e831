"""``rltune enqueue sweep=latest space.lr=1e-3``: enqueue a configuration as a sweep's next trial."""

import sys
from dataclasses import dataclass, field
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from rltune.cli.application.command import RequestConfig, command, locate_sweep
from rltune.cli.application.serviced import find_service_of, print_state


@dataclass
class EnqueueConfig(RequestConfig):
    """The settings of conf/enqueue.yaml."""

    space: dict[str, Any] = field(default_factory=dict)


@command("enqueue", EnqueueConfig)
def enqueue(settings: DictConfig) -> int:
    """Enqueue the configuration."""
    values = cast(dict[str, Any], OmegaConf.to_container(settings.space))
    if client := find_service_of(settings):
        return print_state(client.enqueue(settings.sweep, **values))
    ref = locate_sweep(settings)
    from rltune.driver.requests.actions import enqueue_configuration

    enqueue_configuration(ref, values)
    return 0


def open_space(words: list[str]) -> list[str]:
    """Let Hydra accept any key of ``space``, because the sweep and not conf/enqueue.yaml names the parameters."""
    return [f"++{word}" if word.startswith("space.") else word for word in words]


def main() -> None:
    """Run the command."""
    sys.argv[1:] = open_space(sys.argv[1:])
    enqueue()


if __name__ == "__main__":
    main()
