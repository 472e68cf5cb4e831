"""Keep a trial within its share of a GPU's memory, and report what it uses of the GPU.

Ray counts fractions of a GPU and stops nobody from taking all of it. Runs in the process that trains on the GPU.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

from rltune.formatting import first_line
from rltune.records import CROWDED, OUT_OF_MEMORY
from rltune.trial.metrics import GPU_MEMORY, GPU_USED, GPU_UTILISATION

CONTEXT_BYTES = 512 * 2**20  # CUDA's own in each process, which torch does not count; it differs by card and driver
LEAST = 0.5  # of a share is left to tensors, however small the card


def cap_memory(share: float, cuda: Any = None) -> None:
    """Let this process take no more of its GPU than its share, CUDA's context included.

    torch's allocator raises ``OutOfMemoryError`` beyond it, in this process alone. Call it before the first tensor.

    Args:
        share: The part of the GPU; with a whole one there is nobody to be spared.
        cuda: ``torch.cuda``; tests give another one.
    """
    if not 0 < share < 1:
        return
    if cuda is None:
        from torch import cuda
    if not cuda.is_available():
        return
    total: int = cuda.get_device_properties(0).total_memory  # the first that Ray lets this process see is its own
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
        with contextlib.suppress(Exception):  # torch raises errors of NVML and of its own
            numbers[name] = read() / unit
    return numbers


def describe_out_of_memory(error: BaseException, share: float, cuda: Any = None) -> str | None:
    """Say that a trial ran out of its GPU's memory; None where the error is another one.

    The text begins with `OUT_OF_MEMORY` where the trial is to blame, and with `CROWDED` where it has a whole GPU but
    other processes hold more of its memory than the trial does.

    Args:
        error: What training raised. Ray's own ``OutOfMemoryError`` is about the machine's memory, not a GPU's.
        share: The trial's part of its GPU.
        cuda: ``torch.cuda``; tests give another one.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(error, torch.OutOfMemoryError):
        return None
    is_crowded = not 0 < share < 1 and _is_held_by_others(cuda or torch.cuda)
    return f"{CROWDED if is_crowded else OUT_OF_MEMORY}, of which it had {share:g}: {first_line(str(error))[:300]}"


def _is_held_by_others(cuda: Any) -> bool:
    if not cuda.is_initialized():
        return False
    free, total = cuda.mem_get_info()
    reserved = cuda.memory_reserved()
    return bool(total - free - reserved - CONTEXT_BYTES > reserved)


def _find_cuda() -> Any:
    """Return ``torch.cuda`` where torch is imported already; toy trials do without."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch else None
