"""Where the files of the config groups lie."""

from __future__ import annotations

import pytest

from rltune.compose.groups import find_options, find_own_dir, list_conf_dirs
from rltune.config.names import conf_dir


@pytest.mark.parametrize("others", [("settings.yaml",), ("model/ppo.yaml",)])
def test_conf_of_another_program_is_none_of_ours(others, tmp_path, monkeypatch):
    for name in others:
        (tmp_path / "conf" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "conf" / name).write_text("x: 1\n")
    monkeypatch.chdir(tmp_path)
    assert find_own_dir() is None
    mine = tmp_path / "conf" / "space" / "mine.yaml"
    mine.parent.mkdir()
    mine.write_text("lr: 1\n")
    assert find_own_dir() == tmp_path / "conf"
    assert list_conf_dirs() == [conf_dir(), tmp_path / "conf"]
    assert find_options("space")["mine"] == [mine]
