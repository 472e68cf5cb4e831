"""The cache of the machine code: read by the next process, rebuilt where it is damaged, left out where it cannot be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rltune.engine.kernels import compiler
from rltune.engine.kernels.compiler import FASTMATH, load_kernels

SCRIPT = """
import sys
from rltune.engine.kernels import compiler
compiler.KERNELS = ("rltune.engine.kernels.steps",)
steps = __import__("rltune.engine.kernels.steps", fromlist=["x"])
import numpy as np
steps.warm_up = lambda: steps.clip_norm(np.ones(4, np.float32), 1.0, 0.0)
print(compiler.load_kernels(), sum(steps.clip_norm.stats.cache_hits.values()))
"""


def load(home: Path) -> tuple[str, ...]:
    """Load one kernel in a process of its own: whether it can be used, and how often it came from the cache."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(home)}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True)
    return tuple(done.stdout.split())


@pytest.mark.slow
def test_the_next_process_loads_and_a_damaged_cache_is_built_again(tmp_path: Path) -> None:
    assert load(tmp_path) == ("True", "0")
    assert load(tmp_path) == ("True", "1")
    files = [path for kind in ("nbi", "nbc") for path in tmp_path.rglob(f"*.{kind}")]
    assert len(files) == 2
    for path in files:
        path.write_bytes(path.read_bytes()[:50])
        assert load(tmp_path) == ("True", "0"), path
        assert load(tmp_path) == ("True", "1"), path
    (tmp_path / "file").touch()
    assert load(tmp_path / "file") == ("True", "0"), "a cache that cannot be written"


def test_users_functions_keep_their_cache() -> None:
    import numba

    load_kernels()
    assert "rltune" not in numba.config.CACHE_DIR


def test_nan_and_infinity_are_never_assumed_away() -> None:
    """LLVM drops such comparisons if it may."""
    assert not {"nnan", "ninf", "fast"} & FASTMATH

    @compiler.kernel
    def is_nan(x):  # type: ignore[no-untyped-def]
        return x != x

    assert is_nan(np.float32(np.nan))


def test_one_thread_of_blas() -> None:
    from threadpoolctl import threadpool_info

    load_kernels()
    assert {info["num_threads"] for info in threadpool_info() if info["internal_api"] == "openblas"} == {1}


def test_without_numba_torch_trains(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    from rltune.engine import build_algorithm
    from tests.engine.engine_toy import ppo_config

    monkeypatch.setattr(compiler, "numba", None)
    monkeypatch.setattr(compiler, "reason", "no such module", raising=False)
    load_kernels.cache_clear()
    try:
        algorithm = build_algorithm(ppo_config())
        assert type(algorithm.loop.network).__name__ == "AutogradActorCritic"  # type: ignore[attr-defined]
        assert algorithm.train()["num_env_steps_sampled_lifetime"] > 0
        algorithm.stop()
        assert [r.name for r in caplog.records if "Numba" in r.message] == ["rltune.engine.kernels.compiler"]
    finally:
        load_kernels.cache_clear()
