"""Keep a trial within its share of a GPU's memory, and report what it uses of the GPU.

Ray counts fractions of a GPU and stops nobody from taking all of it. Runs in the process that trains on the GPU.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any, NamedTuple

from rltune.formatting import first_line
from rltune.records import OUT_OF_MEMORY
from rltune.trial.metrics import GPU_MEMORY, GPU_USED, GPU_UTILISATION

CONTEXT_BYTES = 512 * 2**20  # CUDA itself takes about this much in each process, which torch does not count.
LEAST = 0.5  # Tensors get at least this part of a share, however small the GPU is.
MARGIN = 1.15  # The measured memory is multiplied by this factor: later iterations and other values may need more.
MAX_PER_GPU = 16  # No measurement shows that more trials on a GPU pay off.


class GpuUse(NamedTuple):
    """The memory that one trial takes of a GPU, in bytes.

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
        """Memory to give to a trial, with a margin; `cap_memory` leaves enough of it to the tensors."""
        return MARGIN * self.tensors + max(self.context, CONTEXT_BYTES)

    def count_trials(self, cpus: float) -> int:
        """Count the trials that share the GPU: as memory and CPUs allow, at least one, at most `MAX_PER_GPU`.

        Args:
            cpus: CPUs for each GPU, as a multiple of a trial's. A trial steps its environments and launches kernels.
        """
        return max(1, min(int(self.total // self.needed), int(cpus), MAX_PER_GPU))

    def __str__(self) -> str:
        parts = f"{self.tensors / 1e9:.3g} GB of tensors, {self.context / 1e9:.3g} GB beside them"
        needed = f"{self.needed / 1e9:.3g} of {self.total / 1e9:.3g} GB"
        return f"a trial takes {needed} ({parts}, {MARGIN - 1:.0%} to spare)"


def read_gpu_use(cuda: Any) -> GpuUse:
    """Read what this process has taken of its GPU; ``cuda`` is ``torch.cuda``."""
    free, total = cuda.mem_get_info()
    return GpuUse(cuda.max_memory_reserved(), total - free - cuda.memory_reserved(), total)


def cap_memory(share: float, cuda: Any = None) -> None:
    """Let this process take no more of its GPU than its share, CUDA's context included.

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
    total: int = cuda.get_device_properties(0).total_memory  # Ray shows this process only its own GPU.
    cuda.set_per_process_memory_fraction(max(share - CONTEXT_BYTES / total, LEAST * share), 0)


def free_memory(cuda: Any = None) -> None:
    """Return the memory that torch keeps of a trial that has ended, and let the next trial have a peak of its own."""
    cuda = cuda or _find_cuda()
    if cuda and cuda.is_initialized():
        cuda.empty_cache()
        cuda.reset_peak_memory_stats()


def measure_gpu(cuda: Any = None) -> dict[str, float]:
    """Measure what this process and its GPU use, by the names of `rltune.trial.metrics`.

    Returns:
        Empty in a process that uses no GPU. Without the package nvidia-ml-py there is only this process's own peak, and
        a MIG slice has no utilisation.
    """
    cuda = cuda or _find_cuda()
    if not cuda or not cuda.is_initialized():
        return {}
    numbers = {GPU_MEMORY: cuda.max_memory_allocated() / 1e6}
    for name, read, unit in ((GPU_USED, cuda.device_memory_used, 1e6), (GPU_UTILISATION, cuda.utilization, 1)):
        with contextlib.suppress(Exception):  # torch raises both NVML's errors and its own.
            numbers[name] = read() / unit
    return numbers


def describe_out_of_memory(error: BaseException, share: float) -> str | None:
    """Describe that a trial ran out of its GPU's memory, beginning with `OUT_OF_MEMORY`; None for another error.

    Args:
        error: What training raised. Ray's own ``OutOfMemoryError`` is about the machine's memory, not a GPU's.
        share: The trial's part of its GPU.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(error, torch.OutOfMemoryError):
        return None
    return f"{OUT_OF_MEMORY}, of which it had {share:g}: {first_line(str(error))[:300]}"


def _find_cuda() -> Any:
    """Return ``torch.cuda`` where torch is imported already; toy trials do without."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch else None
