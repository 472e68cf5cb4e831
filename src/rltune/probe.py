"""Measure the best use of this machine's cores, for one trial and for a sweep, and what a trial takes of a GPU.

Each measurement runs in processes of its own, because neither peak memory nor thread pools nor CUDA's own memory can be
given back. A worker process warms up, says so, waits, measures, answers, and then trains on until all have answered, so
that trials side by side meet the same competition.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, Pipe
from typing import TYPE_CHECKING, Any, TextIO

from omegaconf import DictConfig

from rltune.algorithms.arguments import count_env_runners, count_learners
from rltune.algorithms.build import Build, build_config
from rltune.algorithms.preflight import check_corners
from rltune.cluster.memory import peak_gb, total_gb
from rltune.cluster.ray_cluster import connect_ray, prepare_environment
from rltune.cluster.resources import available_cpus, local_machine
from rltune.config.capabilities import capabilities_of
from rltune.config.schema import ClusterConfig, ProbeConfig
from rltune.config.validation import check_pair, to_typed
from rltune.envs.spec import spec_of
from rltune.envs.validation import check_env, check_rewards
from rltune.errors import ResourceError, RltuneError, describe_exception
from rltune.formatting import format_count, format_number
from rltune.search.space import Space, parse_space
from rltune.trial.gpu_memory import CONTEXT_BYTES

if TYPE_CHECKING:
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

WORTH = 0.1  # More CPUs, environments or width must bring this much. Less is noise, and costs something elsewhere.
MEMORY_FRACTION = 0.8  # The part of the machine's memory for trials. Ray, the driver and the page cache use the rest.
BUSY_LOAD = 0.5  # The load for each CPU from which other programs are likely to have slowed the measurements.
START_S = 300.0  # A worker's time to import RLlib, build, fill its replay memory and train one iteration.
STOP_S = 20.0  # A worker's time to close its environments and its Ray.
GPU_MARGIN = 1.15  # Later iterations fragment memory, and other values of the space need more.
MAX_PER_GPU = 16  # Nobody has measured that more trials on a GPU pay.
GB = 1e9
ROW = "{:>6}  {:>5}  {:>11}  {:>7}  {:>11}  {:>9}"


@dataclass(frozen=True)
class Combination:
    """How trials use the cores.

    Attributes:
        envs: Environments that step together in each process that samples.
        env_runners: Remote sampling processes; with 0 the trial's own process samples.
        threads: Torch threads of the trial's process.
        trials: How many such trials run at the same time.
    """

    envs: int
    env_runners: int
    threads: int
    trials: int = 1

    @property
    def cpus_per_trial(self) -> int:
        """CPUs of each trial, as `rltune.cluster.resources.fit_share` counts them."""
        return self.threads + self.env_runners

    @property
    def cpus(self) -> int:
        """CPUs of all trials together."""
        return self.trials * self.cpus_per_trial

    def __str__(self) -> str:
        runners = f"in {'each of ' * (self.env_runners > 1)}{format_number(self.env_runners, 'env runner')}, "
        width = f"{format_number(self.envs, 'env')}, {runners * bool(self.env_runners)}"
        return f"{width}{format_number(self.threads, 'thread')}"


@dataclass(frozen=True)
class GpuUse:
    """What one trial takes of a GPU that it has for itself.

    Attributes:
        tensors: Bytes that torch reserved at its peak.
        context: Bytes beside them: CUDA's own, and what other programs hold.
        total: Bytes of the GPU.
        steps_per_s: Environment steps per second; 0 if they were not measured.
    """

    tensors: int
    context: int
    total: int
    steps_per_s: float = 0.0

    @property
    def needed(self) -> float:
        """Bytes to give to a trial, with a margin; `cap_memory` leaves as many to its tensors."""
        return GPU_MARGIN * self.tensors + max(self.context, CONTEXT_BYTES)

    def __str__(self) -> str:
        parts = f"{self.tensors / GB:.3g} GB of tensors, {self.context / GB:.3g} GB beside them"
        return f"one takes {self.needed / GB:.3g} of {self.total / GB:.3g} GB ({parts}, {GPU_MARGIN - 1:.0%} to spare)"


@dataclass(frozen=True)
class Measurement:
    """What the trials of one combination achieved.

    Attributes:
        combination: How they used the cores.
        steps_per_s: Environment steps per second of all trials together, sampling and learning; 0 if it failed.
        memory_gb: Peak memory of all trials together.
        settings: Values of ``algo.training`` that were set besides, so that all combinations do the same work.
        fallback: Why stock RLlib trained although the fast engine was requested; None if the engine trained.
        failed: Why there is no result; None if there is one.
    """

    combination: Combination
    steps_per_s: float = 0.0
    memory_gb: float = 0.0
    settings: Mapping[str, Any] = field(default_factory=dict)
    fallback: str | None = None
    failed: str | None = None

    def __str__(self) -> str:
        return self.failed or f"{format_count(self.steps_per_s)} env steps/s"


@dataclass(frozen=True)
class ProbeResult:
    """What a probe measured.

    Attributes:
        config: The request.
        cpus: CPUs that trials may use here.
        measurements: One for each combination; those of trials side by side are last.
        notes: What else the user should know: what was left out, and what a trial takes of a GPU.
        interrupted: Whether Ctrl-C ended the probe early.
    """

    config: ProbeConfig
    cpus: int
    measurements: tuple[Measurement, ...]
    notes: tuple[str, ...]
    interrupted: bool = False


# -- what to measure --------------------------------------------------------------------


def parse_probe_config(raw: DictConfig | Mapping[str, Any]) -> ProbeConfig:
    """Turn composed settings into a checked `ProbeConfig`.

    Raises:
        ConfigError: A key is unknown, missing, or its value is out of range.
    """
    config = to_typed(ProbeConfig, raw)
    check_pair(config.algo, config.env)
    return config


def _spell(value: object) -> str:
    """Spell a value as it is typed."""
    return str(value).replace(" ", "")


def list_combinations(config: ProbeConfig, cpus: int) -> list[Combination]:
    """List what to measure, the plainest first, without what needs more CPUs than there are.

    Raises:
        ResourceError: Nothing is left.
        ConfigError: The environment cannot shape rewards.
    """
    spec = spec_of(config.env)
    check_rewards(spec, 0, config.env.vectorize)
    env_runners = config.env_runners
    if env_runners is None:  # Doubled while they leave a CPU for the trial's own process.
        env_runners = [0, *(2**n for n in range(cpus.bit_length()) if 2**n < cpus)]
    combinations = [
        Combination(envs, runners, threads)
        for runners, threads, envs in itertools.product(
            *map(sorted, map(set, (env_runners, config.threads, config.widths)))
        )
        if runners + threads <= cpus and not (runners and spec.rewards)  # Shaped rewards need the trial's own process.
    ]
    if not combinations:
        raise ResourceError(
            f"env_runners={_spell(env_runners)} threads={_spell(config.threads)} cannot run here",
            f"at most {format_number(cpus, 'CPU')} for a trial, one for each env runner and each thread; "
            "no env runner with shaped rewards (env.rewards)",
            "env_runners=[0] threads=[1]",
        )
    return combinations


def run_probe(config: ProbeConfig, report: Callable[[str], None] = lambda _: None) -> ProbeResult:
    """Measure until all is done, ``limit_s`` is spent, or Ctrl-C is pressed after the first measurement.

    Args:
        config: What to measure; see `parse_probe_config`.
        report: Called with lines of progress.

    Raises:
        RltuneError: The algorithm and the environment do not go together, or nothing could be measured.
    """
    check_env(spec_of(config.env))
    prepare_environment()
    cpus, notes, results = int(available_cpus()), list[str](), list[Measurement]()
    combinations = list_combinations(config, cpus)
    if (load := os.getloadavg()[0]) > BUSY_LOAD * cpus:
        notes.append(f"the machine is busy (load {load:.1f}): other programs have slowed these measurements")

    def add(title: str, combination: Combination) -> None:
        report(f"{title} {combination}")
        results.append(measure(config, combination))
        report(f"    {results[-1]}")

    interrupted, start = False, time.monotonic()
    try:
        for done, combination in enumerate(combinations):
            if time.monotonic() - start > config.limit_s:
                left_out = format_number(len(combinations) - done, "combination")
                notes.append(f"limit_s={config.limit_s:g} is spent: {left_out} left out")
                break
            add(f"{done + 1} of {len(combinations)}:", combination)
        for combination in _list_comparison(results, cpus, total_gb()):
            trials = combination.trials
            add(f"side by side: {trials} x" if trials > 1 else "alone:", combination)
        if gpus := int(local_machine().gpus):
            notes += _compare_with_gpu(config, results, cpus / gpus)
    except KeyboardInterrupt:
        if not results:
            raise
        interrupted = True
        notes.append("interrupted: the rest was not measured")
    if not any(result.steps_per_s for result in results):
        reason = next((result.failed for result in results if result.failed), "no step was sampled")
        raise RltuneError(
            f"nothing could be measured: {reason}", "at least one combination that trains", "see the reason"
        )
    return ProbeResult(config, cpus, tuple(results), tuple(notes), interrupted)


def _list_comparison(results: Sequence[Measurement], cpus: int, memory_gb: float) -> list[Combination]:
    """List what decides between many narrow trials and few wide ones, without what has been measured already.

    These are the best one-CPU trial as often as it fits, the same alone with a thread for every CPU, and the best trial
    of all as often as it fits.
    """
    narrow = choose_for_one_trial(result for result in results if result.combination.cpus == 1)
    best = choose_for_one_trial(results)
    wanted = [
        replace(result.combination, trials=count_fitting(cpus, memory_gb, result))
        for result in (narrow, best)
        if result
    ]
    if narrow:
        wanted.insert(1, replace(narrow.combination, threads=cpus))
    measured = {result.combination for result in results}
    return [combination for combination in dict.fromkeys(wanted) if combination not in measured]


def _compare_with_gpu(config: ProbeConfig, results: Sequence[Measurement], cpus_per_gpu: float) -> list[str]:
    """Measure the best trial that samples itself on a GPU; say how many share one, and whether it is faster without."""
    best = choose_for_one_trial(result for result in results if not result.combination.env_runners)
    if best is None:
        return []
    build = replace(build_combination(config, best.combination)[0], gpus=1.0)
    try:
        use = measure_on_gpu(build, parse_space({}), config.engine, best.combination.threads, config.seconds)
    except RltuneError as error:
        return [error.what]
    trials = choose_trials(use, cpus_per_gpu)
    is_slower = use.steps_per_s < best.steps_per_s
    advice = "a trial is faster without one: resources=auto" if is_slower else f"resources.trials_per_gpu={trials}"
    speeds = f"{format_count(use.steps_per_s)} env steps/s, {format_count(best.steps_per_s)} without it"
    return [f"{format_number(trials, 'trial')} on each GPU: {use}", f"a trial with a GPU: {speeds}; {advice}"]


# -- measuring --------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """What a worker process trains: the largest corner of a space, on a GPU if the build has one.

    Attributes:
        build: What the algorithm is built from.
        space: Its space.
        engine: fast or rllib.
        threads: Torch threads.
        seconds: How long to measure the speed; 0: not at all.
    """

    build: Build
    space: Space
    engine: str
    threads: int
    seconds: float


class WorkerError(Exception):
    """One task could not be measured; others may."""


def measure(config: ProbeConfig, combination: Combination) -> Measurement:
    """Measure the trials of one combination at the same time.

    Raises:
        RltuneError: The algorithm cannot be configured, so no other combination can be measured either.
    """
    build, settings = build_combination(config, combination)
    task = Task(build, parse_space({}), config.engine, combination.threads, config.seconds)
    try:
        answers = _run_workers(task, combination.trials)
    except WorkerError as error:
        return Measurement(combination, failed=str(error))
    sums = {name: sum(answer[name] for answer in answers) for name in ("steps_per_s", "memory_gb")}
    return Measurement(combination, settings=settings, fallback=answers[0]["fallback"], **sums)


def measure_on_gpu(build: Build, space: Space, engine: str, threads: int, seconds: float = 0.0) -> GpuUse:
    """Measure the largest corner of a space, alone on the first GPU.

    Raises:
        RltuneError: The algorithm cannot be configured, or not even one trial could be measured.
    """
    try:
        (answer,) = _run_workers(Task(build, space, engine, threads, seconds))
    except WorkerError as error:
        raise ResourceError(
            f"no trial could be measured on a GPU: {error}",
            "a number, where nothing can be measured",
            "resources.trials_per_gpu=1",
        ) from None
    use: GpuUse = answer["gpu"]
    return replace(use, tensors=build.replicates * use.tensors)


def choose_trials(use: GpuUse, cpus: float) -> int:
    """Choose how many trials share a GPU: as many as memory and CPUs allow, at least one, at most `MAX_PER_GPU`.

    Args:
        use: What one trial takes of the GPU.
        cpus: CPUs for trials beside each GPU. Each trial needs one, to step its environments and to launch kernels.
    """
    return max(1, min(int(use.total // use.needed), int(cpus), MAX_PER_GPU))


def build_combination(config: ProbeConfig, combination: Combination) -> tuple[Build, dict[str, Any]]:
    """Put a combination into the algorithm's file.

    Returns:
        What is built, and the values of ``algo.training`` that were set besides, so that the work stays the same.
    """
    sampling = {"num_envs_per_env_runner": combination.envs, "num_env_runners": combination.env_runners}
    wide = {**config.algo, "env_runners": {**(config.algo.get("env_runners") or {}), **sampling}}
    plain, changed = (Build(algo, spec_of(config.env), config.env.vectorize) for algo in (config.algo, wide))
    settings = keep_work(build_config(plain, {}, seed=0), build_config(changed, {}, seed=0))
    wide["training"] = {**(wide.get("training") or {}), **settings}
    return changed, settings


def keep_work(config: AlgorithmConfig, wide: AlgorithmConfig) -> dict[str, Any]:
    """Find the settings that keep an off-policy algorithm's updates per environment step as its file has them.

    DQN and SAC make one update for each round of sampling unless ``training_intensity`` says otherwise, so that a wider
    vector would look faster only because it learns less.

    Args:
        config: The config of the algo file as it is.
        wide: The same with the environments and env runners of a combination.

    Returns:
        Values of ``algo.training``; empty for algorithms without such an argument, and if nothing has to change.
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


def _run_workers(task: Task, trials: int = 1) -> list[dict[str, Any]]:
    """Let trials train side by side, each in a process of its own, and return what each has measured.

    Raises:
        WorkerError: A process could not measure, died or was not done in time.
        RltuneError: The algorithm cannot be configured.
    """
    deadline = time.monotonic() + START_S + 10 * task.seconds
    answers: list[dict[str, Any]] = []
    try:
        with contextlib.ExitStack() as stack:
            workers = [stack.enter_context(_start_worker(task)) for _ in range(trials)]
            for _ in ("warmed up", "measured"):
                answers = [_receive(worker, deadline) for worker in workers]
                for worker in workers:
                    worker.send("go on")
    except (EOFError, ConnectionError):
        raise WorkerError("its process died, perhaps for want of memory") from None
    return answers


@contextlib.contextmanager
def _start_worker(task: Task) -> Iterator[Connection]:
    """Start a worker. If it still lives at the end, it is killed with the processes that it started."""
    connection, theirs = Pipe()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", "from rltune.probe import main; main()", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Thread pools read it once, when they are loaded. Ray sets it to a trial's CPUs in the same way.
            env=os.environ | {"OMP_NUM_THREADS": str(task.threads)},
            start_new_session=True,  # Ctrl-C reaches the driver alone, which then ends the worker and its group.
        )
    try:
        with connection:
            connection.send(task)
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


def main() -> None:
    """Train and measure in a worker process; the driver is at the other end of an open pipe."""
    driver = Connection(int(sys.argv[1]))
    try:
        _work(driver.recv(), driver)
    except RltuneError as error:
        driver.send(error)
    except Exception as error:  # An environment or RLlib raises whatever it likes; other combinations may work.
        driver.send(describe_exception(error))


def _work(task: Task, driver: Connection) -> None:
    import torch

    torch.set_num_threads(task.threads)
    prepare_environment()
    config = find_largest(check_corners(task.build, task.space))
    from rltune.engine import build_algorithm, find_obstacle
    from rltune.trial.metrics import read_result

    fallback = find_obstacle(config) if task.engine == "fast" else None
    engine = "rllib" if fallback else task.engine
    os.environ.pop("OMP_NUM_THREADS", None)  # torch has read it. Ray sets it for its own workers.
    processes, on_gpu = count_env_runners(task.build.algo) + count_learners(task.build.algo), task.build.gpus > 0
    cluster = ClusterConfig(num_cpus=max(1, processes), num_gpus=int(on_gpu))
    # The fast engine needs no Ray if it samples in its own process.
    with connect_ray(cluster) if engine == "rllib" or processes else contextlib.nullcontext():
        algorithm = build_algorithm(config, engine, task.build.precision)
        progress = read_result(algorithm.train())
        while not progress.learner:  # Off-policy algorithms fill their memory first.
            progress = read_result(algorithm.train())
        driver.send({})
        driver.recv()
        before, start, spent = progress.env_steps, time.perf_counter(), 0.0
        while spent < task.seconds:
            progress = read_result(algorithm.train())
            spent = time.perf_counter() - start
        steps_per_s = (progress.env_steps - before) / spent if spent else 0.0
        remote = algorithm.env_runner_group.foreach_env_runner(lambda _: peak_gb(), local_env_runner=False)
        driver.send(
            {
                "steps_per_s": steps_per_s,
                "memory_gb": peak_gb() + sum(remote),
                "fallback": fallback,
                "gpu": read_gpu_use(torch.cuda, steps_per_s) if on_gpu else None,
            }
        )
        while not driver.poll():  # The other trials are still measured.
            algorithm.train()
        algorithm.stop()


def find_largest(configs: Sequence[AlgorithmConfig]) -> AlgorithmConfig:
    """Find the configuration that takes most memory: by weights, and by units times the rows of an update."""
    return max(configs, key=_estimate_size)


def _estimate_size(config: AlgorithmConfig) -> int:
    model = config.model_config
    layers = [*(model.get("fcnet_hiddens") or []), *(model.get("head_fcnet_hiddens") or [])]
    rows = int(getattr(config, "minibatch_size", None) or config.total_train_batch_size)
    weights = sum(inputs * outputs for inputs, outputs in itertools.pairwise(layers))
    return int(weights + sum(layers) * rows + rows)


def read_gpu_use(cuda: Any, steps_per_s: float = 0.0) -> GpuUse:
    """Read what this process has taken of its GPU; ``cuda`` is ``torch.cuda``."""
    free, total = cuda.mem_get_info()
    context = total - free - cuda.memory_reserved()
    return GpuUse(cuda.max_memory_reserved(), context, total, steps_per_s)


# -- what is best -----------------------------------------------------------------------


def choose_for_one_trial(results: Iterable[Measurement]) -> Measurement | None:
    """Choose the best for a trial that has the machine to itself; None without a measurement.

    It is the fastest, unless another one that needs fewer CPUs, or else fewer environments, comes within `WORTH` of it.
    """
    alone = [result for result in results if result.combination.trials == 1]
    return _choose_cheapest(alone, lambda combination: (combination.cpus, combination.envs))


def choose_for_sweep(results: Iterable[Measurement], cpus: int) -> Measurement | None:
    """Choose the best for a sweep of at least as many trials as ``cpus``; None without a measurement.

    It has most steps per second over all trials, as measured and not as multiplied: trials side by side share caches,
    memory and clock. Within `WORTH` of the best, more and narrower trials win: early stopping then has more of them to
    compare, and none waits for its own threads. What leaves room for another trial is not compared.
    """
    full = [result for result in results if result.combination.trials > 1 or 2 * result.combination.cpus > cpus]
    return _choose_cheapest(full, lambda combination: (-combination.trials, combination.cpus, combination.envs))


def _choose_cheapest(
    results: Sequence[Measurement], cost: Callable[[Combination], tuple[int, ...]]
) -> Measurement | None:
    threshold = (1 - WORTH) * max((result.steps_per_s for result in results), default=0.0)
    good = [result for result in results if result.steps_per_s and result.steps_per_s >= threshold]
    return min(good, key=lambda result: cost(result.combination), default=None)


def count_fitting(cpus: int, memory_gb: float, trial: Measurement) -> int:
    """Count the trials like this one that run at once: as CPUs and, at its peak, memory allow; at least one."""
    by_memory = int(memory_gb * MEMORY_FRACTION / trial.memory_gb) if trial.memory_gb else cpus
    return max(1, min(cpus // trial.combination.cpus, by_memory))


def write_overrides(result: Measurement, algo: Mapping[str, Any], cpus: int | None = None) -> str:
    """Write what to type for trials like these.

    Args:
        result: The combination that was chosen.
        algo: The algo file: what it says already about env runners is left out.
        cpus: The machine's. If memory allows fewer trials than they do, then the number of trials is typed, too.
    """
    chosen, sampling = result.combination, algo.get("env_runners") or {}
    typed = [_override(algo, "env_runners", "num_envs_per_env_runner", chosen.envs)]
    if chosen.env_runners != sampling.get("num_env_runners", 0):
        typed.append(_override(algo, "env_runners", "num_env_runners", chosen.env_runners))
    typed += [_override(algo, "training", name, value) for name, value in result.settings.items()]
    typed.append(f"resources.cpus_per_trial={chosen.threads}")
    if cpus is not None and chosen.trials < cpus // chosen.cpus_per_trial:
        typed.append(f"resources.max_concurrent={chosen.trials}")
    return " ".join(typed)


def _override(algo: Mapping[str, Any], section: str, name: str, value: Any) -> str:
    """Write ``key=value``, with the plus that Hydra wants for a key that the file does not have."""
    plus = "" if name in (algo.get(section) or {}) else "+"
    return f"{plus}algo.{section}.{name}={value}"


# -- what the user reads ----------------------------------------------------------------


def print_result(probe: ProbeResult, stream: TextIO | None = None) -> None:
    """Print the measurements as a table of at most 80 columns, the notes, and what to type.

    Args:
        probe: What was measured.
        stream: Where to print; None is standard output.
    """
    config, failed = probe.config, [result for result in probe.measurements if result.failed]
    lines = [
        f"{config.algo['name']} in {config.env.id}, engine={config.engine}, {format_number(probe.cpus, 'CPU')}; "
        f"{config.seconds:g} s each after warm-up",
        ROW.format("trials", "envs", "env runners", "threads", "env steps/s", "memory"),
    ]
    for result in probe.measurements:
        use = result.combination
        numbers = ("failed", "-") if result.failed else (format_count(result.steps_per_s), f"{result.memory_gb:.2f} GB")
        lines.append(ROW.format(use.trials, use.envs, use.env_runners, use.threads, *numbers))
    lines += [f"note: {note}" for note in probe.notes]
    lines += [f"note: {result.combination}: {result.failed}" for result in failed]
    for reason in dict.fromkeys(result.fallback for result in probe.measurements if result.fallback):
        lines.append(f"note: stock RLlib trains this one, because the fast engine does not serve {reason}")
    print("\n".join([*lines, *write_conclusion(probe)]), file=stream)


def write_conclusion(probe: ProbeResult) -> list[str]:
    """Write the best use of the cores for one trial and for a sweep, each with the overrides to type."""
    algo, cpus = probe.config.algo, probe.cpus
    trial, sweep = choose_for_one_trial(probe.measurements), choose_for_sweep(probe.measurements, cpus)
    lines: list[str] = []
    if trial:
        lines += [f"one trial   {trial.combination}: {trial}", f"            {write_overrides(trial, algo)}"]
    if sweep:
        number = sweep.combination.trials
        trials = f"{format_number(number, 'trial')} at {'once' if number > 1 else 'a time'}"
        lines += [f"a sweep     {trials}, each {sweep.combination}: {sweep} together"]
        lines += [f"            {write_overrides(sweep, algo, cpus)}"]
    usual = (algo.get("env_runners") or {}).get("num_envs_per_env_runner")
    if any(best.combination.envs != usual for best in (trial, sweep) if best):
        lines.append("Speed is not learning: with another number of environments, compare the returns, too.")
    return lines
