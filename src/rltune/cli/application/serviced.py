"""Find the service that runs a sweep, for commands that also work without a service."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from rltune.service.folder import ADDRESS, ServiceFolder

if TYPE_CHECKING:
    from rltune.service.client import Client


def find_service(settings: DictConfig) -> Client | None:
    """Return the client of the service that a command uses; None if no service runs.

    A service that the user did not name and that does not accept the token belongs to another folder.

    Raises:
        ServiceError: The user named a service, and it does not answer.
        TokenError: The user named a service, and it does not accept the token.
    """
    is_named = bool(settings.service.address or os.environ.get(ADDRESS))
    if not is_named and ServiceFolder(settings.output_dir).read_address() is None:
        return None
    from rltune.service.client import Client, ServiceError, TokenError

    try:
        client = Client(settings.service.address, output_dir=settings.output_dir)
        client.check()
    except (ServiceError, TokenError):
        if is_named:
            raise
        return None
    return client


def find_service_of(settings: DictConfig) -> Client | None:
    """Return the client of the service to which a command's sweep was submitted; None for any other sweep."""
    client = find_service(settings)
    return client if client and any(sweep["name"] == settings.sweep for sweep in client.list()) else None


def print_state(sweep: dict[str, Any]) -> int:
    """Print the state of a service's sweep, with the reason for it; return the exit code 0."""
    state, reason = sweep["in_words"], sweep["reason"]
    print(f"{sweep['name']}: {state}{f'; {reason}' if reason and reason not in state else ''}", flush=True)
    return 0
