"""Measure how trials use this machine best: environments, CPUs, trials at once, and whether a GPU pays off.

Each trial trains in a worker process of its own, because neither its peak memory nor its thread pools can be given
back. A worker warms up, waits for the others, measures, and then trains on until all have measured, so that trials side
by side compete for the machine all the time.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from multiprocessing.connection import Connection, Pipe
from typing import TYPE_CHECKING, Any

from rltune.algorithms.arguments import count_env_runners, count_learners
from rltune.algorithms.build import Build, build_config
from rltune.algorithms.checks import check_algorithm
from rltune.algorithms.normalising import find_obstacles, remove_from_values
from rltune.algorithms.preflight import check_corners
from rltune.cluster.memory import peak_gb, total_gb
from rltune.cluster.ray_cluster import connect_ray, prepare_environment
from rltune.cluster.resources import available_cpus, local_machine
from rltune.config.capabilities import capabilities_of, find_capabilities
from rltune.config.schema import ClusterConfig, ProbeConfig
from rltune.config.validation import check_pair
from rltune.envs.facts import EnvFacts
from rltune.envs.spec import spec_of
from rltune.envs.validation import examine_env
from rltune.errors import ResourceError, RltuneError, describe_exception, spell
from rltune.formatting import format_count, format_number, spell_command
from rltune.search.space import Space, parse_space
from rltune.search_path import spell_python
from rltune.trial.gpu_memory import GpuUse, read_gpu_use

if TYPE_CHECKING:
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

WORTH = 0.1  # The least gain that justifies more CPUs, environments or a GPU; smaller differences may be noise.
MEMORY_FRACTION = 0.8  # The part of the memory for trials; Ray, the driver and the page cache use the rest.
BUSY_LOAD = 0.5  # A higher load for each CPU means that other programs have slowed the measurements.
START_S = 300.0  # Time-out for a worker to import RLlib, fill its replay memory and train one iteration.
STOP_S = 20.0  # Time-out for a worker to close its environments and Ray.
ROW = "{:>6}  {:>5}  {:>11}  {:>7}  {:>4}  {:>11}  {:>9}"
HEADER = ROW.format("trials", "envs", "env runners", "threads", "GPUs", "env steps/s", "memory")


@dataclass(frozen=True)
class Combination:
    """A way to use the machine: how many environments, env runners, threads, trials and GPUs.

    Attributes:
        envs: Environments that step together in each process that samples.
        env_runners: Remote sampling processes of a trial; with 0 the trial's own process samples.
        threads: Torch threads of the trial's process.
        trials: The number of such trials at the same time.
        gpus: GPUs of a trial, 0 or 1.
    """

    envs: int
    env_runners: int
    threads: int
    trials: int = 1
    gpus: int = 0

    @property
    def cpus_per_trial(self) -> int:
        """CPUs of each trial: its torch threads and its env runners."""
        return self.threads + self.env_runners

    @property
    def cpus(self) -> int:
        """CPUs of all trials together."""
        return self.trials * self.cpus_per_trial

    @property
    def cost(self) -> tuple[int, ...]:
        """The sort key for combinations of about the same speed, the cheapest lowest."""
        return self.gpus, self.cpus, self.cpus_per_trial, self.envs

    def __str__(self) -> str:
        runners = f"in {'each of ' * (self.env_runners > 1)}{format_number(self.env_runners, 'env runner')}, "
        width = f"{format_number(self.envs, 'env')}, {runners * bool(self.env_runners)}"
        return f"{width}{format_number(self.threads, 'thread')}{', on a GPU' * self.gpus}"


@dataclass(frozen=True)
class Measurement:
    """The measured speed and memory of one combination.

    Attributes:
        combination: How its trials used the machine.
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


# -- Functions that choose what is measured, and the best setup -------------------------


def run_probe(
    config: ProbeConfig, typed: Sequence[str] = (), show: Callable[[str], None] = print
) -> tuple[bool, list[Measurement]]:
    """Measure combinations, print a table row for each, and then the settings to type for the best ones.

    Ctrl-C ends the measurements after the first one; the rest of the output follows all the same.

    Args:
        config: What to measure.
        typed: The words of the command line that choose algorithm and environment.
        show: Takes the lines.

    Returns:
        Whether all was measured, which it is not after Ctrl-C, and the measurements.

    Raises:
        RltuneError: The algorithm and the environment do not go together, or nothing could be measured.
    """
    check_pair(config.algo, config.env)
    spec = spec_of(config.env)
    row, several_agents = find_capabilities(config.algo), spec.policies is not None
    check_algorithm(config.algo, parse_space({}), row, several_agents=several_agents)
    facts = examine_env(spec, START_S)
    spec = replace(spec, action_mask=facts.mask.to_dict()) if facts.mask else spec
    obstacles = find_obstacles(config.algo, spec, config.env.vectorize, facts.find_policy_spaces())
    # Env runners of the combinations could not normalise rewards.
    env = replace(config.env, policies=facts.policies or config.env.policies)
    config = replace(config, algo=remove_from_values(config.algo, {*obstacles, "rewards"}), env=env)
    prepare_environment()
    cpus, results, notes = int(available_cpus()), list[Measurement](), list[str]()
    if (load := os.getloadavg()[0]) > BUSY_LOAD * cpus:
        notes.append(f"the machine is busy (load {load:.1f}): other programs have slowed these measurements")
    measurements = measure_all(config, facts, cpus, int(local_machine().gpus))
    show(f"{config.algo['name']} in {config.env.id}, engine={config.engine}, {format_number(cpus, 'CPU')}")
    show(HEADER)
    complete = True
    try:
        for result in measurements:
            results.append(result)
            show(_write_row(result))
    except KeyboardInterrupt:
        if not results:
            raise
        complete = False
        notes.append("interrupted: the rest was not measured")
    notes += [f"{result.combination}: {result.failed}" for result in results if result.failed]
    fallbacks = dict.fromkeys(result.fallback for result in results if result.fallback)
    notes += [f"stock RLlib trained, because the fast engine does not support {reason}" for reason in fallbacks]
    for line in [*(f"note: {note}" for note in notes), *write_advice(config, results, cpus, typed)]:
        show(line)
    return complete, results


def describe_results(config: ProbeConfig, results: Sequence[Measurement]) -> dict[str, Any]:
    """Return the measurements and the best choices for one trial and for a sweep as plain values, for JSON."""

    def describe(result: Measurement | None) -> dict[str, Any] | None:
        if result is None:
            return None
        return {**asdict(result), "overrides": list_overrides(result, config.algo)}

    return {
        "measurements": [describe(result) for result in results],
        "one_trial": describe(choose(result for result in results if result.combination.trials == 1)),
        "sweep": describe(choose(results)),
    }


def measure_all(config: ProbeConfig, facts: EnvFacts, cpus: int, gpus: int) -> Iterator[Measurement]:
    """Measure numbers of environments, then env runners, then threads, then concurrent trials, then a GPU.

    Each stage keeps the best of the stages before.

    Args:
        config: What to measure.
        facts: What is known about the environment.
        cpus: The machine's CPUs.
        gpus: Its GPUs.

    Raises:
        ResourceError: No combination fits the machine.
        ConfigError: The environment cannot shape rewards.
    """
    stages = list_values(config, cpus)
    combination = Combination(**{name: values[0] for name, values in stages.items()})
    alone: dict[Combination, Measurement] = {}
    narrow = best = None
    for name, values in stages.items():
        for value in values:
            wanted = replace(combination, **{name: value})
            if wanted in alone or wanted.cpus > cpus:
                continue
            alone[wanted] = measure(config, facts, wanted)
            yield alone[wanted]
        best = choose(alone.values())
        narrow = narrow or best
        combination = best.combination if best else combination
    if narrow and best:
        by_memory = total_gb() * MEMORY_FRACTION / narrow.memory_gb if narrow.memory_gb else cpus
        most = int(min(cpus // narrow.combination.cpus, by_memory))
        # With hyper-threads, half as many concurrent trials may be as fast as one for each CPU.
        for trials in sorted({most // 2, most} - {0, 1}):
            yield measure(config, facts, replace(narrow.combination, trials=trials))
        if gpus:
            yield measure(config, facts, replace(best.combination, env_runners=0, gpus=1))


def list_values(config: ProbeConfig, cpus: int) -> dict[str, list[int]]:
    """List the values to try for each varied attribute of a `Combination`, the smallest first.

    Raises:
        ResourceError: Not even the smallest values fit the machine.
    """
    env_runners = config.env_runners
    if env_runners is None:
        # Numbers of env runners to try: powers of two that leave one CPU for the trial's process.
        env_runners = [0, *(2**n for n in range(cpus.bit_length()) if 2**n < cpus)]
    values = {"envs": config.widths, "env_runners": env_runners, "threads": config.threads}
    if not values["env_runners"] or min(values["env_runners"]) + min(config.threads) > cpus:
        raise ResourceError(
            f"with threads={spell(config.threads)} cannot run here",
            f"at most {format_number(cpus, 'CPU')} for a trial, one for each env runner and each thread",
            "env_runners=[0] threads=[1]",
            key="env_runners",
            value=env_runners,
        )
    return {name: sorted(set(numbers)) for name, numbers in values.items()}


def choose(results: Iterable[Measurement]) -> Measurement | None:
    """Choose the cheapest combination whose speed is within `WORTH` of the fastest; None if nothing was measured.

    Trials at once are compared as measured, all together, because they share caches, memory and clock.
    """
    trained = [result for result in results if result.steps_per_s]
    threshold = (1 - WORTH) * max((result.steps_per_s for result in trained), default=0.0)
    good = [result for result in trained if result.steps_per_s >= threshold]
    return min(good, key=lambda result: result.combination.cost, default=None)


def write_advice(config: ProbeConfig, results: Sequence[Measurement], cpus: int, typed: Sequence[str]) -> list[str]:
    """Write the recommended settings for one trial and for a sweep, each as a command to type.

    Raises:
        RltuneError: Nothing could be measured.
    """
    trial, sweep = choose(result for result in results if result.combination.trials == 1), choose(results)
    if trial is None or sweep is None:
        reason = next((result.failed for result in results if result.failed), "no step was sampled")
        raise RltuneError(
            f"no combination could be measured: {reason}",
            "at least one combination that can train",
            "change the setting that the reason names",
        )
    at_once, lines = sweep.combination.trials, list[str]()
    for title, best in (
        ("one trial", trial),
        (f"a sweep of {format_number(at_once, 'trial')} at {'once' if at_once > 1 else 'a time'}", sweep),
    ):
        command = shlex.join([*typed, *list_overrides(best, config.algo, cpus if best is sweep else None)])
        lines.append(f"{title}: {best.combination}, {format_count(best.steps_per_s)} env steps/s")
        lines.append(f"    {spell_command('run')} {command}")
    if on_gpu := next((result for result in results if result.combination.gpus and not result.failed), None):
        without = choose(result for result in results if result.combination.trials == 1 and not result.combination.gpus)
        assert without is not None
        verdict = "pays" if trial is on_gpu else "does not pay"
        factor = on_gpu.steps_per_s / without.steps_per_s
        lines.append(f"A GPU {verdict}: with it one trial is {factor:.2g} times as fast.")
    usual = (config.algo.get("env_runners") or {}).get("num_envs_per_env_runner")
    if any(best.combination.envs != usual for best in (trial, sweep)):
        lines.append("Speed is not learning: with another number of environments, compare the returns, too.")
    return lines


def list_overrides(result: Measurement, algo: Mapping[str, Any], cpus: int | None = None) -> list[str]:
    """List the overrides with which a trial uses the machine as in a measurement.

    Args:
        result: The combination that was chosen.
        algo: The algo file; the settings that it has already are left out.
        cpus: The machine's CPUs. If they have room for more trials than these, then their number is typed, too.
    """
    chosen, sampling = result.combination, algo.get("env_runners") or {}
    overrides = [_override(algo, "env_runners", "num_envs_per_env_runner", chosen.envs)]
    if chosen.env_runners != sampling.get("num_env_runners", 0):
        overrides.append(_override(algo, "env_runners", "num_env_runners", chosen.env_runners))
    overrides += [_override(algo, "training", name, value) for name, value in result.settings.items()]
    overrides.append(f"resources.cpus_per_trial={chosen.threads}")
    if chosen.gpus:
        overrides.append("resources.trials_per_gpu=1")
    elif cpus is not None and chosen.trials < cpus // chosen.cpus_per_trial:
        overrides.append(f"resources.max_concurrent={chosen.trials}")
    return overrides


def _override(algo: Mapping[str, Any], section: str, name: str, value: Any) -> str:
    """Write an override ``key=value``, with Hydra's plus sign if the algo file does not have the key."""
    plus = "" if name in (algo.get(section) or {}) else "+"
    return f"{plus}algo.{section}.{name}={value}"


def _write_row(result: Measurement) -> str:
    use = result.combination
    numbers = ("-", "-") if result.failed else (format_count(result.steps_per_s), f"{result.memory_gb:.2f} GB")
    return ROW.format(use.trials, use.envs, use.env_runners, use.threads, use.gpus, *numbers)


# -- Functions that measure -------------------------------------------------------------


class WorkerError(Exception):
    """Raised if one combination could not be measured; others may still work."""


@dataclass(frozen=True)
class Task:
    """What a measured worker process trains, and for how long.

    With 0 seconds only the memory is measured.
    """

    build: Build
    space: Space
    engine: str
    threads: int
    seconds: float = 0.0


def measure(config: ProbeConfig, facts: EnvFacts, combination: Combination) -> Measurement:
    """Train the trials of one combination at the same time, and measure their speed and memory.

    Raises:
        RltuneError: The algorithm cannot be configured, so no other combination can be measured either.
    """
    build, settings = build_combination(config, facts, combination)
    task = Task(build, parse_space({}), config.engine, combination.threads, config.seconds)
    try:
        answers = _run_workers(task, combination.trials)
    except WorkerError as error:
        return Measurement(combination, failed=str(error))
    sums = {name: sum(answer[name] for answer in answers) for name in ("steps_per_s", "memory_gb")}
    return Measurement(combination, settings=settings, fallback=answers[0]["fallback"], **sums)


def measure_on_gpu(build: Build, space: Space, engine: str, threads: int) -> GpuUse:
    """Measure how much GPU memory the largest configuration of a space needs, for trials_per_gpu=auto.

    Raises:
        RltuneError: The algorithm cannot be configured, or not even one trial could be measured.
    """
    try:
        (answer,) = _run_workers(Task(build, space, engine, threads))
    except WorkerError as error:
        raise ResourceError(
            f": no trial could be measured on a GPU: {error}",
            "a number, where nothing can be measured",
            "resources.trials_per_gpu=1",
            key="resources.trials_per_gpu",
            value="auto",
        ) from None
    use: GpuUse = answer["gpu"]
    return GpuUse(build.replicates * use.tensors, use.context, use.total)


def build_combination(config: ProbeConfig, facts: EnvFacts, combination: Combination) -> tuple[Build, dict[str, Any]]:
    """Insert a combination's numbers of environments and env runners into the algo file.

    Returns:
        What is built, and the values of ``algo.training`` that were set besides, so that the work stays the same.
    """
    sampling = {"num_envs_per_env_runner": combination.envs, "num_env_runners": combination.env_runners}
    wide = {**config.algo, "env_runners": {**(config.algo.get("env_runners") or {}), **sampling}}
    spec, vectorize = spec_of(config.env), config.env.vectorize
    plain, changed = (Build(algo, spec, vectorize, facts=facts) for algo in (config.algo, wide))
    settings = keep_work(build_config(plain, {}, seed=0), build_config(changed, {}, seed=0))
    wide["training"] = {**(wide.get("training") or {}), **settings}
    return replace(changed, gpus=float(combination.gpus)), settings


def keep_work(config: AlgorithmConfig, wide: AlgorithmConfig) -> dict[str, Any]:
    """Return settings that keep an off-policy algorithm's number of updates per environment step unchanged.

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
    """Compute the replay ratio: the number of replayed transitions for each environment step."""
    if config.training_intensity:
        return float(config.training_intensity * _compute_excess(config))
    sampled = config.get_rollout_fragment_length() * config.num_envs_per_env_runner * max(1, config.num_env_runners)
    return float(config.total_train_batch_size / sampled)


def _compute_excess(config: AlgorithmConfig) -> float:
    """Return the factor by which RLlib exceeds ``training_intensity``: it counts the idle local runner, too (2.60)."""
    runners = int(config.num_env_runners)
    return (runners + 1) / runners if runners else 1.0


def _run_workers(task: Task, trials: int = 1) -> list[dict[str, Any]]:
    """Train trials side by side, each in its own process, and return their measurements.

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
        raise WorkerError("its process died, perhaps because memory ran out") from None
    return answers


@contextlib.contextmanager
def _start_worker(task: Task) -> Iterator[Connection]:
    """Start a worker process; at the end of the context, kill it with its children if it is still running."""
    connection, theirs = Pipe()
    with theirs:
        process = subprocess.Popen(
            spell_python(__name__, str(theirs.fileno())),
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Ray sets OMP_NUM_THREADS to a trial's CPUs, too. It must be set before the start, because thread pools
            # read it only once.
            env=os.environ | {"OMP_NUM_THREADS": str(task.threads)},
            start_new_session=True,  # Ctrl-C reaches only the driver, which then kills the worker's processes.
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
        raise WorkerError("it was not done in time; a larger seconds= gives it more")
    answer: dict[str, Any] | Exception = worker.recv()
    if isinstance(answer, Exception):
        raise answer
    return answer


def main(descriptor: str) -> None:
    """Run a measured worker process, which receives its task through a pipe from the driver."""
    driver = Connection(int(descriptor))
    try:
        _work(driver.recv(), driver)
    except RltuneError as error:
        driver.send(error)
    except Exception as error:
        # An environment or RLlib may raise anything, but other combinations may work.
        driver.send(WorkerError(describe_exception(error)))


def _work(task: Task, driver: Connection) -> None:
    import torch

    from rltune.engine.kernels.compiler import set_num_threads

    set_num_threads(task.threads)
    prepare_environment()
    config = max(check_corners(task.build, task.space), key=estimate_size)
    from rltune.engine import build_algorithm, find_obstacle
    from rltune.envs.observations import find_network_spaces
    from rltune.trial.metrics import read_result

    spaces = task.build.facts.find_policy_spaces()
    fallback = (
        find_obstacle(config, spaces and find_network_spaces(*spaces, task.build.with_params({}).env))
        if task.engine == "fast"
        else None
    )
    engine = "rllib" if fallback else task.engine
    # torch has already read OMP_NUM_THREADS, and Ray sets it for its own workers.
    os.environ.pop("OMP_NUM_THREADS", None)
    processes, on_gpu = count_env_runners(task.build.algo) + count_learners(task.build.algo), task.build.gpus > 0
    cluster = ClusterConfig(num_cpus=max(1, processes), num_gpus=int(on_gpu))
    # Ray is needed only for stock RLlib and for remote env runners or learners.
    with connect_ray(cluster) if engine == "rllib" or processes else contextlib.nullcontext():
        algorithm = build_algorithm(config, engine, task.build.precision)
        progress = read_result(algorithm.train())
        while not progress.learner:  # Off-policy algorithms first fill their replay memory.
            progress = read_result(algorithm.train())
        driver.send({})
        driver.recv()
        before, start, elapsed_s = progress.env_steps, time.perf_counter(), 0.0
        while elapsed_s < task.seconds:
            progress = read_result(algorithm.train())
            elapsed_s = time.perf_counter() - start
        remote = algorithm.env_runner_group.foreach_env_runner(lambda _: peak_gb(), local_env_runner=False)
        answer = {
            "steps_per_s": (progress.env_steps - before) / elapsed_s if elapsed_s else 0.0,
            "memory_gb": peak_gb() + sum(remote),
            "fallback": fallback,
            "gpu": read_gpu_use(torch.cuda) if on_gpu else None,
        }
        driver.send(answer)
        while not driver.poll():  # The worker trains on, to keep the machine busy while other trials are measured.
            algorithm.train()
        algorithm.stop()


def estimate_size(config: AlgorithmConfig) -> int:
    """Estimate a number that grows with a configuration's memory: network weights plus activations of one update."""
    model = config.model_config
    layers = [*(model.get("fcnet_hiddens") or []), *(model.get("head_fcnet_hiddens") or [])]
    rows = int(getattr(config, "minibatch_size", None) or config.total_train_batch_size)
    weights = sum(inputs * outputs for inputs, outputs in itertools.pairwise(layers))
    return int(weights + sum(layers) * rows + rows)
