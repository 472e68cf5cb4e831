"""What all commands do alike; ``tests/whole/test_commands.py`` types them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from omegaconf import OmegaConf

from rltune.cli.application import command


def test_mlflow_is_asked_where_the_command_says(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://usual")
    for uri, expected in ((None, "http://usual"), ("http://given", "http://given")):
        command.use_tracking(OmegaConf.create({"tracking": {"uri": uri}}))
        assert os.environ["MLFLOW_TRACKING_URI"] == expected


@pytest.mark.slow
@pytest.mark.usefixtures("heeds_signals")
@pytest.mark.parametrize(
    ("number", "is_as_in_ray"), [(signal.SIGTERM, False), (signal.SIGTERM, True), (signal.SIGINT, False)]
)
@pytest.mark.parametrize("delay_s", [command.RESEND_S, 1e-5], ids=["later", "too soon"])
def test_a_signal_during_a_fork_ends_the_command(number, is_as_in_ray, delay_s):
    program = f"""
import os, signal, sys, time
from rltune.cli.application import command
command.RESEND_S = {delay_s}
with command.exit_on_signals():
    if {is_as_in_ray}:
        signal.signal({number:d}, lambda number, _: sys.exit(number))
    os.register_at_fork(after_in_parent=lambda: signal.raise_signal({number:d}))
    if os.fork() == 0:
        os._exit(0)
    time.sleep(30)
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 128 + number, done.stderr
    assert done.stderr == ""
