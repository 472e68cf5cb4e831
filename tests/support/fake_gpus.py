"""A stand-in for ``torch.cuda`` of a GPU whose memory is only counted."""

from __future__ import annotations

from types import SimpleNamespace

import torch

GIB = 2**30


class FakeCuda:
    """Stands for ``torch.cuda`` in one process; it counts what is asked of it.

    Args:
        total: Bytes of the GPU.
        context: Bytes that CUDA itself takes of each process.
    """

    def __init__(self, total: int = 40 * GIB, context: int = GIB // 2) -> None:
        self.total, self.context, self.fraction = total, context, 1.0
        self.reserved = self.peak = 0
        self.is_begun = False
        self.emptied = self.others = 0

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return self.is_begun

    def get_device_properties(self, device: int) -> SimpleNamespace:
        self.is_begun = True
        return SimpleNamespace(total_memory=self.total)

    def set_per_process_memory_fraction(self, fraction: float, device: int) -> None:
        assert not self.reserved, "before the first tensor"
        self.is_begun, self.fraction = True, fraction

    def mem_get_info(self) -> tuple[int, int]:
        self.is_begun = True
        return self.total - self.context - self.reserved - self.others, self.total

    def memory_reserved(self) -> int:
        return self.reserved

    def max_memory_reserved(self) -> int:
        return self.peak

    def max_memory_allocated(self) -> int:
        return self.peak

    def reset_peak_memory_stats(self) -> None:
        self.peak = self.reserved

    def device_memory_used(self) -> int:
        """As NVML has it."""
        return self.taken + self.others

    def utilization(self) -> int:
        raise ModuleNotFoundError("nvidia-ml-py")

    def empty_cache(self) -> None:
        self.emptied += 1
        self.reserved = 0

    def allocate(self, size: int) -> None:
        """As a tensor of so many bytes."""
        self.is_begun = True
        if self.reserved + size > self.fraction * self.total:
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size / GIB:.2f} GiB. GPU 0 is full.")
        self.reserved += size
        self.peak = max(self.peak, self.reserved)

    @property
    def taken(self) -> int:
        """Bytes of the GPU that are not there for others."""
        return self.reserved + self.context * self.is_begun
