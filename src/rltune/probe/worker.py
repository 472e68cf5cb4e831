"""Measure one combination in processes of its own, because neither peak memory nor thread pools can be taken back.

`measure` runs this module once for each trial side by side. A worker warms up, says so, waits, measures, answers, and
keeps its CPUs busy until all have answered, so that all meet the same competition.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection, Pipe
from typing import TYPE_CHECKING, Any

from rltune.algorithms.arguments import count_learners
from rltune.algorithms.build import Build, build_config
from rltune.algorithms.preflight import check_corners
from rltune.cluster.memory import peak_gb
from rltune.cluster.ray_cluster import connect_ray, prepare_environment
from rltune.config.capabilities import capabilities_of
from rltune.config.schema import ClusterConfig
from rltune.envs.spec import spec_of
from rltune.errors import RltuneError, describe_exception
from rltune.probe.recommendation import Combination, MeasurementResult
from rltune.search.space import parse_space

if TYPE_CHECKING:
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

    from rltune.probe.probe import ProbeConfig

START_S = 120.0  # a worker may take this long to import RLlib, build and warm up, and ten times what it measures
STOP_S = 20.0  # to close environments and Ray


class WorkerError(Exception):
    """One combination could not be measured; the others may."""


def measure(config: ProbeConfig, combination: Combination, trials: int = 1) -> MeasurementResult:
    """Measure trials of one combination at the same time.

    Raises:
        RltuneError: The algorithm cannot be configured, so no other combination can be measured either.
    """
    deadline = time.monotonic() + START_S + 10 * config.seconds
    try:
        with contextlib.ExitStack() as stack:
            workers = [stack.enter_context(_start_worker(config, combination)) for _ in range(trials)]
            for _ in ("warmed up", "measured"):
                answers = [_receive(worker, deadline) for worker in workers]
                for worker in workers:
                    worker.send("go on")
    except WorkerError as error:
        return MeasurementResult(combination, trials, failed=str(error))
    except (EOFError, ConnectionError):
        return MeasurementResult(combination, trials, failed="its process died, perhaps for want of memory")
    totals = {name: sum(answer.pop(name) for answer in answers) for name in ("steps_per_s", "memory_gb")}
    return MeasurementResult(combination, trials, **totals, **answers[0])


@contextlib.contextmanager
def _start_worker(config: ProbeConfig, combination: Combination) -> Iterator[Connection]:
    """Start a worker; at the end it is killed with what it started, if it still lives. Its Ray ends by itself."""
    connection, theirs = Pipe()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Thread pools read it once, when they are loaded; Ray sets it to a trial's CPUs in the same way.
            env=os.environ | {"OMP_NUM_THREADS": str(combination.threads)},
            start_new_session=True,  # Ctrl-C is the driver's, which then ends this one and its group
        )
    try:
        with connection:
            connection.send((config, combination))
            yield connection
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _receive(worker: Connection, deadline: float) -> dict[str, Any]:
    if not worker.poll(max(0.0, deadline - time.monotonic())):
        raise WorkerError("not done in time, more seconds= give it more")
    answer = worker.recv()
    if isinstance(answer, RltuneError):
        raise answer
    if isinstance(answer, str):
        raise WorkerError(answer)
    return dict(answer)


def keep_work(config: AlgorithmConfig, wide: AlgorithmConfig) -> dict[str, Any]:
    """Find the settings that keep an off-policy algorithm's updates per environment step as its file has them.

    DQN and SAC make one update for each round of sampling unless ``training_intensity`` says otherwise, so that a wider
    vector would look faster only because it learns less.

    Args:
        config: Of the algo file as it is.
        wide: The same with the environments and env runners of a combination.

    Returns:
        Values of ``algo.training``; empty for algorithms without such an argument, and where nothing has to change.
    """
    if capabilities_of(type(config)).replay_ratio != "training_intensity":
        return {}
    replayed = _count_replayed_per_step(config)
    if replayed == _count_replayed_per_step(wide):
        return {}
    return {"training_intensity": round(replayed / _compute_excess(wide), 6)}


def _count_replayed_per_step(config: AlgorithmConfig) -> float:
    """Count the transitions that are learned from for each environment step."""
    if config.training_intensity:
        return float(config.training_intensity * _compute_excess(config))
    sampled = config.get_rollout_fragment_length() * config.num_envs_per_env_runner * max(1, config.num_env_runners)
    return float(config.total_train_batch_size / sampled)


def _compute_excess(config: AlgorithmConfig) -> float:
    """Compute by how much RLlib overshoots an intensity: it counts the local runner even if that is idle (2.60)."""
    runners = int(config.num_env_runners)
    return (runners + 1) / runners if runners else 1.0


def build_combination(config: ProbeConfig, combination: Combination) -> tuple[Build, dict[str, Any]]:
    """Put a combination into the algorithm's file.

    Returns:
        What is built, and the values of ``algo.training`` that were set besides, so that the work stays the same.
    """
    sampling = {"num_envs_per_env_runner": combination.envs, "num_env_runners": combination.env_runners}
    wide = {**config.algo, "env_runners": {**(config.algo.get("env_runners") or {}), **sampling}}
    own, changed = (Build(algo, spec_of(config.env), config.env.vectorize) for algo in (config.algo, wide))
    settings = keep_work(build_config(own, {}, seed=0), build_config(changed, {}, seed=0))
    wide["training"] = {**(wide.get("training") or {}), **settings}
    return changed, settings


def _work(config: ProbeConfig, combination: Combination, driver: Connection) -> None:
    import torch

    torch.set_num_threads(combination.threads)
    prepare_environment()
    build, settings = build_combination(config, combination)
    rllib_config = check_corners(build, parse_space({}))[0]
    from rltune.engine import build_algorithm, find_obstacle
    from rltune.trial.metrics import read_result

    feature = find_obstacle(rllib_config) if config.engine == "fast" else None
    kind = "rllib" if feature else config.engine
    os.environ.pop("OMP_NUM_THREADS", None)  # torch has read it; Ray sets that of its own workers: one CPU, one thread
    needs_ray = kind == "rllib" or combination.env_runners  # the fast engine samples in its own process without
    beside = combination.env_runners + count_learners(config.algo)
    cluster = ClusterConfig(num_cpus=max(1, beside), num_gpus=0)
    with connect_ray(cluster) if needs_ray else contextlib.nullcontext():
        algorithm = build_algorithm(rllib_config, kind)
        progress = read_result(algorithm.train())
        while not progress.learner:  # off-policy algorithms fill their buffer first
            progress = read_result(algorithm.train())
        driver.send({})
        driver.recv()
        before, began, spent = progress.env_steps, time.perf_counter(), 0.0
        while spent < config.seconds:
            progress = read_result(algorithm.train())
            spent = time.perf_counter() - began
        remote = algorithm.env_runner_group.foreach_env_runner(lambda _: peak_gb(), local_env_runner=False)
        rate, memory_gb = (progress.env_steps - before) / spent, peak_gb() + sum(remote)
        replays = capabilities_of(type(rllib_config)).data == "replay"
        figures = {"steps_per_s": rate, "memory_gb": memory_gb}
        driver.send(figures | {"settings": settings, "fallback": feature, "replays": replays})
        while not driver.poll():  # the others measure still
            algorithm.train()
        algorithm.stop()


def main() -> None:
    """Answer the driver, at the other end of an open pipe."""
    driver = Connection(int(sys.argv[1]))
    try:
        config, combination = driver.recv()
        _work(config, combination, driver)
    except RltuneError as error:
        driver.send(error)
    except Exception as error:  # an environment or RLlib raises whatever it likes; the other combinations go on
        driver.send(describe_exception(error))


if __name__ == "__main__":
    main()
