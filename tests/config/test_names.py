"""What a sweep and its folder are called."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rltune.config.names import make_sweep_name, sweep_folder_of
from rltune.config.validation import parse_config


@pytest.mark.parametrize("name", ["my-sweep", "a", "ppo_2.1", "2026-01-01"])
def test_a_name_that_can_name_a_folder_is_taken_as_it_is(name, composed):
    """A name of letters digits dashes and points is taken as it is."""
    assert make_sweep_name(parse_config({**composed, "name": name})) == name


def test_a_new_sweep_is_called_after_what_it_does_and_when(composed):
    config = parse_config(composed)
    moment = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
    names = {make_sweep_name(config, moment) for _ in range(20)}
    assert all(re.fullmatch(r"cartpole-ppo-20260304-050607-[0-9a-f]{4}", name) for name in names)
    assert len(names) > 1, "two sweeps in one second have names of their own"


def test_a_sweeps_folder_is_absolute(composed, tmp_path, monkeypatch):
    """A sweeps folder is absolute since tune changes the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/someone")
    relative = parse_config({**composed, "output_dir": "out"})
    assert sweep_folder_of(relative, "s") == tmp_path / "out" / "s"
    home = parse_config({**composed, "output_dir": "~/out"})
    assert sweep_folder_of(home, "s") == Path("/home/someone/out/s")
