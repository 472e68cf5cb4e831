"""What memory there is, on the machine and in a container."""

from __future__ import annotations

import subprocess
import sys

import psutil
import pytest

from rltune.cluster import memory
from rltune.cluster.memory import available_gb, total_gb


def test_a_machine_has_memory_and_some_of_it_is_free():
    assert 0.1 < available_gb() < total_gb() < 1e5


def test_a_container_has_no_more_than_its_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "_GROUP", tmp_path)
    whole = psutil.virtual_memory().total / 1e9
    assert total_gb() == pytest.approx(whole), "there is no control group"
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1000000\n")
    assert total_gb() == pytest.approx(whole), "there is no limit"
    assert available_gb() > 0.001
    (tmp_path / "memory.max").write_text("5000000\n")
    assert total_gb() == 0.005
    assert available_gb() == 0.004


def test_the_peak_stays_when_memory_is_given_back():
    script = "from rltune.cluster import memory; block = b'x' * 300_000_000; del block; print(memory.peak_gb())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert 0.3 < float(done.stdout) < 0.6
