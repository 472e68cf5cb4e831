"""Look up installed packages: their versions, and what they require on this machine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from importlib import metadata

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version


def list_requirements(package: str, extras: Iterable[str] = ()) -> Iterator[Requirement]:
    """List what an installed package requires on this machine; nothing if it is not installed."""
    environments = [{"extra": extra} for extra in ("", *extras)]
    with contextlib.suppress(metadata.PackageNotFoundError):
        for text in metadata.requires(package) or ():
            with contextlib.suppress(InvalidRequirement):  # As old packages have them.
                requirement = Requirement(text)
                if not requirement.marker or any(requirement.marker.evaluate(values) for values in environments):
                    yield requirement


def find_version(package: str) -> Version | None:
    """Return the version of an installed package; None if it is not installed."""
    with contextlib.suppress(metadata.PackageNotFoundError, InvalidVersion, TypeError):
        return Version(metadata.version(package))
    return None
