"""What to install where a package that makes an environment lacks others."""

from __future__ import annotations

import importlib
import re
from importlib import metadata
from pathlib import Path

import pytest

from rltune.envs.missing import suggest_installation

pytestmark = pytest.mark.fast

FILES = {
    "grid_game/__init__.py": "import os\nimport numpy\nfrom grid_game.world import World\n",
    "grid_game/world.py": "import absent_first.core\n",
    "grid_game-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: grid-game\nVersion: 1.0\nRequires-Dist: numpy\n"
    "Requires-Dist: Absent.First>=2\nRequires-Dist: absent-listed @ https://example.org/it.zip\n"
    "Requires-Dist: absent-extra; extra == 'more'\n",
    "grid_game-1.0.dist-info/RECORD": "grid_game/__init__.py,,\n",
    "my_game.py": "import grid_game\n",
    "my_own.py": "import absent_own.parts\n",
    "my_camera.py": "import sys\nsys.modules['cv2'] = None\nimport cv2\n",
    "old_game/__init__.py": "raise ModuleNotFoundError('as setuptools had it', name='pkg_resources')\n",
    "old_game-1.0.dist-info/METADATA": "Name: old-game\nVersion: 1.0\nRequires-Dist: setuptools>=40\n",
    "old_game-1.0.dist-info/RECORD": "old_game/__init__.py,,\n",
    "my_words.py": "raise ModuleNotFoundError('get the simulator from its maker')\n",
    "my_part.py": "import numpy.absent_part\n",
}


def fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str) -> ModuleNotFoundError:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    with pytest.raises(ModuleNotFoundError) as failed:
        importlib.import_module(module)
    return failed.value


@pytest.mark.parametrize("module", ["grid_game", "my_game"])
def test_all_that_a_package_requires_is_named_at_once(module, tmp_path, monkeypatch):
    error = fail(tmp_path, monkeypatch, module)
    assert set(metadata.packages_distributions()["grid_game"]) == {"grid-game"}
    fix = suggest_installation(error)
    assert fix == "pip install 'Absent.First>=2' 'absent-listed @ https://example.org/it.zip'"


@pytest.mark.parametrize(
    ("module", "command"),
    [
        ("my_own", None),
        ("my_words", None),
        ("my_part", None),
        ("my_camera", "pip install opencv-python"),
        ("old_game", "pip install 'setuptools<82'"),
    ],
)
def test_no_command_installs_a_package_that_no_author_names(module, command, tmp_path, monkeypatch):
    monkeypatch.delitem(importlib.sys.modules, "cv2", raising=False)
    fix = suggest_installation(fail(tmp_path, monkeypatch, module))
    assert re.findall("pip install .*", fix) == ([command] if command else [])
    assert fix.endswith("absent_own") == (module == "my_own")


def test_a_module_of_older_versions_keeps_what_its_importer_requires(tmp_path, monkeypatch):
    monkeypatch.setattr("rltune.envs.missing.find_version", lambda name: None)
    assert suggest_installation(fail(tmp_path, monkeypatch, "old_game")) == "pip install 'setuptools<82,>=40'"
