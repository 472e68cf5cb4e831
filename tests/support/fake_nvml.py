"""Two GPUs as NVML tells of them, and one that is a slice of MIG's and knows less."""

from __future__ import annotations

from types import SimpleNamespace

MEMORY = {0: (10_000_000_000, 80_000_000_000), 1: (500_000_000, 80_000_000_000), "MIG-7": (1_000_000, 10_000_000_000)}


class NVMLError(Exception):
    """NVML's own."""


class FakeNvml:
    """Stands for the module ``pynvml``."""

    NVMLError = NVMLError
    NVML_TEMPERATURE_GPU = 0

    def __init__(self) -> None:
        self.num_open = 0

    def nvmlInit(self) -> None:
        self.num_open += 1

    def nvmlShutdown(self) -> None:
        self.num_open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index not in MEMORY:
            raise NVMLError("Invalid Argument")
        return index

    def nvmlDeviceGetHandleByUUID(self, name: str) -> str:
        if name not in MEMORY:
            raise NVMLError("Not Found")
        return name

    def nvmlDeviceGetMemoryInfo(self, device: int | str) -> SimpleNamespace:
        used, total = MEMORY[device]
        return SimpleNamespace(used=used, total=total)

    def nvmlDeviceGetUtilizationRates(self, device: int | str) -> SimpleNamespace:
        if isinstance(device, str):
            raise NVMLError("Not Supported")
        return SimpleNamespace(gpu=45 + device, memory=3)

    def nvmlDeviceGetTemperature(self, device: int | str, sensor: int) -> int:
        if isinstance(device, str):
            raise NVMLError("Not Supported")
        return 61
