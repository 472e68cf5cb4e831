"""A trial's part of a GPU's memory, against an allocator that counts."""

from __future__ import annotations

import re

import pytest
import torch
from fake_gpus import GIB, FakeCuda

from rltune.records import OUT_OF_MEMORY
from rltune.trial.gpu_memory import (
    GpuUse,
    cap_memory,
    describe_out_of_memory,
    free_memory,
    measure_gpu,
    read_gpu_use,
)
from rltune.trial.metrics import GPU_MEMORY, GPU_USED, GPU_UTILISATION
from rltune.trial.trainable import describe_failure


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


def test_an_out_of_memory_error_is_known_by_its_type():
    described = describe_failure(torch.cuda.OutOfMemoryError("unheard-of"), 100, gpus=0.5)
    assert described["cause"] == "out of memory"
    assert described["failed"].startswith(OUT_OF_MEMORY)
    assert described["failed"].endswith(" 0.5: unheard-of")


def test_a_trial_reports_what_it_and_its_gpu_use():
    cuda = FakeCuda()
    assert measure_gpu(cuda) == {}, "asking would begin CUDA in a process that uses none"
    cuda.allocate(GIB)
    assert measure_gpu(cuda) == {GPU_MEMORY: GIB / 1e6, GPU_USED: 1.5 * GIB / 1e6}
    free_memory(cuda)
    cuda.allocate(GIB // 2)
    assert measure_gpu(cuda)[GPU_MEMORY] == GIB / 2e6, "each trial has a peak of its own"
    cuda.utilization = lambda: 45
    assert measure_gpu(cuda)[GPU_UTILISATION] == 45


def test_another_error_is_none_of_a_gpus_memory():
    machine_is_full = type("OutOfMemoryError", (Exception,), {"__module__": "ray.exceptions"})("the machine is full")
    for error in (machine_is_full, MemoryError(), RuntimeError("CUDA error: out of memory")):
        assert describe_out_of_memory(error, 0.5) is None


USE = GpuUse(tensors=3 * GIB, context=GIB // 2, total=40 * GIB)


def test_a_trial_is_measured_at_its_peak_with_cudas_own_memory():
    cuda = FakeCuda()
    cuda.allocate(3 * GIB)
    cuda.reserved -= GIB
    assert read_gpu_use(cuda) == USE
    assert [float(number) for number in re.findall(r"\d+(?:\.\d+)?", str(USE))] == [4.24, 42.9, 3.22, 0.537, 15]


@pytest.mark.parametrize(
    ("use", "cpus", "trials"),
    [
        (USE, 64, 10),  # 10 x 3.95 GiB
        (USE, 6.5, 6),
        (USE, 0.5, 1),
        (USE._replace(tensors=GIB // 64), 64, 16),
        (USE._replace(tensors=39 * GIB), 64, 1),
    ],
)
def test_memory_cpus_and_sixteen_limit_how_many_share_a_gpu(use, cpus, trials):
    assert use.count_trials(cpus) == trials


@pytest.mark.parametrize("card", [4 * GIB, 8 * GIB, 40 * GIB])
@pytest.mark.parametrize("tensors", [GIB // 64, 0.3 * GIB, 0.8 * GIB, 3 * GIB])
@pytest.mark.parametrize("context", [0, GIB // 5, 0.9 * GIB])
def test_a_share_holds_what_was_measured_under_its_cap(card, tensors, context):
    use = GpuUse(int(tensors), int(context), card)
    cuda = FakeCuda(card)
    cap_memory(1 / use.count_trials(64), cuda)
    cuda.allocate(use.tensors)
