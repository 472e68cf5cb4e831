"""Read what NVIDIA's GPUs hold and do, by NVML: the package nvidia-ml-py, in the extra ``gpu``.

Without it, or without a driver, nothing is read. NVML starts no CUDA, so that reading takes no memory of a GPU.
"""

from __future__ import annotations

import logging
import math
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

EVERY_S = 5.0  # between two looks; one takes about a millisecond a GPU
MB = 1e6
logger = logging.getLogger("rltune")


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


def read_total_bytes() -> int | None:
    """Return the memory of the first GPU that this process may use, its own in a worker; None where it is not known."""
    with open_nvml() as nvml:
        devices = list_devices(nvml) if nvml else {}
        first = read_state(nvml, *next(iter(devices.items()))) if devices else None
        return int(first.total_mb * MB) if first else None


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

    def to_metrics(self) -> dict[str, float]:
        """Return it by the names that MLflow itself gives such metrics, and shows on its page of system metrics."""
        prefix = f"system/gpu_{self.name}_"
        return {
            f"{prefix}memory_usage_megabytes": self.used_mb,
            f"{prefix}memory_usage_percentage": 100 * self.used_mb / self.total_mb,
            f"{prefix}utilization_percentage": self.utilisation,
            f"{prefix}temperature_celsius": self.temperature,
        }


class GpuWatch:
    """Looks at this machine's GPUs every few seconds, in a thread: a driver that hangs must not hold up the sweep.

    Args:
        show: Is called with each look's states and its time, in seconds of the epoch; never without a GPU.
    """

    def __init__(self, show: Callable[[Sequence[GpuState], float], None]) -> None:
        self._show = show
        self._looks: queue.SimpleQueue[tuple[Sequence[GpuState], float]] = queue.SimpleQueue()
        self._closed = threading.Event()

    def __enter__(self) -> GpuWatch:
        """Begin to look."""
        threading.Thread(target=self._follow, name="rltune-gpus", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Look no more."""
        self._closed.set()

    def tick(self) -> None:
        """Show what was seen since the last call, in the thread of who calls."""
        for _ in range(self._looks.qsize()):
            self._show(*self._looks.get())

    def _follow(self) -> None:
        try:
            with open_nvml() as nvml:
                devices = list_devices(nvml) if nvml else {}
                while devices and not self._closed.is_set():
                    states = [read_state(nvml, name, device) for name, device in devices.items()]
                    self._looks.put(([state for state in states if state], time.time()))
                    self._closed.wait(EVERY_S)
        except Exception:  # a card that falls off its bus, say: a traceback would be printed over the table
            logger.debug("the GPUs are watched no more", exc_info=True)


def list_devices(nvml: Any) -> dict[int, Any]:
    """List NVML's handles of the GPUs that this process may use, by name (see `GpuState`)."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
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
