"""The cache of the machine code: read by the next process, rebuilt where it is damaged, left out where it cannot be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from rltune.engine.kernels import compiler
from rltune.engine.kernels.compiler import FASTMATH, find_cache, find_missing_kernels, load_kernels, set_num_threads

# Each load is forked, so that there is one import. After the first one the cache is damaged.
SCRIPT = """
import os, pathlib, sys
from rltune.engine.kernels import compiler, steps
import numpy as np
compiler.KERNELS = {"ppo": ("steps",)}
steps.warm_up = lambda: steps.clip_norm(np.ones(4, np.float32), 1.0, 0.0)
for load in range(int(sys.argv[1])):
    if load == 1:
        for path in pathlib.Path(os.environ["XDG_CACHE_HOME"]).rglob("*.nb?"):
            path.write_bytes(path.read_bytes()[:50])
    if not os.fork():
        hits = lambda: sum(steps.clip_norm.stats.cache_hits.values())
        print(compiler.load_kernels("ppo"), hits(), compiler.find_cache(), flush=True)
        os._exit(0)
    os.wait()
"""


def load(home: Path, loads: int = 1, **variables: str) -> list[list[str]]:
    """Load a kernel in processes of their own: whether it can be used, how often it came from the cache, and which."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(home), **variables}
    command = [sys.executable, "-c", SCRIPT, str(loads)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return [line.split() for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_the_next_process_loads_and_a_damaged_cache_is_built_again(tmp_path: Path) -> None:
    first, damaged, last = (loaded[:2] for loaded in load(tmp_path, loads=3))
    assert first == damaged == ["True", "0"]
    assert last == ["True", "1"]


@pytest.mark.slow
def test_a_home_that_cannot_be_written_leaves_a_private_folder_for_temporary_files(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ((usable, _, folder),) = load(tmp_path / "file", TMPDIR=str(tmp_path))
    assert usable == "True"
    assert Path(folder).parent == tmp_path / f"rltune-{os.getuid()}"
    assert Path(folder).stat().st_mode & 0o077 == 0


def test_a_cache_on_a_disk_that_became_read_only_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(compiler.tempfile, "tempdir", str(tmp_path / "temporary"))
    before = find_cache.__wrapped__()
    assert before is not None
    # The access that the system denies to root as well, which modes of files do not.
    monkeypatch.setattr(compiler.os, "access", lambda path, mode: "home" not in Path(path).parts)
    after = find_cache.__wrapped__()
    assert after == tmp_path / "temporary" / f"rltune-{os.getuid()}" / before.name


def test_what_the_machine_code_depends_on_has_a_folder_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "engine" / "on_policy").mkdir(parents=True)
    (tmp_path / "engine" / "on_policy" / "ppo_loss.py").touch()
    folders = []
    for owner, name, value in (
        (compiler.metadata, "version", lambda name: "1"),
        (compiler.binding, "get_host_cpu_name", lambda: "another"),
        (compiler.sys, "version", "3.99"),
        (compiler, "ILLEGAL", -1.0),
        (compiler, "__file__", str(tmp_path / "engine" / "kernels" / "compiler.py")),
    ):
        with monkeypatch.context() as changed:
            changed.setattr(owner, name, value)
            find_cache.cache_clear()
            folders.append(find_cache())
    find_cache.cache_clear()
    folders.append(find_cache())
    find_cache.cache_clear()
    assert len(set(folders)) == 6
    assert {folder.parent for folder in folders if folder} == {tmp_path / "rltune"}


def test_a_full_disk_leaves_the_training_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(algorithm: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(compiler, "_warm_up", fail)
    find_missing_kernels.cache_clear()
    assert not load_kernels("ppo")
    assert "No space left" in str(find_missing_kernels("ppo"))
    find_missing_kernels.cache_clear()


def test_users_functions_keep_their_cache() -> None:
    load_kernels("ppo")
    assert "rltune" not in compiler.numba.config.CACHE_DIR


def test_nan_and_infinity_are_never_assumed_away() -> None:
    """LLVM drops such comparisons if it may."""
    assert not {"nnan", "ninf", "fast"} & FASTMATH

    @compiler.kernel
    def is_nan(x):  # type: ignore[no-untyped-def]
        return x != x

    assert is_nan(np.float32(np.nan))


def test_a_trials_threads_are_those_of_torch_and_of_the_products() -> None:
    from threadpoolctl import threadpool_info

    before = torch.get_num_threads()
    for threads in (2, 1):
        set_num_threads(threads)
        assert torch.get_num_threads() == threads
        built = [one for one in threadpool_info() if one.get("threading_layer") == "pthreads"]  # not OpenCV's
        assert {one["num_threads"] for one in built if one["internal_api"] == "openblas"} == {threads}
    torch.set_num_threads(before)


def test_without_numba_torch_trains(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    from rltune.engine import build_algorithm, prepare_kernels
    from tests.engine.engine_toy import ppo_config

    monkeypatch.setattr(compiler, "numba", None)
    find_missing_kernels.cache_clear()
    try:
        algorithm = build_algorithm(ppo_config())
        assert type(algorithm.loop.network).__name__ == "AutogradActorCritic"  # type: ignore[attr-defined]
        assert algorithm.train()["num_env_steps_sampled_lifetime"] > 0
        algorithm.stop()
        assert [r.name for r in caplog.records if r.levelname == "WARNING" and "torch trains" in r.message] == [
            "rltune.engine.kernels.compiler"
        ]
        assert len(prepare_kernels(ppo_config())) == 1, "the sweep's first lines say so"
    finally:
        find_missing_kernels.cache_clear()
