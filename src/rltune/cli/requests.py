"""The commands that send a request to a sweep, also to one on another machine: stop, enqueue and retry."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from omegaconf import MISSING

from rltune.cli.application.answer import Answer
from rltune.cli.application.command import RequestConfig, TrackingConfig, command, locate_sweep
from rltune.cli.run import Environment, Failures, answer_outcome, spell_changes
from rltune.cli.submitted import find_service_of, print_state


@dataclass
class StopConfig(RequestConfig):
    """The settings of conf/stop.yaml."""

    wait: bool = MISSING


@command("stop sweep=latest", StopConfig)
def stop(settings: StopConfig) -> Answer:
    """End a running sweep cleanly, from any machine that sees its ledger."""
    if client := find_service_of(settings):
        done = client.stop(settings.sweep)
        return print_state(client.wait(settings.sweep)[0] if settings.wait else done)
    ref = locate_sweep(settings)
    from rltune.driver.requests.actions import stop_sweep

    return Answer({"name": ref.name, "state": stop_sweep(ref, wait=settings.wait)})


@dataclass
class EnqueueConfig(RequestConfig):
    """The settings of conf/enqueue.yaml."""

    space: dict[str, Any] = field(default_factory=dict)


@command("enqueue sweep=latest space.lr=1e-3", EnqueueConfig)
def enqueue(settings: EnqueueConfig) -> Answer:
    """Enqueue a configuration as a sweep's next trial."""
    if client := find_service_of(settings):
        return print_state(client.enqueue(settings.sweep, **settings.space))
    ref = locate_sweep(settings)
    from rltune.driver.requests.actions import enqueue_configuration

    larger_budget = enqueue_configuration(ref, settings.space)
    return Answer({"name": ref.name, "space": settings.space, "needs": larger_budget or None})


@dataclass
class RetryConfig(RequestConfig):
    """The settings of conf/retry.yaml."""

    trials: list[int] | None = None
    env: Environment = field(default_factory=Environment)
    failures: Failures = field(default_factory=Failures)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    trust: bool = MISSING


@command("retry sweep=latest", RetryConfig)
def retry(settings: RetryConfig) -> Answer:
    """Retry failed trials with their numbers and values.

    A sweep that does not run is resumed for them.
    """
    given = asdict(settings)
    changes = {key: given[key] for key in ("env", "failures", "tracking")}
    if client := find_service_of(settings):
        return print_state(client.retry(settings.sweep, settings.trials, *spell_changes(changes)))
    ref = locate_sweep(settings)
    from rltune.driver.requests.actions import retry_failed

    outcome = retry_failed(ref, settings.trials, changes=changes, trust=settings.trust)
    return answer_outcome(outcome, ref.ledger_url) if outcome else Answer({"name": ref.name, "trials": settings.trials})
