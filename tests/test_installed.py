"""What is looked up of installed packages."""

from __future__ import annotations

import pytest

from rltune.installed import find_version, list_requirements

pytestmark = pytest.mark.fast


def test_installed_packages_have_versions_and_requirements():
    assert find_version("numpy") is not None
    assert find_version("a-package-that-is-none") is None
    assert "numpy" in {requirement.name for requirement in list_requirements("gymnasium")}
    assert not list(list_requirements("a-package-that-is-none"))
