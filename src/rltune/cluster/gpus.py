"""Know NVIDIA's GPUs: which there are, what they hold and do, and whether programs share them side by side.

What they hold and do is read by NVML: the package nvidia-ml-py, in the extra ``gpu``. Without it, or without a driver,
nothing is read. NVML starts no CUDA, so that reading takes no memory of a GPU.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
import queue
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from rltune.errors import ResourceError

EVERY_S = 5.0  # between two looks; one takes about a millisecond a GPU
MB = 1e6
VISIBLE = "CUDA_VISIBLE_DEVICES"
SLICE = "MIG-"  # how the UUID begins of a part of a card that is cut into some
MPS, MPS_PIPE = "nvidia-cuda-mps-control", "CUDA_MPS_PIPE_DIRECTORY"
MPS_S = 10.0  # for its daemon to begin, and to end
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


def find_mps() -> Path | None:
    """Find the folder by which clients reach a daemon of NVIDIA's Multi-Process Service; None where none runs here."""
    folder = Path(os.environ.get(MPS_PIPE, "/tmp/nvidia-mps"))  # noqa: S108  the daemon's own choice
    return folder if (folder / "control").exists() else None


@contextmanager
def start_mps() -> Iterator[None]:
    """Have programs share GPUs side by side while this lasts: by the MPS daemon that runs, or by one of our own.

    Ours has a folder of its own, which the processes that we start find in their environment. It leads a session, so
    that Ctrl-C does not end it before the trials, and so that what a killed driver leaves is found.

    Raises:
        ResourceError: There is no daemon to start, or it does not begin.
    """
    if find_mps():
        yield
        return
    tool, before = shutil.which(MPS), os.environ.get(MPS_PIPE)
    if tool is None:
        raise _make_mps_error(f"{MPS} is not installed here")
    if has_slices():
        raise _make_mps_error("each slice of a card needs a daemon of its own")
    with tempfile.TemporaryDirectory(prefix="rltune-mps-", ignore_cleanup_errors=True) as folder:
        settings = {MPS_PIPE: folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        environment = {name: value for name, value in os.environ.items() if name != VISIBLE} | settings
        with (Path(folder) / "output").open("w+") as output:
            daemon = subprocess.Popen(
                [tool, "-f"], env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
            try:
                os.environ[MPS_PIPE] = folder
                _await_mps(daemon, Path(folder))
                yield
            finally:
                os.environ.pop(MPS_PIPE)
                os.environ.update({MPS_PIPE: before} if before is not None else {})
                _end_mps(daemon, tool, environment)


def _await_mps(daemon: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + MPS_S
    while find_mps() is None:
        if daemon.poll() is not None or time.monotonic() > deadline:
            said = (folder / "output").read_text(errors="replace").strip().splitlines() or ["it said nothing"]
            raise _make_mps_error(f"its daemon does not begin: {said[-1][:200]}")
        time.sleep(0.02)


def _end_mps(daemon: subprocess.Popen[bytes], tool: str, environment: dict[str, str]) -> None:
    """Have the daemon end itself and the server that it has started; or end them."""
    if daemon.poll() is None:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run([tool], input=b"quit\n", env=environment, capture_output=True, timeout=MPS_S, check=False)
            daemon.wait(MPS_S)
    if daemon.poll() is None:
        os.killpg(daemon.pid, signal.SIGKILL)
        daemon.wait()


def _make_mps_error(why: str) -> ResourceError:
    return ResourceError(
        f"resources.mps=true: {why}",
        "a machine with NVIDIA's Multi-Process Service, or GPUs whose trials take turns",
        "resources.mps=false",
    )


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
