"""The wheel: what is in it, and that it works beside another project's package of the name ``sweeps``."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).resolve().parents[2]
BUILD = "from setuptools.build_meta import build_wheel; build_wheel('dist')"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """It is built from a copy: setuptools writes beside the sources."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    for name in ("src/rltune", "conf"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run([sys.executable, "-c", BUILD], cwd=folder, check=True, capture_output=True)
    (built,) = folder.glob("dist/*.whl")
    return zipfile.ZipFile(built)


def test_the_wheel_has_our_package_alone_with_its_configs_and_license(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    assert {name.split("/")[0].split("-")[0] for name in names} == {"rltune"}
    wanted = {f"rltune/conf/{path.relative_to(ROOT / 'conf')}" for path in (ROOT / "conf").rglob("*.yaml")}
    assert wanted - names == set()
    assert {name.rpartition("/")[2] for name in names} >= {"LICENSE", "py.typed", "report.html"}
    for folder in ("rltune/service/static", "rltune/service/templates"):
        assert {f"{folder}/{path.name}" for path in (ROOT / "src" / folder).iterdir()} - names == set()


def test_the_wheel_says_what_it_is(wheel: zipfile.ZipFile) -> None:
    (path,) = (name for name in wheel.namelist() if name.endswith("/METADATA"))
    said = message_from_string(wheel.read(path).decode())
    assert said["Version"] == __import__("rltune").__version__
    assert said["License-Expression"] == "Apache-2.0"
    assert said["Author"]
    assert said["Keywords"]
    assert len(said.get_all("Classifier")) > 5
    assert wheel.read(path.replace("METADATA", "entry_points.txt")).decode().count("rltune = ") == 1


def test_an_installed_wheel_runs_beside_another_package_named_sweeps(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    library, here = tmp_path / "library", tmp_path / "here"
    here.mkdir()
    wheel.extractall(library)
    for name in ("__init__", "run"):
        (library / "sweeps").mkdir(exist_ok=True)
        (library / "sweeps" / f"{name}.py").write_text("raise ImportError('of-another-package')\n")
    (library / "sweeps" / "__init__.py").write_text("")

    def type_words(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "rltune", *words],
            cwd=here, env={**os.environ, "PYTHONPATH": str(library)}, capture_output=True, text=True, check=False,
        )  # fmt: skip

    commands = (["--version"], ["run", "algo=pp0"], ["list", "envs"], ["resume", "sweep=nope"])
    answers = [type_words(*words) for words in (*commands, ["run", "env=pendulum", "--cfg", "job"])]
    _, misspelled, listed, resumed, composed = answers
    assert "'ppo'" in misspelled.stderr
    assert "CartPole-v1" in listed.stdout
    assert resumed.stderr.endswith(" rltune list\n")
    assert "Pendulum-v1" in composed.stdout
    assert [done.returncode for done in answers] == [0, 2, 0, 2, 0]
    assert "of-another-package" not in str(answers)
    code = "from rltune.formatting import spell_command; import rltune; print(rltune.__file__, spell_command('list'))"
    command = [sys.executable, "-c", code]
    env = {**os.environ, "PYTHONPATH": str(library), "PATH": str(Path(sys.executable).parent)}
    done = subprocess.run(command, cwd=here, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(library / "rltune" / "__init__.py"), "rltune", "list"]
