"""Limit a trial to its share of a GPU's memory, and measure how much of the GPU it uses.

Ray counts fractions of a GPU and stops nobody from taking all of it. Runs in the process that trains on the GPU.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any, NamedTuple

from rltune.formatting import first_line
from rltune.records import OUT_OF_MEMORY
from rltune.trial.metrics import GPU_MEMORY, GPU_USED, GPU_UTILISATION

# The CUDA context takes about this much memory in each process, which torch's statistics do not include.
CONTEXT_BYTES = 512 * 2**20
LEAST = 0.5  # However small the GPU is, tensors may use at least this fraction of a trial's share.
MARGIN = 1.15  # A safety factor on the measured memory, because other parameters or later iterations may need more.
MAX_PER_GPU = 16  # More trials per GPU than this have not been measured to be faster.


class GpuUse(NamedTuple):
    """The GPU memory that one trial uses, in bytes.

    Attributes:
        tensors: Memory that torch reserved at its peak.
        context: The rest of the used memory: CUDA's own, and that of other programs.
        total: Memory of the GPU.
    """

    tensors: int
    context: int
    total: int

    @property
    def needed(self) -> float:
        """The memory to reserve for a trial: the peak of its tensors with a safety margin, and the CUDA context."""
        return MARGIN * self.tensors + max(self.context, CONTEXT_BYTES)

    def count_trials(self, cpus: float) -> int:
        """Count how many trials can share the GPU, given memory and CPUs: from one to `MAX_PER_GPU`.

        Args:
            cpus: CPUs for each GPU, as a multiple of a trial's. A trial steps its environments and launches kernels.
        """
        return max(1, min(int(self.total // self.needed), int(cpus), MAX_PER_GPU))

    def __str__(self) -> str:
        parts = f"{self.tensors / 1e9:.3g} GB of tensors, {self.context / 1e9:.3g} GB beside them"
        needed = f"{self.needed / 1e9:.3g} of {self.total / 1e9:.3g} GB"
        return f"a trial takes {needed} ({parts}, {MARGIN - 1:.0%} to spare)"


def read_gpu_use(cuda: Any) -> GpuUse:
    """Measure the GPU memory that this process uses; ``cuda`` is ``torch.cuda``."""
    free, total = cuda.mem_get_info()
    return GpuUse(cuda.max_memory_reserved(), total - free - cuda.memory_reserved(), total)


def cap_memory(share: float, cuda: Any = None) -> None:
    """Limit the GPU memory of this process to its share, which includes the CUDA context.

    torch's allocator raises ``OutOfMemoryError`` beyond it, in this process alone. Call it before the first tensor.

    Args:
        share: The part of the GPU. A whole GPU needs no limit.
        cuda: ``torch.cuda``; tests give another one.
    """
    if not 0 < share < 1:
        return
    if cuda is None:
        from torch import cuda
    if not cuda.is_available():
        return
    # Ray sets CUDA_VISIBLE_DEVICES, so device 0 is the trial's own GPU.
    total: int = cuda.get_device_properties(0).total_memory
    cuda.set_per_process_memory_fraction(max(share - CONTEXT_BYTES / total, LEAST * share), 0)


def free_memory(cuda: Any = None) -> None:
    """Free torch's cached GPU memory after a trial, and reset the peak that torch reports for the next trial."""
    cuda = cuda or _find_cuda()
    if cuda and cuda.is_initialized():
        cuda.empty_cache()
        cuda.reset_peak_memory_stats()


def measure_gpu(cuda: Any = None) -> dict[str, float]:
    """Measure the GPU memory and utilisation of this process and its GPU, as metrics of `rltune.trial.metrics`.

    Returns:
        Empty in a process that uses no GPU. Without the package nvidia-ml-py there is only this process's own peak, and
        a MIG slice has no utilisation.
    """
    cuda = cuda or _find_cuda()
    if not cuda or not cuda.is_initialized():
        return {}
    numbers = {GPU_MEMORY: cuda.max_memory_allocated() / 1e6}
    for name, read, unit in ((GPU_USED, cuda.device_memory_used, 1e6), (GPU_UTILISATION, cuda.utilization, 1)):
        # torch raises NVML's errors as well as its own; without a measurement, the metric is left out.
        with contextlib.suppress(Exception):
            numbers[name] = read() / unit
    return numbers


def describe_out_of_memory(error: BaseException, share: float) -> str | None:
    """Describe an out-of-memory error of the GPU, beginning with `OUT_OF_MEMORY`; return None for any other error.

    Args:
        error: What training raised. Ray's own ``OutOfMemoryError`` is about the machine's memory, not a GPU's.
        share: The trial's part of its GPU.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(error, torch.OutOfMemoryError):
        return None
    return f"{OUT_OF_MEMORY}, of which it had {share:g}: {first_line(str(error))[:300]}"


def _find_cuda() -> Any:
    """Return ``torch.cuda`` if torch was imported; trials without a network need no torch."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch else None
