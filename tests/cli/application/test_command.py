"""What all commands do alike; ``tests/whole/test_commands.py`` types them."""

from __future__ import annotations

import os

from omegaconf import OmegaConf

from rltune.cli.application.command import use_tracking


def test_mlflow_is_asked_where_the_command_says(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://usual")
    for uri, asked in ((None, "http://usual"), ("http://given", "http://given")):
        use_tracking(OmegaConf.create({"tracking": {"uri": uri}}))
        assert os.environ["MLFLOW_TRACKING_URI"] == asked
