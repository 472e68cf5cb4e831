"""A sweep's resume command can be typed, and a folder that is half made holds nothing."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from rltune.config.settings_file import FORMAT
from rltune.ledger.sweep_folder import is_half_made, make_resume_command


@pytest.mark.parametrize("name", ["config.yaml", "trials", "somebody's.txt"])
def test_a_folder_is_half_made_until_something_would_be_lost(name: str, tmp_path: Path) -> None:
    assert not is_half_made(tmp_path / "absent")
    assert is_half_made(tmp_path)
    for left in ("ledger.db", "ledger.db-wal", ".made-by", ".config.yaml"):
        (tmp_path / left).touch()
    assert is_half_made(tmp_path)
    (tmp_path / name).touch()
    assert not is_half_made(tmp_path)


def test_the_resume_command_names_a_folder_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert make_resume_command(tmp_path / "outputs" / "mine").endswith("sweeps.resume sweep=mine")
    assert make_resume_command(tmp_path / "other" / "mine").endswith(f"sweep=mine output_dir={tmp_path / 'other'}")


TYPED = [
    ({}, "sweep=mine"),
    (
        {"storage": "s3://bucket/runs", "study": {"storage": "postgresql://host/rl"}},
        "sweep=mine storage=s3://bucket/runs",
    ),
    ({"storage": "s3://b/r?endpoint_override=http://x:1&scheme=http"}, None),
    (
        {"study": {"storage": "postgresql://***@host/rl"}, "tracking": {"uri": "http://h"}},
        "sweep=mine study.storage=...",
    ),
    ({"study": None, "tracking": {"uri": "http://***@host"}}, "sweep=mine tracking.uri=..."),
]


@pytest.mark.parametrize(("settings", "wanted"), TYPED)
def test_the_resume_command_has_what_an_empty_disk_needs(
    settings: dict[str, Any], wanted: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "outputs" / "mine"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(json.dumps({"format": FORMAT, **settings}))
    command = make_resume_command(folder)
    if wanted:
        assert command.partition("sweeps.resume ")[2] == wanted
    overrides = OverridesParser.create().parse_overrides(shlex.split(command)[3:])
    read = {override.key_or_group: override.value() for override in overrides}
    assert read["sweep"] == "mine"
    assert read.get("storage") == settings.get("storage")


@pytest.mark.parametrize("name", ["my outputs", "1e5", "null", "a=b,c", "it's", 'a "b"', "ü"])
def test_a_resume_command_is_typed_as_the_folder_is_named(name: str, tmp_path: Path) -> None:
    words = shlex.split(make_resume_command(tmp_path / name / name))[3:]
    read = {one.key_or_group: one.value() for one in OverridesParser.create().parse_overrides(words)}
    assert read == {"sweep": name, "output_dir": str(tmp_path / name)}
