"""Measure what one trial takes of a GPU, and choose how many trials share one.

`measure_on_gpu` runs this module in a process of its own: CUDA's own memory there is given back only when it ends.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from rltune.algorithms.build import Build
from rltune.errors import ResourceError, RltuneError, describe_exception
from rltune.search.space import Space
from rltune.trial.gpu_memory import CONTEXT_BYTES

if TYPE_CHECKING:
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

SPARE = 1.15  # of what was measured: later iterations fragment memory, other values differ
MOST = 16  # trials on a GPU, where nobody has measured that more pay
LIMIT_S = 300.0  # to import, to fill a replay memory up to the first update, and to train one iteration
GB = 1e9


@dataclass(frozen=True)
class GpuUse:
    """What one trial takes of a GPU that it has for itself.

    Attributes:
        tensors: Bytes that torch reserved at its peak.
        context: Bytes beside them: CUDA's own, and what other programs hold.
        total: Bytes of the GPU.
        steps_per_s: Environment steps per second; 0 where they were not asked for.
    """

    tensors: int
    context: int
    total: int
    steps_per_s: float = 0.0

    @property
    def needed(self) -> float:
        """Bytes that a trial is given, with some to spare; `cap_memory` leaves as many to its tensors."""
        return SPARE * self.tensors + max(self.context, CONTEXT_BYTES)

    def __str__(self) -> str:
        parts = f"{self.tensors / GB:.3g} GB of tensors, {self.context / GB:.3g} GB beside them"
        return f"one takes {self.needed / GB:.3g} of {self.total / GB:.3g} GB ({parts}, {SPARE - 1:.0%} to spare)"


def choose_trials(use: GpuUse, cpus: float) -> int:
    """Choose how many trials share a GPU: as many as its memory and the CPUs allow, at least one, at most `MOST`.

    Args:
        use: What one takes of it.
        cpus: CPUs for trials beside each GPU. Each trial needs one, to step its environments and to launch kernels.
    """
    return max(1, min(int(use.total // use.needed), int(cpus), MOST))


def measure_use(build_algorithm: Callable[[], Any], cuda: Any, seconds: float = 0.0) -> GpuUse:
    """Train up to the end of the first iteration with an update, and read what that took.

    Args:
        build_algorithm: Builds what trains.
        cuda: ``torch.cuda``; tests give another one.
        seconds: How long it trains on, to measure its speed.
    """
    from rltune.trial.metrics import read_result

    algorithm = build_algorithm()
    progress = read_result(algorithm.train())
    while not progress.learner:  # off-policy algorithms fill their memory first
        progress = read_result(algorithm.train())
    before, began, spent = progress.env_steps, time.perf_counter(), 0.0
    while spent < seconds:
        progress = read_result(algorithm.train())
        spent = time.perf_counter() - began
    free, total = cuda.mem_get_info()
    use = GpuUse(
        tensors=cuda.max_memory_reserved(),
        context=total - free - cuda.memory_reserved(),
        total=total,
        steps_per_s=(progress.env_steps - before) / spent if spent else 0.0,
    )
    algorithm.stop()
    return use


def find_largest(configs: Sequence[AlgorithmConfig]) -> AlgorithmConfig:
    """Find the configuration that takes most memory: by weights, and by units times the rows of an update."""
    return max(configs, key=_estimate_size)


def _estimate_size(config: AlgorithmConfig) -> int:
    model = config.model_config
    layers = [*(model.get("fcnet_hiddens") or []), *(model.get("head_fcnet_hiddens") or [])]
    rows = int(getattr(config, "minibatch_size", None) or config.total_train_batch_size)
    weights = sum(one * other for one, other in itertools.pairwise(layers))
    return int(weights + sum(layers) * rows + rows)


def measure_on_gpu(build: Build, space: Space, engine: str, threads: int, seconds: float = 0.0) -> GpuUse:
    """Measure the largest corner of a space, alone on the first GPU, in a process of its own.

    Raises:
        ResourceError: Not even one trial could be measured.
    """
    command = [sys.executable, "-m", __name__]
    work = pickle.dumps((build, space, engine, threads, seconds))
    try:
        done = subprocess.run(command, input=work, capture_output=True, timeout=LIMIT_S + 2 * seconds, check=False)
        answer = pickle.loads(done.stdout)  # noqa: S301  by this module
    except subprocess.TimeoutExpired:
        answer = f"not done within {LIMIT_S:g} s"
    except (pickle.UnpicklingError, EOFError):
        answer = (done.stderr.decode(errors="replace").strip().splitlines() or ["its process died"])[-1]
    if isinstance(answer, RltuneError):
        raise answer
    if not isinstance(answer, dict):
        raise ResourceError(
            f"no trial could be measured on a GPU: {answer}",
            "a number, where nothing can be measured",
            "resources.trials_per_gpu=1",
        )
    use = GpuUse(**answer)
    return replace(use, tensors=build.replicates * use.tensors)


def _work(build: Build, space: Space, engine: str, threads: int, seconds: float) -> GpuUse:
    import torch

    from rltune.algorithms.arguments import count_env_runners, count_learners
    from rltune.algorithms.preflight import check_corners
    from rltune.cluster.ray_cluster import connect_ray, prepare_environment
    from rltune.config.schema import ClusterConfig
    from rltune.engine import build_algorithm, find_obstacle

    torch.set_num_threads(threads)
    prepare_environment()
    config = find_largest(check_corners(build, space))
    kind = "rllib" if engine == "fast" and find_obstacle(config) else engine
    beside = count_env_runners(build.algo) + count_learners(build.algo)
    cluster = ClusterConfig(num_cpus=1 + beside, num_gpus=1)
    with connect_ray(cluster) if kind == "rllib" or beside else contextlib.nullcontext():
        return measure_use(lambda: build_algorithm(config, kind, build.precision), torch.cuda, seconds)


def main() -> None:
    """Measure what comes on standard input, and answer on standard output, which nothing else may write to."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    answer: Any
    try:
        answer = asdict(_work(*pickle.load(sys.stdin.buffer)))  # noqa: S301  from the process that started this one
    except RltuneError as error:
        answer = error
    except Exception as error:  # an environment or RLlib raises whatever it likes
        answer = describe_exception(error)
    answers.write(pickle.dumps(answer))
    answers.close()


if __name__ == "__main__":
    main()
