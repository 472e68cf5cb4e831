"""What the driver sees of its GPUs, by an NVML that is made up."""

from __future__ import annotations

import math
import os
import sys

import pytest
from fake_gpus import FakeNvml

from rltune.cluster.gpus import (
    list_devices,
    list_gpus,
    open_nvml,
    read_state,
)
from rltune.cluster.ray_cluster import prepare_environment
from rltune.cluster.resources import local_machine
from rltune.config.schema import ClusterConfig
from tests.cluster.nvidia_tools import CUT, put_smi


@pytest.fixture
def nvml(monkeypatch):
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return fake


def test_a_gpu_says_what_it_holds_and_does(nvml):
    state = read_state(nvml, 0, 0)
    assert (state.used_mb, state.total_mb, state.utilisation, state.temperature) == (10_000, 80_000, 45, 61)


@pytest.mark.parametrize(
    ("visible", "names"), [(None, [0, 1]), ("1", [1]), ("", []), ("-1", []), ("5,0", [0]), ("MIG-7,MIG-9", [0])]
)
def test_only_gpus_that_this_process_may_use_are_watched(nvml, monkeypatch, visible, names):
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert list(list_devices(nvml)) == names


def test_a_slice_tells_its_memory_alone(nvml, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-7")
    state = read_state(nvml, 0, "MIG-7")
    assert (state.used_mb, state.total_mb) == (1, 10_000)
    assert math.isnan(state.utilisation)
    assert math.isnan(state.temperature)


def test_without_nvml_or_a_driver_nothing_is_read(monkeypatch):
    for module in (None, FakeNvml()):
        monkeypatch.setitem(sys.modules, "pynvml", module)
        if module:
            monkeypatch.setattr(module, "nvmlInit", lambda: 1 / 0)
        with open_nvml() as nvml:
            assert nvml is None


def test_a_driver_that_counts_no_gpus_fails_no_trial(nvml, monkeypatch):
    def refuse():
        raise nvml.NVMLError("Unknown Error")

    monkeypatch.setattr(nvml, "nvmlDeviceGetCount", refuse)
    assert list_devices(nvml) == {}


@pytest.fixture
def visible(monkeypatch):
    """Nothing is said of which GPUs are visible, and what the test makes of it is forgotten."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")


def test_slices_of_a_card_are_gpus_of_their_own(tmp_path, monkeypatch, visible):
    put_smi(tmp_path, monkeypatch, CUT)
    assert list_gpus() == ["MIG-7fd5", "MIG-GPU-5d1c/1/0", "GPU-91ac"], "not the card that is cut"
    assert local_machine().gpus == 3
    prepare_environment(ClusterConfig(address="10.0.0.1:6379"))
    assert "CUDA_VISIBLE_DEVICES" not in os.environ, "a cluster's nodes have their own"
    prepare_environment()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "MIG-7fd5,MIG-GPU-5d1c/1/0,GPU-91ac", "Ray hands out what stands there"
    assert local_machine().gpus == 3


def test_whole_cards_keep_the_numbers_that_they_have(tmp_path, monkeypatch, visible):
    put_smi(tmp_path, monkeypatch, "GPU 0: NVIDIA H200 (UUID: GPU-1)\nGPU 1: NVIDIA H200 (UUID: GPU-2)\n")
    prepare_environment()
    assert (local_machine().gpus, os.environ.get("CUDA_VISIBLE_DEVICES")) == (2, None)


def test_ray_gives_each_trial_the_slice_that_it_names(monkeypatch):
    """What a worker of Ray's does with the list, by Ray's own code."""
    from ray._private.accelerators.nvidia_gpu import NvidiaGPUAcceleratorManager as Nvidia

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-7fd5,MIG-GPU-5d1c/1/0")
    names = Nvidia.get_current_process_visible_accelerator_ids()
    Nvidia.set_current_process_visible_accelerator_ids(names[1:])
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "MIG-GPU-5d1c/1/0"
