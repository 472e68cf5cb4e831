"""What the driver sees of its GPUs, by an NVML that is made up."""

from __future__ import annotations

import os
import sys
import threading
import time

import pytest
from fake_nvml import FakeNvml
from nvidia_tools import CUT, put_smi

from rltune.cluster import gpus
from rltune.cluster.gpus import (
    EVERY_S,
    GpuState,
    GpuWatch,
    list_devices,
    list_gpus,
    read_state,
)
from rltune.cluster.ray_cluster import prepare_environment
from rltune.cluster.resources import local_machine
from rltune.config.schema import ClusterConfig


@pytest.fixture
def nvml(monkeypatch):
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return fake


def wait_until(is_so):
    deadline = time.monotonic() + 10
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.005)
    assert is_so()


def test_a_gpu_is_shown_and_logged_under_mlflows_own_names(nvml):
    state = read_state(nvml, 0, 0)
    assert str(state) == "GPU 0: 10.0 of 80.0 GB, 45% busy, 61 °C"
    assert state.to_metrics() == {
        "system/gpu_0_memory_usage_megabytes": 10_000,
        "system/gpu_0_memory_usage_percentage": 12.5,
        "system/gpu_0_utilization_percentage": 45,
        "system/gpu_0_temperature_celsius": 61,
    }


@pytest.mark.parametrize(
    ("visible", "names"), [(None, [0, 1]), ("1", [1]), ("", []), ("-1", []), ("5,0", [0]), ("MIG-7,MIG-9", [0])]
)
def test_only_gpus_that_this_process_may_use_are_watched(nvml, monkeypatch, visible, names):
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert list(list_devices(nvml)) == names


def test_a_slice_tells_its_memory_alone(nvml, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-7")
    assert str(read_state(nvml, 0, "MIG-7")) == "GPU 0: 0.0 of 10.0 GB"


def test_gpus_are_looked_at_in_a_thread_and_shown_in_ours(nvml, monkeypatch):
    monkeypatch.setattr(gpus, "EVERY_S", 0.01)
    seen: list[tuple[str, ...]] = []
    with GpuWatch(lambda states, time_s: seen.append(tuple(map(str, states)))) as watch:
        wait_until(lambda: nvml.num_looks >= 6)
        assert not seen, "a look is shown when the driver has time"
        watch.tick()
        assert set(seen) == {("GPU 0: 10.0 of 80.0 GB, 45% busy, 61 °C", "GPU 1: 0.5 of 80.0 GB, 46% busy, 61 °C")}
        assert len(seen) >= 3
    assert nvml.threads == {"rltune-gpus"}
    wait_until(lambda: nvml.num_open == 0)


def test_a_look_costs_the_driver_under_a_hundredth_of_a_core(nvml):
    """What is ours of it: the answers themselves are the driver's of the card."""
    began = time.thread_time()
    for _ in range(100):
        [read_state(nvml, name, device).to_metrics() for name, device in list_devices(nvml).items()]
    assert (time.thread_time() - began) / 100 < 0.01 * EVERY_S


def test_without_nvml_or_a_driver_nothing_is_watched(monkeypatch):
    for module in (None, FakeNvml()):
        monkeypatch.setitem(sys.modules, "pynvml", module)
        if module:
            monkeypatch.setattr(module, "nvmlInit", lambda: 1 / 0)
        shown: list[GpuState] = []
        with GpuWatch(lambda states, time_s, shown=shown: shown.extend(states)) as watch:
            watch.tick()
        assert shown == []


@pytest.mark.parametrize("question", ["nvmlDeviceGetCount", "nvmlDeviceGetMemoryInfo", "nvmlShutdown"])
def test_a_driver_that_breaks_prints_nothing_over_the_table(nvml, monkeypatch, question):
    def refuse(*asked):
        raise RuntimeError("the card has fallen off the bus")

    monkeypatch.setattr(nvml, question, refuse)
    raised: list[object] = []
    monkeypatch.setattr("threading.excepthook", raised.append)
    with GpuWatch(lambda states, time_s: None):
        pass
    wait_until(lambda: "rltune-gpus" not in {thread.name for thread in threading.enumerate()})
    assert not raised


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
