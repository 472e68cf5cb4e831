"""One measured combination of vector width, env runners and threads: the process that `rltune.probe` starts for it.

``python -m rltune.measurement`` reads one order as a line of JSON, warms up, says that it is ready, waits for ``go``,
measures, answers, and keeps its CPUs busy until it is told to stop, so that trials measured side by side all meet the
same competition. A process of its own: neither peak memory nor thread pools can be taken back. Decides nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rltune.algorithm import Build, configure, preflight
from rltune.cluster import connected, prepare
from rltune.config import ClusterConfig
from rltune.environment import spec_of
from rltune.errors import RltuneError
from rltune.space import parse

if TYPE_CHECKING:
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

    from rltune.progress import Progress

GB = 1e9


@dataclass(frozen=True)
class Cell:
    """One combination.

    Attributes:
        envs: Environments that step together in each process that samples.
        env_runners: Remote sampling processes; 0 samples in the trial's own.
        threads: Torch threads of the trial's process.
    """

    envs: int
    env_runners: int
    threads: int

    @property
    def cpus(self) -> int:
        """CPUs of a trial like this, as `rltune.resources.share` counts them."""
        return self.threads + self.env_runners


@dataclass(frozen=True)
class Order:
    """What to measure, as plain values.

    Attributes:
        algo: The algo file.
        env: The environment's specification, see `rltune.environment.EnvSpec`.
        vectorize: As in the env file.
        engine: ``fast`` or ``rllib``.
        cell: The combination.
        seconds: Measured time, warm-up excluded; at least one iteration is finished.
    """

    algo: Mapping[str, Any]
    env: Mapping[str, Any]
    vectorize: str
    engine: str
    cell: Cell
    seconds: float

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> Order:
        """What `to_json` wrote."""
        raw = json.loads(line)
        return cls(**{**raw, "cell": Cell(**raw["cell"])})

    def build(self) -> Build:
        """The algorithm of the cell."""
        env = spec_of(self.env)
        runners = dict(self.algo.get("env_runners") or {})
        runners |= {"num_envs_per_env_runner": self.cell.envs, "num_env_runners": self.cell.env_runners}
        return Build({**self.algo, "env_runners": runners}, env, self.vectorize)


@dataclass(frozen=True)
class Measured:
    """What a cell achieved.

    Attributes:
        steps_per_s: Environment steps per second, sampling and learning together.
        memory_gb: Peak resident memory of the trial's process and its env runners; without Ray's own daemons.
        settings: What else had to be set so that the cells do the same work: overrides by key.
        stock: Why stock RLlib trained it; None when the fast engine did.
    """

    steps_per_s: float
    memory_gb: float
    settings: Mapping[str, Any]
    stock: str | None


def same_work(config: AlgorithmConfig, wide: AlgorithmConfig) -> dict[str, Any]:
    """What keeps an off-policy algorithm's updates per environment step as its file has them.

    DQN and SAC make one update for each round of sampling unless ``training_intensity`` says otherwise, so that a wider
    vector would look faster only because it learns less.

    Args:
        config: Of the algo file as it is.
        wide: The same with the cell's environments and env runners.

    Returns:
        Values of ``algo.training``; empty for algorithms that update on everything they sample.
    """
    if not hasattr(config, "training_intensity"):
        return {}
    if config.training_intensity:
        replayed = config.training_intensity * _overcounted(config)
        return {} if _overcounted(config) == _overcounted(wide) else _intensity(replayed, wide)
    replayed = config.total_train_batch_size / _sampled_a_round(config)
    return {} if _sampled_a_round(config) == _sampled_a_round(wide) else _intensity(replayed, wide)


def _intensity(replayed: float, config: AlgorithmConfig) -> dict[str, Any]:
    return {"training_intensity": round(replayed / _overcounted(config), 6)}


def _sampled_a_round(config: AlgorithmConfig) -> int:
    """Environment steps between two updates where nothing else is said."""
    each = config.get_rollout_fragment_length() * config.num_envs_per_env_runner
    return int(each * max(1, config.num_env_runners))


def _overcounted(config: AlgorithmConfig) -> float:
    """By how much RLlib overshoots an intensity: it counts the local runner even where it does not sample (2.60)."""
    runners = int(config.num_env_runners)
    return (runners + 1) / runners if runners else 1.0


def measure(
    order: Order, wait: Callable[[], None], told: Callable[[], bool], answer: Callable[[Measured], None]
) -> None:
    """Build the cell, warm up, measure, and go on until told to stop.

    Args:
        order: What to measure.
        wait: Says that the warm-up is over, and returns when measuring may begin.
        told: Whether to stop.
        answer: Takes the result as soon as it is known.

    Raises:
        ConfigError: The configuration cannot be built.
    """
    import torch

    torch.set_num_threads(order.cell.threads)
    prepare()
    build = order.build()
    own = Build(order.algo, build.env, build.vectorize)
    settings = same_work(configure(own, {}, seed=0), configure(build, {}, seed=0))
    if settings:
        build = Build({**build.algo, "training": {**build.algo["training"], **settings}}, build.env, build.vectorize)
    preflight(build, parse({}))
    from rltune import engine
    from rltune.runner import read_result

    config = configure(build, {}, seed=0)
    feature = None if order.engine == "rllib" else engine.unsupported(config)
    stock = (
        f"the fast engine does not serve {feature}"
        if feature
        else None
        if order.engine == "fast"
        else "engine=rllib says so"
    )
    with _ray(order.cell.env_runners if stock is None else max(1, order.cell.env_runners)):
        algorithm = engine.build(config, "fast" if stock is None else "rllib")
        before = _warm_up(lambda: read_result(algorithm.train()), order.seconds)
        wait()
        rate = _rate(lambda: read_result(algorithm.train()), before, order.seconds)
        answer(Measured(rate, _memory_gb(algorithm), settings, stock))
        while not told():
            algorithm.train()
        algorithm.stop()


@contextlib.contextmanager
def _ray(cpus: int) -> Iterator[None]:
    """A Ray of this cell's own where it needs one; the fast engine samples in its own process without."""
    if cpus:
        # Has been read when torch was imported; Ray's workers are to get one of their own (one CPU, one thread).
        os.environ.pop("OMP_NUM_THREADS", None)
        with connected(ClusterConfig(num_cpus=cpus, num_gpus=0)):
            yield
    else:
        yield


def _warm_up(train: Callable[[], Progress], seconds: float) -> int:
    """Train until an update has been made, and once more where that is quick: first calls allocate.

    Returns:
        The environment steps so far.
    """
    began, iterations = time.perf_counter(), 0
    while True:
        progress, iterations = train(), iterations + 1
        if progress.learner and (iterations > 1 or time.perf_counter() - began > seconds):
            return progress.env_steps


def _rate(train: Callable[[], Progress], before: int, seconds: float) -> float:
    """Environment steps per second over at least ``seconds`` and one iteration."""
    began = time.perf_counter()
    while True:
        steps, spent = train().env_steps - before, time.perf_counter() - began
        if spent >= seconds:
            return steps / spent


def _memory_gb(algorithm: Any) -> float:
    """Peak of this process and of its remote env runners."""
    remote = algorithm.env_runner_group.foreach_env_runner(lambda _: _peak_gb(), local_env_runner=False)
    return _peak_gb() + float(sum(remote))


def _peak_gb() -> float:
    """This process's peak resident memory."""
    status = Path("/proc/self/status")
    if status.is_file():
        # Not ru_maxrss, which on Linux begins with the size of the process that started this one.
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(lines["VmHWM"].split()[0]) * 1024 / GB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / GB  # bytes on macOS


def main() -> None:
    """Take one order from standard input and answer it on standard output."""
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # environments greet on standard output, which is the channel

    def say(**message: Any) -> None:
        print(json.dumps(message), file=channel)

    def wait() -> None:
        say(ready=True)
        if not sys.stdin.readline():
            raise SystemExit(1)  # nobody is there any more

    order = Order.from_json(sys.stdin.readline())
    try:
        measure(
            order,
            wait,
            told=lambda: bool(select.select([sys.stdin], [], [], 0)[0]),  # a line, or the end of the driver
            answer=lambda measured: say(measured=asdict(measured)),
        )
    except RltuneError as error:
        say(refused=[error.what, error.allowed, error.fix])
    except Exception as error:  # an environment or RLlib raises whatever it likes; the probe goes on without this cell
        say(failed=f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}")


if __name__ == "__main__":
    main()
