"""Made-up output of NVIDIA's commands: `nvidia-smi -L` of a machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

CUT = """GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d1c)
  MIG 3g.20gb     Device  0: (UUID: MIG-7fd5)
  MIG 1g.5gb      Device  1: (UUID: MIG-GPU-5d1c/1/0)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-91ac)
"""


def put_tool(folder: Path, patch: pytest.MonkeyPatch, name: str, script: str) -> None:
    """Put a command before all others that there are."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
    patch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def put_smi(folder: Path, patch: pytest.MonkeyPatch, listed: str) -> None:
    """Have ``nvidia-smi -L`` list some GPUs."""
    (folder / "listed").write_text(listed)
    put_tool(folder / "smi", patch, "nvidia-smi", f'[ "$1" = -L ] && cat {folder / "listed"}')
