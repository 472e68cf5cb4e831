"""Keep a trial within its share of a GPU's memory, and say what it asked for where that was too little.

Ray counts fractions of a GPU and stops nobody from taking all of it. Runs in the process that trains on the GPU.
"""

from __future__ import annotations

import re
from typing import Any

from rltune.records import CROWDED, OUT_OF_MEMORY

CONTEXT_BYTES = 512 * 2**20  # CUDA's own in each process, which torch does not count; it differs by card and driver
LEAST = 0.5  # of a share is left to tensors, however small the card
# What the driver and its libraries say where they refuse memory.
REFUSALS = ("CUDA error: out of memory", "STATUS_ALLOC_FAILED")
_AMOUNT = r"([\d.]+ (?:GiB|MiB|KiB|bytes))"
_SAID = {  # in torch's message (2.13)
    "asked for": r"Tried to allocate #",
    "held": r"Of the allocated memory # is allocated",
    "limit": r"# allowed",
    "the GPU has": r"total capacity of #",
    "free": r"of which # is free",
}
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


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
    """Give back what torch keeps of a trial that has ended, for the next one of this process and for its neighbours."""
    if cuda is None:
        from torch import cuda
    if cuda.is_initialized():
        cuda.empty_cache()


def describe_out_of_memory(error: BaseException, share: float) -> str | None:
    """Say how much a trial asked of its GPU and how much there was; None where the error is another one.

    It begins with `OUT_OF_MEMORY` where the trial went beyond its part or what the whole GPU has, and with `CROWDED`
    where it did neither: others hold the rest.

    Args:
        error: What training raised. Ray's own ``OutOfMemoryError`` is about the machine's memory, not a GPU's.
        share: The trial's part of its GPU.
    """
    kinds = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(error).__mro__}
    text = str(error).strip()
    if ("torch", "OutOfMemoryError") not in kinds and not any(words in text for words in REFUSALS):
        return None
    found = {name: re.search(pattern.replace("#", _AMOUNT), text) for name, pattern in _SAID.items()}
    said = {name: match[1] for name, match in found.items() if match}
    what = OUT_OF_MEMORY if 0 < share < 1 or "limit" in said or _exceeds_gpu(text, said) else CROWDED
    return (
        f"{what}, of which it had {share:g}: {', '.join(f'{one} {much}' for one, much in said.items()) or text[:200]}"
    )


def _exceeds_gpu(text: str, said: dict[str, str]) -> bool:
    """Whether a process would have more than its GPU has, were it alone there; False where torch does not say."""
    uses = re.search(rf"this process has {_AMOUNT} memory in use", text)
    if uses is None or not {"asked for", "the GPU has"} <= said.keys():
        return False
    return _count_bytes(uses[1]) + _count_bytes(said["asked for"]) > _count_bytes(said["the GPU has"])


def _count_bytes(amount: str) -> float:
    number, unit = amount.split()
    return float(number) * _UNITS[unit]
