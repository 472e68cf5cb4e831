"""All packages that an environment's package lacks are named at once."""

from __future__ import annotations

import importlib
from importlib import metadata
from pathlib import Path

import pytest

from rltune.envs.missing import list_missing, suggest_installation

pytestmark = pytest.mark.fast

FILES = {
    "grid_game/__init__.py": "import os\nimport numpy\nfrom grid_game.world import World\nimport absent_late\n",
    "grid_game/world.py": "from . import parts\nfrom .rules import Rules\n"
    "import absent_first.core\nimport cv2_absent\n",
    "grid_game/parts/__init__.py": "import json\nfrom absent_deep import thing\n",
    "grid_game/rules.py": "try:\n    import absent_optional\nexcept ImportError:\n    pass\nclass Rules: pass\n"
    "def draw():\n    import absent_inside\n",
    "grid_game-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: grid-game\nVersion: 1.0\nRequires-Dist: numpy\n"
    "Requires-Dist: Absent.First>=2\nRequires-Dist: absent-listed<3\nRequires-Dist: absent-extra; extra == 'more'\n",
    "grid_game-1.0.dist-info/RECORD": "grid_game/__init__.py,,\n",
    "my_game.py": "import grid_game\n",
    "my_own.py": "import absent_own\nimport yaml\n",
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
def test_what_a_package_requires_and_imports_is_named_at_once(module, tmp_path, monkeypatch):
    error = fail(tmp_path, monkeypatch, module)
    assert set(metadata.packages_distributions()["grid_game"]) == {"grid-game"}
    names = list_missing(error)
    assert {name.lower().replace("_", "-").replace(".", "-") for name in names} == {
        *("absent-first", "absent-listed", "absent-deep", "absent-late", "cv2-absent")
    }
    assert len(names) == 5


def test_a_file_of_ones_own_names_what_it_imports(tmp_path, monkeypatch):
    error = fail(tmp_path, monkeypatch, "my_own")
    assert list_missing(error) == ["absent_own"]
    assert suggest_installation(error).startswith("pip install absent_own, ")
