"""A trial's part of a GPU's memory, against an allocator that counts."""

from __future__ import annotations

import pytest
import torch
from fake_cuda import GIB, FakeCuda
from hog import MESSAGE

from rltune.records import CROWDED, OUT_OF_MEMORY, TrialRecord
from rltune.trial.gpu_memory import cap_memory, describe_out_of_memory, free_memory
from rltune.trial.trainable import describe_exception


def fill(cuda, size=GIB // 16):
    """Allocate until it is refused."""
    try:
        while True:
            cuda.allocate(size)
    except torch.OutOfMemoryError:
        return


@pytest.mark.parametrize("trials", [2, 3, 4, 8, 16])
def test_trials_that_fill_their_shares_fit_on_the_card(trials):
    cards = [FakeCuda() for _ in range(trials)]  # one process each; the card is the sum of them
    for cuda in cards:
        cap_memory(1 / trials, cuda)
        fill(cuda)
    assert sum(cuda.taken for cuda in cards) <= cards[0].total
    assert min(cuda.reserved for cuda in cards) > 0.75 * cards[0].total / trials


def test_a_trial_on_a_card_of_its_own_is_not_limited():
    for share in (0.0, 1.0, 2.0):
        cuda = FakeCuda()
        cap_memory(share, cuda)
        assert (cuda.fraction, cuda.is_begun) == (1.0, False)


def test_a_small_card_leaves_half_a_share_to_tensors():
    cuda = FakeCuda(total=2 * GIB)
    cap_memory(0.25, cuda)
    assert cuda.fraction == 0.125


def test_nothing_is_limited_without_a_gpu():
    cap_memory(0.25)
    free_memory()


def test_what_a_trial_kept_is_given_back_when_it_ends():
    cuda = FakeCuda()
    free_memory(cuda)
    assert not cuda.emptied, "asking would begin CUDA in a process that had none"
    cuda.allocate(GIB)
    free_memory(cuda)
    assert cuda.emptied == 1


def test_an_out_of_memory_error_says_what_was_asked_and_what_there_was():
    assert describe_out_of_memory(torch.OutOfMemoryError(MESSAGE), 0.25) == (
        f"{OUT_OF_MEMORY}, of which it had 0.25: asked for 2.00 GiB, held 33.10 GiB, limit 34.43 GiB, "
        "the GPU has 139.72 GiB, free 90.00 GiB"
    )


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("something new"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
)
def test_other_words_for_it_are_known_and_kept(error):
    assert describe_out_of_memory(error, 0.5) == f"{OUT_OF_MEMORY}, of which it had 0.5: {error}"


def say_whole(in_use: str) -> torch.OutOfMemoryError:
    """As torch 2.13 says it of a process that nothing limits."""
    return torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 40.00 GiB of which 512.00 MiB "
        f"is free. Including non-PyTorch memory, this process has {in_use} memory in use. Of the allocated memory 3.00 "
        "GiB is allocated by PyTorch, and 12.00 MiB is reserved by PyTorch but unallocated."
    )


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (say_whole("3.50 GiB"), CROWDED),
        (say_whole("900.00 MiB"), CROWDED),
        (say_whole("38.50 GiB"), OUT_OF_MEMORY),
        (RuntimeError("CUDA error: out of memory"), CROWDED),
    ],
)
def test_a_trial_on_a_gpu_that_others_fill_is_not_to_blame(error, what):
    described = describe_exception(error, 100, gpus=1.0)
    record = TrialRecord(0, "FAIL", {}, stop_reason=described["failed"])
    is_own = what == OUT_OF_MEMORY
    assert described["failed"].startswith(f"{what}, of which it had 1: ")
    assert (described["outgrew"], record.is_infeasible) == (is_own, is_own)


def test_another_error_is_none_of_a_gpus_memory():
    machine_is_full = type("OutOfMemoryError", (Exception,), {"__module__": "ray.exceptions"})("the machine is full")
    for error in (machine_is_full, MemoryError(), RuntimeError("shapes cannot be multiplied")):
        assert describe_out_of_memory(error, 0.5) is None
