"""Refuse installed versions of packages with which rltune does not work, and name the package that has moved them.

``pip install`` of a package that pins Gymnasium or NumPy replaces the installed version, and only warns. What follows
is an ImportError or AttributeError somewhere inside of a library.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import metadata

from packaging.specifiers import Specifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from rltune.errors import ConfigError
from rltune.installed import find_version, list_requirements

OURS = "rltune"
Limits = Mapping[str, SpecifierSet]
"""The versions of one package that others need, by who needs them."""


def refuse_other_versions() -> None:
    """Refuse packages that rltune requires in a version that rltune, or another package that it requires, excludes.

    Packages that are missing are left to their import.

    Raises:
        ConfigError: Names each such package, its version, who needs another one, and who has installed this one.
    """
    wrong: dict[str, tuple[Version, Limits, Limits]] = {}
    moved: list[str] = []
    pinning: list[str] = []
    for name, limits in _list_limits().items():
        version = find_version(name)
        broken = {owner: limit for owner, limit in limits.items() if version and not limit.contains(version, True)}
        if not version or not broken:
            continue
        movers = {
            owner: limit
            for owner, limit in _list_limits_of_all(name)
            if limit.contains(version, True) and not any(limit.contains(lowest) for lowest in _list_lowest(broken))
        }
        wrong[name] = version, broken, limits
        pinning += movers
        because = " and ".join(f"{owner} {find_version(owner)} requires ({limit})" for owner, limit in movers.items())
        moved.append(f"{name} {version}" + (f", which {because}" if because else ""))
    if not wrong:
        return
    needed = [f"{name}{limit} for {owner}" for name, (_, broken, _) in wrong.items() for owner, limit in broken.items()]
    install = " ".join(f"'{name}{_join(limits)}'" for name, (_, _, limits) in wrong.items())
    later = f"; pip install --no-deps {' '.join(dict.fromkeys(pinning))} leaves them as they are" if pinning else ""
    name, (version, *_) = next(iter(wrong.items()))
    raise ConfigError(
        name,
        str(version),
        f": rltune does not work with {'; '.join(moved)}",
        ", ".join(needed),
        f"pip install {install}{later}",
    )


def _list_limits() -> dict[str, dict[str, SpecifierSet]]:
    """List the packages that rltune requires, with the limits of rltune and of these packages themselves."""
    own = {str(canonicalize_name(requirement.name)): requirement for requirement in list_requirements(OURS)}
    limits: dict[str, dict[str, SpecifierSet]] = {
        name: {OURS: requirement.specifier} for name, requirement in own.items()
    }
    for owner, requirement in own.items():
        for further in list_requirements(owner, requirement.extras):
            if (there := limits.get(canonicalize_name(further.name))) is not None and further.specifier:
                there[owner] = there.get(owner, SpecifierSet()) & further.specifier
    return limits


def _list_limits_of_all(name: str) -> Iterator[tuple[str, SpecifierSet]]:
    """List what all installed packages require of one of them."""
    for owner in dict.fromkeys(distribution.metadata["Name"] for distribution in metadata.distributions()):
        for requirement in list_requirements(owner) if owner else ():
            if canonicalize_name(requirement.name) == name:
                yield owner, requirement.specifier


def _list_lowest(limits: Limits) -> list[str]:
    """List the versions from which on limits allow a package."""
    return [
        part.version.removesuffix(".*")
        for limit in limits.values()
        for part in limit
        if part.operator in (">=", "==", "~=")
    ]


def _join(limits: Limits) -> str:
    """Join the limits of a package as pip takes them: an exact version, or the narrowest range."""
    parts = [part for limit in limits.values() for part in limit]
    if exact := next((part for part in parts if part.operator == "=="), None):
        return str(exact)
    lower, upper = ([part for part in parts if part.operator == operator] for operator in (">=", "<"))
    ends = [*sorted(lower, key=_find_end)[-1:], *sorted(upper, key=_find_end)[:1]]
    return ",".join(map(str, [*ends, *(part for part in parts if part.operator not in (">=", "<"))]))


def _find_end(part: Specifier) -> Version:
    return Version(part.version)
