"""Fit trials into a machine: CPUs and GPU fractions of each, how many at once, or why none. Pure arithmetic.

Runs in the driver, before Ray is started: Ray itself waits for ever for resources that no node has.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from rltune.errors import ResourceError

EPSILON = 1e-6  # 3 x 0.3333 must fit in 1
WIDE_LAYER = 512  # units from which a second torch thread was measured to pay, see `choose_cpus`


@dataclass(frozen=True)
class Machine:
    """What a machine or a cluster has for trials."""

    cpus: float
    gpus: float


@dataclass(frozen=True)
class Share:
    """What one trial gets, and how many trials run at once.

    Attributes:
        cpus: CPUs of the trial's own process.
        gpus: GPUs, or the fraction of one.
        env_runners: Remote sampling processes beside it, one CPU each.
        slots: Trials at once.
    """

    cpus: float
    gpus: float
    env_runners: int
    slots: int

    @property
    def bundles(self) -> list[dict[str, float]]:
        """Return the bundles of Ray's placement group: the trial's process first, then its remote env runners."""
        first = {"CPU": self.cpus} | ({"GPU": self.gpus} if self.gpus else {})
        return [first, *({"CPU": 1.0} for _ in range(self.env_runners))]

    @property
    def threads(self) -> int:
        """Return the torch threads of a trial: its CPU share, at least one."""
        return max(1, int(self.cpus))


def local_machine() -> Machine:
    """Return this machine's CPUs (those that this process may use) and NVIDIA GPUs."""
    return Machine(cpus=available_cpus(), gpus=_count_gpus())


def available_cpus() -> int:
    """Count the CPUs that this process may use: its affinity mask or its container's quota, whichever is less."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = Path("/sys/fs/cgroup/cpu.max")
    if quota.is_file():
        limit, _, period = quota.read_text().partition(" ")
        if limit != "max":
            cpus = min(cpus, max(1, math.ceil(int(limit) / int(period))))
    return cpus


def _count_gpus() -> int:
    """Count the NVIDIA GPUs that this process may use by ``nvidia-smi``, because torch takes seconds to import."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([part for part in visible.split(",") if part.strip() and part.strip() != "-1"])
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return 0
    try:
        listed = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=5, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(line.startswith("GPU ") for line in listed.splitlines())


@dataclass(frozen=True)
class Request:
    """What a sweep asks for; None lets the arithmetic decide.

    Attributes:
        cpus: CPUs of a trial's own process; None is `choose_cpus`.
        gpus: GPUs of a trial, or the fraction of one.
        max_concurrent: Trials at once; None is as many as fit.
        env_runners: Remote sampling processes of a trial.
        trials: Of the whole sweep.
        widest_layer: Units of the network's widest hidden layer; 0 where it is not known.
    """

    cpus: float | None
    gpus: float
    max_concurrent: int | None
    env_runners: int
    trials: int
    widest_layer: int = 0


def fit_share(request: Request, machine: Machine) -> Share:
    """Fit trials into a machine.

    Args:
        request: What one trial asks for.
        machine: What there is.

    Returns:
        One trial's share and the number of trials at once, never more than ``request.trials``.

    Raises:
        ResourceError: Not even one trial fits, or a GPU fraction cannot be placed.
    """
    cpus = choose_cpus(request, machine) if request.cpus is None else request.cpus
    _check_gpus(request.gpus, machine)
    needed = cpus + request.env_runners
    if needed > machine.cpus + EPSILON:
        raise ResourceError(
            f"resources.cpus_per_trial={cpus:g}"
            + (f" with algo.env_runners.num_env_runners={request.env_runners}" if request.env_runners else "")
            + f" needs {needed:g} CPUs",
            f"at most {machine.cpus:g} CPUs a trial here",
            f"resources.cpus_per_trial={max(1, int(machine.cpus - request.env_runners))}"
            if machine.cpus > request.env_runners
            else "algo.env_runners.num_env_runners=0",
        )
    fits = int((machine.cpus + EPSILON) / needed)
    if request.gpus:
        fits = min(fits, count_gpu_slots(request.gpus, machine.gpus))
    slots = min(fits, request.trials, request.max_concurrent or fits)
    return Share(cpus=cpus, gpus=request.gpus, env_runners=request.env_runners, slots=max(1, slots))


def choose_cpus(request: Request, machine: Machine) -> float:
    """Choose the CPUs of a trial's own process: one, or two where the second would idle and makes it faster.

    The rule of ``resources=auto``. Nothing is measured when a sweep starts; ``python -m sweeps.probe`` measures, and
    these figures of one two-core machine (PPO, 16 environments, minibatches of 256) are the rule's reason:

    - A second thread sped a network's gradient up by 1.1 at 64 units, 1.2 at 128 and 1.4 at 256, the best of many tries
      on cores that others used too; all of PPO gained 1.7 at 512. A second trial brings nearly 2: with at least as many
      trials as CPUs, each gets one.
    - Where others compete for the cores, threads wait for each other: PPO at 64 units fell from 10,000 to 650 steps/s
      with a second thread, while a second trial took a fair share. So a CPU that would idle is not given to a small
      network either, only to one of at least `WIDE_LAYER` units; and no third, which was not measured.

    ``resources.cpus_per_trial`` overrules it.

    Args:
        request: What one trial asks for.
        machine: What there is.
    """
    at_once = min(request.trials, request.max_concurrent or request.trials)
    spare = machine.cpus / at_once - request.env_runners
    pays = request.widest_layer >= WIDE_LAYER and not request.gpus  # with a GPU the learner's threads are there
    return 2.0 if pays and spare >= 2 - EPSILON else 1.0


def count_gpu_slots(fraction: float, gpus: float) -> int:
    """Count the trials at once on ``gpus`` GPUs at ``fraction`` of one each; less than 1 never spans two GPUs."""
    if fraction < 1:
        return int(gpus) * int((1 + EPSILON) / fraction)
    return int((gpus + EPSILON) / fraction)


def _check_gpus(gpus: float, machine: Machine) -> None:
    if gpus > 1 and gpus != int(gpus):
        raise ResourceError(
            f"resources.gpus_per_trial={gpus:g} cannot be placed",
            "a fraction of one GPU, or whole GPUs",
            f"resources.gpus_per_trial={math.ceil(gpus)}",
        )
    if gpus and machine.gpus <= 0:
        raise ResourceError(
            f"resources.gpus_per_trial={gpus:g}, but there is no GPU here",
            "0 without a GPU",
            "resources=auto",
        )
    if gpus > machine.gpus:
        raise ResourceError(
            f"resources.gpus_per_trial={gpus:g} exceeds the {machine.gpus:g} GPUs here",
            f"at most {machine.gpus:g}",
            f"resources.gpus_per_trial={machine.gpus:g}",
        )
