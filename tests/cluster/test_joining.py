"""Sweeps that join a Ray which runs already and asks for a token; those without one are in test_shared_storage.py."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from joined import ray_head, sweep

pytestmark = pytest.mark.slow  # a Ray of its own

TOKEN = secrets.token_hex(32)


@pytest.fixture(scope="module")
def guarded_address() -> Iterator[str]:
    """A cluster that asks for a token."""
    with ray_head(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=TOKEN) as address:
        yield address


def test_a_sweep_joins_a_cluster_with_its_token(guarded_address: str, tmp_path: Path) -> None:
    words = (f"cluster.address={guarded_address}", "budget.trials=3")
    code, out = sweep("run", tmp_path, *words, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=TOKEN)
    assert code == 0, out
    summary = json.loads((tmp_path / "outputs/toy/summary.json").read_text())
    assert (summary["status"], summary["trials"]["failed"]) == ("complete", 0)


@pytest.mark.replacement
@pytest.mark.parametrize(
    "settings",
    [{}, {"RAY_AUTH_MODE": "token"}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN[::-1]}],
    ids=["nothing", "no token", "another token"],
)
def test_a_wrong_or_missing_token_is_answered_soon(
    settings: dict[str, str], guarded_address: str, tmp_path: Path
) -> None:
    began = time.monotonic()
    code, out = sweep("run", tmp_path, f"cluster.address={guarded_address}", **settings)
    took_s = time.monotonic() - began
    assert code == 2, out
    assert f"error: cluster.address={guarded_address}: wrong or missing token" in out
    assert "  allowed: the cluster's own token, in RAY_AUTH_TOKEN" in out
    assert "  try:     export RAY_AUTH_MODE=token RAY_AUTH_TOKEN=..." in out
    assert took_s < 20, out  # Ray itself tries for 20 s after all imports
    assert not (tmp_path / "outputs").exists()
