"""``rltune stop sweep=latest``: end a running sweep cleanly, from any machine that sees its ledger."""

from dataclasses import dataclass

from omegaconf import MISSING, DictConfig

from rltune.cli.application.command import RequestConfig, command, locate_sweep
from rltune.cli.application.serviced import find_service_of, print_state


@dataclass
class StopConfig(RequestConfig):
    """The settings of conf/stop.yaml."""

    wait: bool = MISSING


@command("stop", StopConfig)
def main(settings: DictConfig) -> int:
    """Request that the sweep's driver ends the sweep."""
    if client := find_service_of(settings):
        done = client.stop(settings.sweep)
        return print_state(client.wait(settings.sweep)[0] if settings.wait else done)
    ref = locate_sweep(settings)
    from rltune.driver.requests.actions import stop_sweep

    stop_sweep(ref, wait=settings.wait)
    return 0


if __name__ == "__main__":
    main()
