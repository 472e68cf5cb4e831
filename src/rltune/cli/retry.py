"""``rltune retry sweep=latest``: retry failed trials with their numbers and values."""

from dataclasses import dataclass, field

from omegaconf import DictConfig

from rltune.cli.application.command import RequestConfig, TrackingConfig, command, locate_sweep
from rltune.cli.application.serviced import find_service_of, print_state


@dataclass
class RetryConfig(RequestConfig):
    """The settings of conf/retry.yaml."""

    trials: list[int] | None = None
    tracking: TrackingConfig = field(default_factory=TrackingConfig)


@command("retry", RetryConfig)
def main(settings: DictConfig) -> int:
    """Retry failed trials, and resume the sweep for them where it does not run."""
    trials = None if settings.trials is None else list(settings.trials)
    if client := find_service_of(settings):
        return print_state(client.retry(settings.sweep, trials))
    ref = locate_sweep(settings)
    from rltune.driver.requests.actions import retry_failed

    changes = {"tracking": {"uri": settings.tracking.uri}}
    outcome = retry_failed(ref, trials, changes=changes)
    return outcome.exit_code if outcome else 0


if __name__ == "__main__":
    main()
