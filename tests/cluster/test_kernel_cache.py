"""The folder of the machine code."""

from __future__ import annotations

from pathlib import Path

import pytest

from rltune.cluster import kernel_cache


def test_another_version_has_another_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folders = set()
    for version in ("1", "2"):
        monkeypatch.setattr(kernel_cache.metadata, "version", lambda name, version=version: version)
        kernel_cache.find_kernel_cache.cache_clear()
        folders.add(kernel_cache.find_kernel_cache())
    assert len(folders) == 2
    assert {folder.parent for folder in folders} == {tmp_path / "rltune"}
    folder = kernel_cache.find_kernel_cache()
    assert not kernel_cache.are_kernels_compiled()
    folder.mkdir(parents=True)
    (folder / kernel_cache.COMPLETE).touch()
    assert kernel_cache.are_kernels_compiled()
    kernel_cache.find_kernel_cache.cache_clear()
