"""What NVIDIA's commands do, made up: `nvidia-smi -L` of a machine, and the MPS daemon with its journal."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

CUT = """GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d1c)
  MIG 3g.20gb     Device  0: (UUID: MIG-7fd5)
  MIG 1g.5gb      Device  1: (UUID: MIG-GPU-5d1c/1/0)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-91ac)
"""
# In the foreground until somebody says quit; it writes down how it was called.
DAEMON = """
if [ "$1" = -f ]; then
    echo "begins with $CUDA_VISIBLE_DEVICES, pid $$" >> "$JOURNAL"
    touch "$CUDA_MPS_PIPE_DIRECTORY/control"
    while [ ! -e "$CUDA_MPS_PIPE_DIRECTORY/quit" ]; do sleep 0.02; done
    echo ends >> "$JOURNAL"
else
    read word
    [ "$word" = quit ] && touch "$CUDA_MPS_PIPE_DIRECTORY/quit"
fi
"""


def put_tool(folder: Path, patch: pytest.MonkeyPatch, name: str, script: str) -> None:
    """Put a command before all others that there are."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
    patch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def put_mps(folder: Path, patch: pytest.MonkeyPatch, script: str = DAEMON) -> Path:
    """Have an MPS daemon that can be started where none runs; return its journal."""
    put_tool(folder / "bin", patch, "nvidia-cuda-mps-control", script)
    patch.setenv("JOURNAL", str(folder / "journal"))
    patch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(folder / "none"))
    return folder / "journal"


def put_smi(folder: Path, patch: pytest.MonkeyPatch, listed: str) -> None:
    """Have ``nvidia-smi -L`` list some GPUs."""
    (folder / "listed").write_text(listed)
    put_tool(folder / "smi", patch, "nvidia-smi", f'[ "$1" = -L ] && cat {folder / "listed"}')
