"""What installs the project: one list of dependencies, one list of versions, and both fit each other."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.fast  # reads files

ROOT = Path(__file__).resolve().parents[2]


def lock() -> dict[str, str]:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pairs}


def test_the_lock_has_names_and_public_versions_only_so_that_any_index_or_local_build_serves():
    assert [f"{name}=={version}" for name, version in lock().items() if not re.fullmatch(r"[\w.]+", version)] == []
    of_one_machine = {name for name in lock() if name.startswith(("nvidia", "cuda", "triton"))}
    assert of_one_machine - {"nvidia-ml-py"} == set(), "that one is Python alone"


def test_every_dependency_and_test_tool_of_pyproject_has_its_version_in_the_lock():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["dev"], *extras["docs"]]
    names = [re.match(r"[\w.-]+", entry).group().lower() for entry in wanted]
    assert [name for name in names if name not in lock()] == []


def test_conda_installs_the_same_project_under_the_same_versions():
    listed = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    assert listed[-1] == {"pip": ["-c requirements.lock", "-e ."]}
    assert all(re.match(r"(python|pip)\b", entry) for entry in listed[:-1])
