"""What all commands do alike; ``tests/whole/test_commands.py`` types them."""

from __future__ import annotations

import os

import pytest
from omegaconf import OmegaConf

from rltune.commands.application.command import help_text, use_tracking


def test_mlflow_is_asked_where_the_command_says(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://usual")
    for uri, asked in ((None, "http://usual"), ("http://given", "http://given")):
        use_tracking(OmegaConf.create({"tracking": {"uri": uri}}))
        assert os.environ["MLFLOW_TRACKING_URI"] == asked


@pytest.mark.parametrize("root", ["run", "list", "compare"])
def test_help_shows_the_command_as_it_can_be_typed_here(root, monkeypatch):
    monkeypatch.setattr("rltune.formatting._find_program", lambda: "rltune ")
    assert help_text(root).startswith(f"Usage: rltune {root}")
    assert "sweeps." not in help_text(root)
