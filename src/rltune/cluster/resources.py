"""Compute the CPUs and GPUs of each trial and how many trials fit on a machine or cluster, or why none fits.

Ray itself would wait for ever for resources that no node has. Runs in the driver.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from rltune.config.schema import MAX_ON_GPU
from rltune.errors import ResourceError, spell

if TYPE_CHECKING:
    from ray.tune import PlacementGroupFactory

EPSILON = 1e-6  # Tolerance for rounding: 3 x 0.3333 must fit into 1.
GRAIN = 10_000  # Ray truncates fractions to four digits (2.60): as 0.1666, six trials of 1/6 fit on one GPU.
MIN_IDLE = 0.01  # A larger idle part of a GPU is reported to the user; three trials of 0.33 leave 1% idle.
CGROUPS, CGROUPS_OF_PROCESS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
WIDE_LAYER = 512  # Units of a hidden layer from which a second torch thread is worth a CPU; see `choose_cpus`.


@dataclass(frozen=True)
class Machine:
    """The CPUs and GPUs of one machine, or of one node of a cluster."""

    cpus: float
    gpus: float


@dataclass(frozen=True)
class Share:
    """The CPUs and GPUs that one trial gets, and the processes among which they are divided.

    Attributes:
        cpus: CPUs of the trial's own process.
        gpus: GPUs, or the fraction of one.
        env_runners: Remote sampling processes beside it, one CPU each.
        learners: Remote learners beside it, one CPU each; they share the trial's GPUs. 0 has it learn itself.
    """

    cpus: float
    gpus: float
    env_runners: int
    learners: int = 0

    @property
    def bundles(self) -> list[dict[str, float]]:
        """Return the resource bundles of the trial's placement group: one for each process, in RLlib's order.

        The trial's own, its remote env runners (RLlib puts the first into the second bundle, and so on), its remote
        learners. They may lie on different nodes.
        """
        own, learner = {"CPU": self.cpus}, {"CPU": 1.0}
        if self.gpus:
            (learner if self.learners else own)["GPU"] = self.gpus / max(1, self.learners)
        beside = [*([{"CPU": 1.0}] * self.env_runners), *([learner] * self.learners)]
        return [own, *(dict(bundle) for bundle in beside)]

    @property
    def threads(self) -> int:
        """Return the number of torch threads of the trial's own process: its CPUs rounded down, at least one."""
        return max(1, int(self.cpus))

    @property
    def larger(self) -> Share | None:
        """Return a share with twice the fraction of a GPU, at most a whole one; None if it cannot grow."""
        return replace(self, gpus=min(1.0, 2 * self.gpus)) if 0 < self.gpus < 1 else None


def request_resources(common: Share, config: Mapping[str, Any]) -> PlacementGroupFactory:
    """Make Tune's resource request for a trial: the common share, with the GPU fraction in its assignment.

    Tune sends a reference to this function to every worker, which imports this module and nothing of the driver's.
    """
    from ray.tune import PlacementGroupFactory

    return PlacementGroupFactory(replace(common, gpus=config["assignment"]["build"]["gpus"]).bundles)


def count_on_gpu(gpus: float) -> int:
    """Count how many trials with this fraction of a GPU Ray places on one GPU."""
    return GRAIN // _count_grains(gpus)


def _count_grains(gpus: float) -> int:
    return max(1, int(gpus * GRAIN))


def describe_idle_gpu(gpus: float) -> str:
    """Describe how much of each GPU a fraction such as 0.4 leaves idle; empty if it is under 1%."""
    if not 0 < gpus <= 1:
        return ""
    trials = count_on_gpu(gpus)
    idle = 1 - trials * gpus
    if idle < MIN_IDLE:
        return ""
    at_once = f"{trials} trial{'s' * (trials > 1)} on each GPU, and {idle:.0%} of it idle"
    typed = f"resources.trials_per_gpu={min(trials, MAX_ON_GPU)}"
    return f"resources.gpus_per_trial={gpus:g}: {at_once}; {typed} uses all of it"


def local_machine() -> Machine:
    """Return the CPUs and NVIDIA GPUs of this machine that this process may use."""
    return Machine(cpus=available_cpus(), gpus=count_local_gpus())


def available_cpus() -> int:
    """Count the CPUs that this process may use: by its affinity mask, the quotas of its cgroups, and its Slurm job."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    slurm = os.environ.get("SLURM_CPUS_ON_NODE", "")  # Not every Slurm cluster confines a job to its CPUs.
    limits = [*_read_quotas(), *([int(slurm)] if slurm.isdecimal() else [])]
    return max(1, math.ceil(min([cpus, *limits])))


def _read_quotas() -> list[float]:
    """Read the quotas, in CPUs, of this process's cgroups and of all cgroups around them, in versions 1 and 2.

    In a container, the container's own cgroup is mounted as the root, and the path may be one outside of it.
    """
    quotas = []
    lines = CGROUPS_OF_PROCESS.read_text().splitlines() if CGROUPS_OF_PROCESS.is_file() else []
    for _, controllers, path in (line.split(":", 2) for line in lines):
        if controllers and "cpu" not in controllers.split(","):
            continue
        own = PurePosixPath(path.lstrip("/"))
        for folder in (own, *own.parents):
            with contextlib.suppress(OSError, ValueError):  # There is no quota, or the folder is not mounted.
                if controllers:
                    files = [CGROUPS / controllers / folder / f"cpu.cfs_{name}_us" for name in ("quota", "period")]
                    quota, period = (int(file.read_text()) for file in files)
                else:
                    quota, period = map(int, (CGROUPS / folder / "cpu.max").read_text().split())
                quotas += [quota / period] if quota > 0 else []
    return quotas


def count_local_gpus() -> int:
    """Count the NVIDIA GPUs that this process may use, by ``CUDA_VISIBLE_DEVICES`` or ``nvidia-smi``.

    ``CUDA_VISIBLE_DEVICES`` names them; without it ``nvidia-smi`` lists them. torch would take seconds to import.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return sum(name.strip() not in ("", "-1") for name in visible.split(","))
    tool = shutil.which("nvidia-smi")
    return _count_cards(tool) if tool else 0


@functools.cache
def _count_cards(tool: str) -> int:
    try:
        listed = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=5, check=False).stdout
    except (OSError, subprocess.SubprocessError):
        return 0
    return sum(line.startswith("GPU ") for line in listed.splitlines())


@dataclass(frozen=True)
class Request:
    """The resources that a sweep's settings request for each trial; None leaves the choice to `fit_share`.

    Attributes:
        cpus: CPUs of a trial's own process; None is `choose_cpus`.
        gpus: GPUs of a trial, or the fraction of one.
        max_concurrent: Trials at once; None is as many as fit.
        env_runners: Remote sampling processes of a trial.
        trials: Of the whole sweep.
        widest_layer: Units of the network's widest hidden layer; 0 where it is not known.
        learners: Remote learners of a trial.
        trials_per_gpu: What ``gpus`` is derived from, a number or ``auto``; None where it was asked for itself.
        has_learner_gpus: Whether ``gpus`` is derived from ``algo.learners.num_gpus_per_learner``.
        copies: Copies of the environment of a trial, in all of its processes.
        max_copies: The most copies on one machine at once; None without a bound.
    """

    cpus: float | None
    gpus: float
    max_concurrent: int | None
    env_runners: int
    trials: int
    widest_layer: int = 0
    learners: int = 0
    trials_per_gpu: int | str | None = None
    has_learner_gpus: bool = False
    copies: int = 1
    max_copies: int | None = None

    @property
    def gpu_setting(self) -> tuple[str, float | str]:
        """The user's setting that requests GPUs, for errors: its key and its value."""
        if self.has_learner_gpus:
            return "algo.learners.num_gpus_per_learner", self.gpus / max(1, self.learners)
        if self.trials_per_gpu is None:
            return "resources.gpus_per_trial", self.gpus
        return "resources.trials_per_gpu", self.trials_per_gpu

    @property
    def extra_processes(self) -> dict[str, int]:
        """The number of a trial's remote env runners and learners, one CPU each, by the setting that requests them."""
        counts = {"algo.env_runners.num_env_runners": self.env_runners, "algo.learners.num_learners": self.learners}
        return {key: count for key, count in counts.items() if count}

    @property
    def limit(self) -> int:
        """Return the maximum number of concurrent trials that the settings allow, whether or not they fit."""
        return min(self.trials, self.max_concurrent or self.trials)

    @property
    def trials_per_node(self) -> float:
        """How many trials may have their copies of the environment on one machine; infinite without a bound."""
        return math.inf if self.max_copies is None else self.max_copies / max(1, self.copies)


def fit_share(request: Request, *nodes: Machine) -> Share:
    """Compute the CPUs and GPUs of each trial, and check that at least one trial fits on the nodes.

    Args:
        request: What one trial asks for.
        nodes: What there is. Without a CPU yet everything fits: nodes are still to come.

    Raises:
        ResourceError: Not even one trial fits, or a GPU fraction cannot be placed.
    """
    # A process needs all of its GPUs on one node, but several learners may be spread over nodes.
    gpus = [node.gpus for node in nodes]
    machine = Machine(
        cpus=sum(node.cpus for node in nodes), gpus=sum(gpus) if request.learners > 1 else max(gpus, default=0)
    )
    cpus = choose_cpus(request, *nodes) if request.cpus is None else request.cpus
    share = Share(cpus, request.gpus, request.env_runners, request.learners)
    if not machine.cpus:
        return share
    _check_gpus(request, machine)
    _check_learners(request)
    num_extra = sum(request.extra_processes.values())
    needed = cpus + num_extra
    if needed > machine.cpus + EPSILON:
        with_them = "".join(f"with {key}={count} " for key, count in request.extra_processes.items())
        raise ResourceError(
            f"{with_them}needs {needed:g} CPUs",
            f"at most {machine.cpus:g} CPUs a trial here",
            f"resources.cpus_per_trial={max(1, int(machine.cpus - num_extra))}"
            if machine.cpus > num_extra
            else " ".join(f"{key}=0" for key in request.extra_processes),
            key="resources.cpus_per_trial",
            value=cpus,
        )
    if not count_slots(share.bundles, nodes, 1):
        largest = max(node.cpus for node in nodes if node.gpus >= min(1, request.gpus))
        key, value = request.gpu_setting
        raise ResourceError(
            (f"with {key}={spell(value)} " if request.gpus else "")
            + f"fits into no node: a process needs all its CPUs{' and GPUs' if request.gpus else ''} on one",
            f"at most {largest:g} CPUs a process here",
            f"resources.cpus_per_trial={max(1, int(largest))}",
            key="resources.cpus_per_trial",
            value=cpus,
        )
    return share


Bundles = Sequence[Mapping[str, float]]


def count_slots(bundles: Bundles, nodes: Sequence[Machine], limit: int, per_node: float = math.inf) -> int:
    """Count the trials that fit at once: no bundle is split over nodes, and no GPU fraction over two GPUs.

    Args:
        bundles: One trial's, with ``CPU`` and ``GPU`` of each.
        nodes: What there is.
        limit: Count no further.
        per_node: The most trials on each of them, see `Request.trials_per_node`.
    """
    if per_node < math.inf:
        limit = min(limit, int(per_node * len(nodes) + EPSILON))
    free, num_placed = [_FreeNode(node) for node in nodes], 0
    largest_first = sorted(bundles, key=lambda bundle: (bundle.get("GPU", 0), bundle.get("CPU", 0)), reverse=True)
    while num_placed < limit and all(any(node.take(bundle) for node in free) for bundle in largest_first):
        num_placed += 1
    return num_placed


class _FreeNode:
    """The free CPUs and GPUs of a node while trials are placed on it, for counting."""

    def __init__(self, node: Machine) -> None:
        self._cpus, self._gpus = node.cpus, [1.0] * int(node.gpus)

    def take(self, bundle: Mapping[str, float]) -> bool:
        """Subtract a bundle's CPUs and GPUs if the node has them: a fraction of one GPU, or whole GPUs."""
        cpus, gpus = bundle.get("CPU", 0.0), bundle.get("GPU", 0.0)
        gpus = _count_grains(gpus) / GRAIN if gpus else 0.0
        num_gpus = math.ceil(gpus - EPSILON)
        of_each = gpus / num_gpus if num_gpus else 0.0
        able = [index for index, left in enumerate(self._gpus) if left >= of_each - EPSILON][:num_gpus]
        if cpus > self._cpus + EPSILON or len(able) < num_gpus:
            return False
        self._cpus -= cpus
        for index in able:
            self._gpus[index] -= of_each
        return True


def choose_cpus(request: Request, *nodes: Machine) -> float:
    """Choose one or two CPUs for a trial's own process: two if the second would be idle and speeds the trial up.

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
        nodes: What there is.
    """
    trials = min(request.limit, max(1, request.trials_per_node * len(nodes)))
    spare = sum(node.cpus for node in nodes) / trials - sum(request.extra_processes.values())
    pays = request.widest_layer >= WIDE_LAYER and not request.gpus  # With a GPU, the learner does not compute on CPUs.
    fits = any(node.cpus >= 2 - EPSILON for node in nodes)
    return 2.0 if pays and fits and spare >= 2 - EPSILON else 1.0


def _check_gpus(request: Request, machine: Machine) -> None:
    gpus, (key, value) = request.gpus, request.gpu_setting
    if gpus > 1 and gpus != int(gpus):
        raise ResourceError(
            "cannot be placed",
            "a fraction of one GPU, or whole GPUs",
            f"resources.gpus_per_trial={math.ceil(gpus)}",
            key=key,
            value=value,
        )
    if gpus and machine.gpus <= 0:
        is_shared = request.trials_per_gpu is not None
        fix = "~algo.learners.num_gpus_per_learner" if request.has_learner_gpus else "resources=auto"
        raise ResourceError(
            ", but there is no GPU here",
            "null without a GPU: as many trials as CPUs" if is_shared else "0 without a GPU",
            "resources.trials_per_gpu=null" if is_shared else fix,
            key=key,
            value=value,
        )
    if gpus > machine.gpus:
        raise ResourceError(
            f"exceeds the {machine.gpus:g} GPUs here",
            f"at most {machine.gpus:g}",
            f"resources.gpus_per_trial={machine.gpus:g}",
            key=key,
            value=value,
        )


def _check_learners(request: Request) -> None:
    """Refuse several learners on one GPU, because NCCL, which adds up their gradients, needs a GPU for each process."""
    if request.learners > 1 and request.gpus % request.learners:
        key, value = request.gpu_setting
        raise ResourceError(
            f"with algo.learners.num_learners={request.learners} gives a learner "
            f"{request.gpus / request.learners:g} GPUs",
            "whole GPUs for each of several learners, or none; a fraction for a single one",
            "resources.trials_per_gpu=null " * (request.trials_per_gpu is not None)
            + f"resources.gpus_per_trial={request.learners}",
            key=key,
            value=value,
        )
