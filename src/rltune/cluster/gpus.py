"""Know NVIDIA's GPUs: which there are, and what they hold and do.

What they hold and do is read by NVML: the package nvidia-ml-py, in the extra ``gpu``. Without it, or without a driver,
nothing is read. NVML starts no CUDA, so that reading takes no memory of a GPU.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

MB = 1e6
VISIBLE = "CUDA_VISIBLE_DEVICES"
SLICE = "MIG-"  # how the UUID begins of a part of a card that is cut into some
logger = logging.getLogger("rltune")


def list_gpus() -> list[str]:
    """List the GPUs that this process may use, as ``CUDA_VISIBLE_DEVICES`` names them; by ``nvidia-smi`` without that.

    torch would take seconds to import. A card that is cut into slices is none of them, but its slices are: CUDA itself
    would see the first of those alone, and Ray one GPU (2.60).
    """
    visible = os.environ.get(VISIBLE)
    if visible is not None:
        return [name for name in map(str.strip, visible.split(",")) if name not in ("", "-1")]
    tool = shutil.which("nvidia-smi")
    if tool:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            return list(_list_by(tool))
    return []


@functools.cache
def _list_by(tool: str) -> tuple[str, ...]:
    listed = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=5, check=False).stdout
    cards: list[list[str]] = []
    for line in listed.splitlines():
        uuid = re.search(r"\(UUID: ([^)\s]+)\)", line)
        if line.startswith("GPU "):
            cards.append([uuid[1] if uuid else line.split()[1].rstrip(":")])
        elif line.strip().startswith("MIG ") and uuid and cards:
            cards[-1].append(uuid[1])
    return tuple(name for card, *slices in cards for name in slices or [card])


def show_slices() -> None:
    """Name the slices of this machine's cards to CUDA, to Ray and to NVML, which see whole cards by themselves."""
    if VISIBLE not in os.environ and has_slices():
        os.environ[VISIBLE] = ",".join(list_gpus())


def has_slices() -> bool:
    """Whether some of the GPUs are slices of a card."""
    return any(name.startswith(SLICE) for name in list_gpus())


@contextmanager
def open_nvml() -> Iterator[Any]:
    """Open NVML, and yield None where there is none."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception as error:  # no package, no driver, or one that does not answer
        logger.debug("no GPU is read: %s", error)
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


@dataclass(frozen=True)
class GpuState:
    """What a GPU holds and does at one moment; NaN for what it does not tell.

    Attributes:
        name: Its number, as ``nvidia-smi`` has it; its place in ``CUDA_VISIBLE_DEVICES`` where that names it by UUID.
        used_mb: Memory in use, by whomever.
        total_mb: All its memory.
        utilisation: Percent of the last moments in which something ran on it.
        temperature: In degrees Celsius.
    """

    name: int
    used_mb: float
    total_mb: float
    utilisation: float
    temperature: float

    def __str__(self) -> str:
        parts = [f"GPU {self.name}: {self.used_mb / 1e3:.1f} of {self.total_mb / 1e3:.1f} GB"]
        parts += [f"{self.utilisation:.0f}% busy"] * math.isfinite(self.utilisation)
        parts += [f"{self.temperature:.0f} °C"] * math.isfinite(self.temperature)
        return ", ".join(parts)


def list_devices(nvml: Any) -> dict[int, Any]:
    """List NVML's handles of the GPUs that this process may use, by name (see `GpuState`)."""
    visible = os.environ.get(VISIBLE)
    count = _ask(nvml, nvml.nvmlDeviceGetCount) or 0
    wanted = range(count) if visible is None else filter(None, map(str.strip, visible.split(",")))
    found: dict[int, Any] = {}
    for place, one in enumerate(map(str, wanted)):
        try:
            if one.isdigit():
                found[int(one)] = nvml.nvmlDeviceGetHandleByIndex(int(one))
            else:
                found[place] = nvml.nvmlDeviceGetHandleByUUID(one)
        except nvml.NVMLError as error:
            logger.debug("the GPU %s is not watched: %s", one, error)
    return found


def read_state(nvml: Any, name: int, device: Any) -> GpuState | None:
    """Read what a GPU holds and does; None where it does not even tell its memory."""
    memory = _ask(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(device))
    if memory is None:
        return None
    rates = _ask(nvml, lambda: nvml.nvmlDeviceGetUtilizationRates(device))  # a MIG slice does not know
    temperature = _ask(nvml, lambda: nvml.nvmlDeviceGetTemperature(device, nvml.NVML_TEMPERATURE_GPU))
    return GpuState(
        name,
        memory.used / MB,
        memory.total / MB,
        math.nan if rates is None else float(rates.gpu),
        math.nan if temperature is None else float(temperature),
    )


def _ask(nvml: Any, question: Callable[[], Any]) -> Any:
    try:
        return question()
    except nvml.NVMLError:
        return None
