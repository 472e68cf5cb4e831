"""Say which packages to install where a module has not been found.

A command names only packages that an author has named: PyPI has one of nearly every name, and often a stranger's.
"""

from __future__ import annotations

import shlex
import sys
import traceback
from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from rltune.installed import find_version, list_requirements

PACKAGES = {
    "cv2": "opencv-python",
    "PIL": "pillow",
    "pkg_resources": "setuptools<82",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
"""What to install for modules whose package has another name, or has them in its older versions alone."""

OWN = ("importlib", "rltune", "gymnasium", "runpy", "__main__")
"""Who imports environments, and lacks nothing."""


def suggest_installation(error: ModuleNotFoundError) -> str:
    """Return what to install if a module has not been found: all that its importer requires and lacks, and the module.

    Args:
        error: It has the module's name, unless an environment has raised it with words of its own.
    """
    module = (error.name or "").partition(".")[0]
    packages = _list_lacking(error)
    if module in PACKAGES:
        wanted = Requirement(PACKAGES[module])
        packages.setdefault(canonicalize_name(wanted.name), wanted).specifier &= wanted.specifier
    names = [f"{each.name} @ {each.url}" if each.url else f"{each.name}{each.specifier}" for each in packages.values()]
    command = f"pip install {' '.join(map(shlex.quote, names))}"
    if not module or module in sys.modules or module in PACKAGES or canonicalize_name(module) in packages:
        return command if names else "install what the message names"
    return f"{f'{command}, and ' if names else 'install '}the package that has the module {module}"


def _list_lacking(error: ModuleNotFoundError) -> dict[str, Requirement]:
    """List by name what the metadata of the package requires and lacks in which a module has not been found."""
    frames = [frame.f_globals.get("__name__") or "" for frame, _ in traceback.walk_tb(error.__traceback__)]
    importing = [package for name in frames if (package := name.partition(".")[0]) and package not in OWN]
    owners = metadata.packages_distributions().get(importing[-1], ()) if importing else ()
    required = (requirement for owner in owners for requirement in list_requirements(owner))
    return {canonicalize_name(each.name): each for each in required if find_version(each.name) is None}
