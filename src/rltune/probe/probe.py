"""Measure how fast this machine trains, over vector width, env runners and threads, alone and side by side.

Imports nothing heavy: torch and RLlib live in the workers.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from omegaconf import DictConfig

from rltune.algorithms.build import Build
from rltune.cluster.memory import total_gb
from rltune.cluster.resources import available_cpus, local_machine
from rltune.config.bounds import bounded
from rltune.config.schema import ENGINES, EnvConfig
from rltune.config.validation import check_pair, to_typed
from rltune.envs.spec import spec_of
from rltune.envs.validation import check_env, check_rewards
from rltune.errors import ResourceError, RltuneError
from rltune.formatting import format_duration
from rltune.probe.gpu import GpuUse, measure_on_gpu
from rltune.probe.recommendation import Combination, MeasurementResult, choose_for_one_trial, count, count_fitting
from rltune.probe.worker import measure
from rltune.search.space import parse_space

BUSY = 0.5  # load for each CPU from which others are likely to have slowed the figures


@dataclass
class ProbeConfig:
    """The settings of conf/probe.yaml."""

    engine: str = bounded(choices=ENGINES)
    algo: dict[str, Any] = field(default_factory=dict)
    env: EnvConfig = field(default_factory=EnvConfig)
    widths: list[int] = bounded(minimum=1, example="[1,4,16,64]")
    env_runners: list[int] | None = bounded(None, minimum=0, example="[0,1]")
    threads: list[int] = bounded(minimum=1, example="[1,2]")
    seconds: float = bounded(minimum=0.05, example=2)
    limit_s: float = bounded(minimum=1, example=300)


@dataclass(frozen=True)
class ProbeResult:
    """What a probe measured.

    Attributes:
        config: The request.
        cpus: CPUs that trials may use here.
        results: One for each combination, those of trials side by side last.
        notes: What was left out, and why.
        interrupted: Whether Ctrl-C ended the probe early.
        gpus: GPUs that trials may use here.
        on_gpu: What the best trial that samples itself takes of a GPU; None without one.
    """

    config: ProbeConfig
    cpus: int
    results: tuple[MeasurementResult, ...]
    notes: tuple[str, ...]
    interrupted: bool
    gpus: int = 0
    on_gpu: GpuUse | None = None


def parse_probe_config(raw: DictConfig | Mapping[str, Any]) -> ProbeConfig:
    """Turn composed settings into a checked `ProbeConfig`.

    Raises:
        ConfigError: A key is unknown, missing, or its value is out of range.
    """
    config = to_typed(ProbeConfig, raw)
    check_pair(config.algo, config.env)
    return config


def _write(value: object) -> str:
    return str(value).replace(" ", "")  # as it is typed


def list_combinations(config: ProbeConfig, cpus: int) -> tuple[list[Combination], list[str]]:
    """List what to measure, the plainest first, and in words what is left out.

    Raises:
        ResourceError: Nothing is left.
        ConfigError: Rewards are shaped where another process would sample.
    """
    shaped = spec_of(config.env).rewards
    check_rewards(spec_of(config.env), 0, config.env.vectorize)
    combinations, notes = [], []
    # Doubled until they leave no CPU for the trial's own process.
    several = [0, *(2**n for n in range(cpus.bit_length()) if 2**n < cpus and not shaped)]
    counts = several if config.env_runners is None else config.env_runners
    for env_runners, threads in itertools.product(sorted(set(counts)), sorted(set(config.threads))):
        left_out = f"{count(env_runners, 'env runner')} and {count(threads, 'thread')} left out"
        if env_runners and shaped:
            notes.append(f"{left_out}: with shaped rewards the trial samples itself")
        elif env_runners + threads > cpus:
            notes.append(f"{left_out}: {env_runners + threads} of {cpus} CPUs")
        else:
            combinations += [Combination(envs, env_runners, threads) for envs in sorted(set(config.widths))]
    if not combinations:
        raise ResourceError(
            f"env_runners={_write(counts)} threads={_write(config.threads)} cannot run here: {notes[0]}",
            f"at most {count(cpus, 'CPU')} for a trial, one for each env runner and each thread",
            "env_runners=[0] threads=[1]",
        )
    return combinations, notes


def run_probe(config: ProbeConfig, report: Callable[[str], None] = lambda _: None) -> ProbeResult:
    """Measure until all is done, ``limit_s`` is spent or Ctrl-C is pressed after the first figure.

    Args:
        config: What; see `parse_probe_config`.
        report: Takes lines for a person: what is measured now, what came of it, how long it will take.

    Raises:
        RltuneError: The algorithm and the environment do not go together, or nothing could be measured.
    """
    check_env(spec_of(config.env))
    cpus, memory = int(available_cpus()), total_gb()
    combinations, notes = list_combinations(config, cpus)
    if (load := os.getloadavg()[0]) > BUSY * cpus:
        busy = f"the machine is busy (load {load:.1f} on {count(cpus, 'CPU')})"
        notes.append(f"{busy}: these figures are what was left of it")
    results: list[MeasurementResult] = []
    began, interrupted, gpus, on_gpu = time.monotonic(), False, int(local_machine().gpus), None

    def add(title: str, combination: Combination, trials: int = 1) -> None:
        report(f"{title} {combination}")
        results.append(measure(config, combination, trials))
        report(f"    {results[-1]}")

    try:
        for done, combination in enumerate(combinations):
            spent, left = time.monotonic() - began, len(combinations) - done
            if spent > config.limit_s:
                notes.append(f"limit_s={config.limit_s:g} is spent: {count(left, 'combination')} left out")
                break
            more = format_duration(min(spent / max(1, done) * left, config.limit_s - spent))
            add(f"{done + 1} of {len(combinations)}{f', about {more} left' * bool(done)}:", combination)
        for combination, trials in _list_comparison(results, cpus, memory):
            add(f"side by side: {trials} x" if trials > 1 else "alone:", combination, trials)
        best = choose_for_one_trial(result for result in results if not result.combination.env_runners)
        if gpus and best:
            report(f"on a GPU: {best.combination}")
            on_gpu = _measure_on_gpu(config, best, notes)
    except KeyboardInterrupt:
        if not results:
            raise
        interrupted = True
        notes.append("interrupted: the rest was not measured")
    if not any(result.steps_per_s for result in results):
        why = next((result.failed for result in results if result.failed), "no step was sampled")
        raise RltuneError(f"nothing could be measured: {why}", "at least one combination that trains", "see the reason")
    return ProbeResult(config, cpus, tuple(results), tuple(notes), interrupted, gpus, on_gpu)


def _measure_on_gpu(config: ProbeConfig, best: MeasurementResult, notes: list[str]) -> GpuUse | None:
    """Measure on a GPU what was best without one; note why where that fails."""
    own, chosen = config.algo.get("env_runners") or {}, best.combination
    sampling = {**own, "num_envs_per_env_runner": chosen.envs, "num_env_runners": 0}
    training = {**(config.algo.get("training") or {}), **best.settings}
    algo = {**config.algo, "env_runners": sampling, "training": training}
    build = Build(algo, spec_of(config.env), config.env.vectorize, gpus=1.0)
    try:
        return measure_on_gpu(build, parse_space({}), config.engine, chosen.threads, config.seconds)
    except RltuneError as error:
        notes.append(error.what)
        return None


def _list_comparison(results: Sequence[MeasurementResult], cpus: int, memory: float) -> list[tuple[Combination, int]]:
    """List what decides between many narrow trials and few wide ones, and how many of each at once.

    The best one-CPU trial as often as it fits, the same alone with a thread for every CPU, and the best trial of all as
    often as it fits; without what has been measured already.
    """
    narrow = choose_for_one_trial(result for result in results if result.cpus == 1)
    best = choose_for_one_trial(results)
    wanted = [(each.combination, count_fitting(cpus, memory, each)) for each in (narrow, best) if each]
    if narrow:
        wanted.insert(1, (replace(narrow.combination, threads=cpus), 1))
    known = {(result.combination, result.trials) for result in results}
    return [pair for pair in dict.fromkeys(wanted) if pair not in known]
