"""Versions of packages with which rltune does not work are refused, with who has installed them and what to type."""

from __future__ import annotations

from importlib import metadata
from types import SimpleNamespace
from typing import Any

import pytest

from rltune.cli.application.answer import explain_crash
from rltune.config.versions import refuse_other_versions
from rltune.errors import ConfigError, UnexpectedError

pytestmark = pytest.mark.fast

REQUIRED = {
    "rltune": [
        "gymnasium>=1.2,<1.3",
        "numpy>=1.26",
        "pandas>=2.2",
        "ray[rllib]>=2.60,<2.61",
        "onnx>=9; extra == 'export'",
    ],
    "ray": ["numpy<3,>=1.20", "gymnasium==1.2.2; extra == 'rllib'", "gymnasium==0.1; extra == 'air'", "click>=7"],
    "pandas": ["numpy>=2.0.2; python_version >= '3.8'", "numpy>=99; python_version < '3.8'"],
    "old-gym-games": ["gymnasium~=0.29.1", "numpy", "a requirement that is none"],
    "city": ["gymnasium<=0.29.1", "numpy<2.0.0"],
    "modern": ["gymnasium>=0.26", "numpy>=1.20", "click<8"],
}
RIGHT = {
    "gymnasium": "1.2.2",
    "numpy": "2.4.6",
    "pandas": "3.1.1",
    "ray": "2.60.0+local",
    "click": "8.1",
    "onnx": "1.0",
}


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that lets packages be installed: their versions, beside those that rltune works with."""

    def install(**versions: str) -> None:
        there = RIGHT | versions | {"rltune": "0.1.0", "modern": "1.0"}

        def find_version(name: str) -> str:
            if name not in there:
                raise metadata.PackageNotFoundError(name)
            return there[name]

        monkeypatch.setattr(metadata, "version", find_version)
        monkeypatch.setattr(metadata, "requires", lambda name: (find_version(name), REQUIRED.get(name))[1])
        monkeypatch.setattr(
            metadata, "distributions", lambda: [SimpleNamespace(metadata={"Name": name}) for name in there]
        )

    return install


def refuse() -> ConfigError:
    with pytest.raises(ConfigError) as refused:
        refuse_other_versions()
    return refused.value


def test_versions_within_all_limits_are_not_refused(install: Any) -> None:
    install()
    refuse_other_versions()


def test_a_missing_package_is_left_to_its_import(install: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    install()
    monkeypatch.setitem(REQUIRED, "rltune", ["absent>=1"])
    refuse_other_versions()


def test_a_moved_package_is_refused_with_who_pins_it(install: Any) -> None:
    install(gymnasium="0.29.1", **{"old-gym-games": "0.2"})
    error = refuse()
    assert (error.key, error.value, error.exit_code) == ("gymnasium", "0.29.1", 2)
    assert "old-gym-games 0.2 requires (~=0.29.1)" in error.what
    assert "modern" not in error.what
    assert "gymnasium<1.3,>=1.2 for rltune" in error.allowed
    assert error.fix.startswith("pip install 'gymnasium==1.2.2'; pip install --no-deps old-gym-games")


def test_a_version_that_nobody_pins_is_refused_too(install: Any) -> None:
    install(gymnasium="1.3.0")
    error = refuse()
    assert (error.key, error.value, error.fix) == ("gymnasium", "1.3.0", "pip install 'gymnasium==1.2.2'")


def test_the_limits_of_required_packages_count(install: Any) -> None:
    install(numpy="1.26.4", city="3.0")
    error = refuse()
    assert (error.key, error.value) == ("numpy", "1.26.4")
    assert "city 3.0 requires (<2.0.0)" in error.what
    assert "numpy>=2.0.2 for pandas" in error.allowed
    assert error.fix.startswith("pip install 'numpy>=2.0.2,<3'; ")
    assert "--no-deps city" in error.fix


def test_several_moved_packages_are_named_together(install: Any) -> None:
    install(gymnasium="0.29.1", numpy="1.26.4", city="3.0")
    error = refuse()
    assert "gymnasium 0.29.1" in error.what
    assert "numpy 1.26.4" in error.what
    assert error.fix.count("city") == 1
    assert error.fix.count("pip install '") == 1


def test_a_crash_is_explained_by_the_versions(install: Any) -> None:
    install(gymnasium="0.29.1")
    assert explain_crash(AttributeError("module has no attribute 'VectorizeMode'")).key == "gymnasium"
    install()
    assert isinstance(explain_crash(AttributeError("another fault")), UnexpectedError)
