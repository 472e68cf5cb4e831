"""Read what NVIDIA's GPUs hold and do, by NVML: the package nvidia-ml-py, in the extra ``gpu``.

Without it, or without a driver, nothing is read. NVML starts no CUDA, so that reading takes no memory of a GPU.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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


def find_device(nvml: Any) -> Any:
    """Find NVML's handle of the first GPU that this process may use, which is its own in a worker of Ray's."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0].strip()
    return nvml.nvmlDeviceGetHandleByIndex(int(first)) if first.isdigit() else nvml.nvmlDeviceGetHandleByUUID(first)


def read_total_bytes() -> int | None:
    """Return the memory of the first GPU that this process may use; None where it cannot be read."""
    with open_nvml() as nvml:
        try:
            return int(nvml.nvmlDeviceGetMemoryInfo(find_device(nvml)).total) if nvml else None
        except nvml.NVMLError as error:
            logger.debug("the GPU's memory cannot be read", exc_info=error)
            return None
