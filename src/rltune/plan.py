"""Everything that is checked before the first trial, cheapest first, and what follows from it.

A wrong name is answered before anything heavy is imported; nothing is written. Runs in the driver.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rltune import address, algorithm, environment, rungs, samplers
from rltune.algorithm import Build
from rltune.cluster import machine_of
from rltune.config import RunConfig
from rltune.errors import ConfigError
from rltune.registering import wait_for_ray
from rltune.resources import Machine, Request, Share, share
from rltune.space import Space

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler


@dataclass(frozen=True)
class Plan:
    """A sweep that can run.

    Attributes:
        config: The request.
        space: What is searched.
        build: What every trial is built from.
        warm_starts: Values by name for the first trials: tuned settings, then the algo file's own.
        request: A trial's wishes, to be fitted into the machine.
        notes: What a person should know before it starts.
    """

    config: RunConfig
    space: Space
    build: Build
    warm_starts: tuple[Mapping[str, Any], ...]
    request: Request
    notes: tuple[str, ...]

    def share_of(self, machine: Machine) -> Share:
        """A trial's share of this machine."""
        return share(self.request, machine)

    def seeds(self, number: int) -> list[int]:
        """A trial's seeds, one per replicate, from the sweep's seed and the trial's number."""
        import numpy as np

        sequence = np.random.SeedSequence([self.config.seed, number])
        return [int(seed) & 0x7FFFFFFF for seed in sequence.generate_state(self.config.replicates)]

    def certification_seeds(self) -> list[int]:
        """Fresh seeds for `certify.seeds` runs of each configuration: none is a trial's, and more keep the first."""
        import numpy as np

        searched = {seed for number in range(self.config.budget.trials) for seed in self.seeds(number)}
        wanted = self.config.certify.seeds
        drawn = np.random.SeedSequence([self.config.seed, 0, 2]).generate_state(wanted + len(searched))
        fresh = [int(seed) & 0x7FFFFFFF for seed in drawn]
        return [seed for seed in dict.fromkeys(fresh) if seed not in searched][:wanted]

    def sampler(self, number: int) -> BaseSampler:
        """What proposes a trial, seeded from the sweep's seed and the trial's number."""
        import numpy as np

        seed = int(np.random.SeedSequence([self.config.seed, number, 1]).generate_state(1)[0])
        searcher = self.config.searcher
        return samplers.sampler(searcher.kind, searcher.args, seed, self.space.conditional)

    def assignment_build(self) -> dict[str, Any]:
        """`build` as plain values, for the workers."""
        build = self.build
        env = build.env.to_dict()
        return {"algo": dict(build.algo), "env": env, "vectorize": build.vectorize, "gpus": build.gpus}


def make(config: RunConfig) -> Plan:
    """Run the cheap checks: names, ranges, resources, the environment, storage and tracking.

    Raises:
        RltuneError: Names the first thing that is wrong.
    """
    config = widened(config)
    searched = algorithm.search_space(config.algo, config.space)
    first = first_trial(config, searched)
    env_runners = int((config.algo.get("env_runners") or {}).get("num_env_runners", 0) or 0)
    request = Request(
        cpus=config.resources.cpus_per_trial,
        gpus=config.resources.gpus_per_trial,
        max_concurrent=config.resources.max_concurrent,
        env_runners=env_runners,
        trials=config.budget.trials,
        widest_layer=algorithm.widest_layer(config.algo),
    )
    machine = machine_of(config.cluster)
    if machine is not None:
        share(request, machine)
    rungs.rungs(config.scheduler.kind, config.scheduler.args, config.budget.env_steps)
    _check_writable(Path(config.output_dir).expanduser().absolute())
    spec = environment.spec_of(config.env)
    environment.check_rewards(spec, env_runners, config.env.vectorize)
    environment.check(spec)
    if config.tracking.kind != "off":
        address.check(tracking_uri(config))
    samplers.sampler(config.searcher.kind, config.searcher.args, config.seed, searched.conditional)
    warm, notes = _warm_starts(config, searched, first)
    algo = algorithm.with_absolute_inputs(config.algo)
    build = Build(algo, spec, config.env.vectorize, config.resources.gpus_per_trial)
    return Plan(config, searched, build, warm, request, notes)


def widened(config: RunConfig) -> RunConfig:
    """The request with the ranges of a tuned file where the space has those that the file names, and nowhere else.

    Raises:
        ConfigError: An entry is no pair of a range and a wider one.
    """
    space = dict(config.space)
    for name, pair in config.wider.items():
        if not isinstance(pair, list) or len(pair) != 2:
            raise ConfigError(
                f"wider.{name}={pair} is no pair", "[the space's range, a wider one]", "see conf/tuned/ppo_acrobot.yaml"
            )
        if space.get(name) == pair[0]:
            space[name] = pair[1]
    return replace(config, space=space, wider={})


def first_trial(config: RunConfig, searched: Space) -> dict[str, Any]:
    """The algo file's own values of what is searched, which are the tuned ones where conf/tuned has the pair.

    Those of parameters whose condition does not hold among them are left out.

    Raises:
        ConfigError: The space names an argument that the algo file does not have.
    """
    values = algorithm.values_of(config.algo, (*searched.names, *searched.idle))
    names = {dimension.name for dimension in searched.dimensions}
    return searched.active({name: value for name, value in values.items() if name in names})


def tracking_uri(config: RunConfig) -> str | None:
    """MLflow's address: None is its own default store in this folder."""
    return config.tracking.uri if config.tracking.kind == "server" else None


def _warm_starts(
    config: RunConfig, searched: Space, first: Mapping[str, Any]
) -> tuple[tuple[Mapping[str, Any], ...], tuple[str, ...]]:
    names = {dimension.name for dimension in searched.dimensions}
    starts: list[Mapping[str, Any]] = []
    notes = [f"{name} is not searched, because {why}" for name, why in searched.idle.items()]
    for number, values in enumerate(config.warm_start):
        if not isinstance(values, Mapping):
            raise ConfigError(
                f"warm_start[{number}]={values} is no mapping", "values by name", "warm_start=[{lr: 1e-3}]"
            )
        for name in values:
            algorithm.locate(config.algo, str(name), f"warm_start[{number}].{name}")
        dropped = sorted(set(values) - names)
        if dropped:
            notes.append(f"warm start {number}: {', '.join(dropped)} not searched here, so left as set")
        wanted = {name: value for name, value in values.items() if name in names}
        kept = searched.active(wanted)
        notes += [f"warm start {number}: {name} left out: its condition fails" for name in wanted if name not in kept]
        notes += [f"warm start {number}: {what}" for what in _outside(searched, kept)]
        starts.append(kept)
    if first and first not in starts:
        starts.append(first)
        notes += [f"the files' own values: {what}" for what in _outside(searched, first)]
    return tuple(starts), tuple(notes)


def _outside(searched: Space, values: Mapping[str, Any]) -> list[str]:
    """What a trial that begins with these values has to draw all the same, in words."""
    inside = searched.encode(values)
    return [
        f"{dimension.name}={values[dimension.name]} lies outside {dimension}, so it is drawn instead"
        for dimension in searched.dimensions
        if dimension.name in values and dimension.label not in inside
    ]


def _check_writable(folder: Path) -> None:
    """The nearest folder that exists must let us create the rest."""
    there = folder
    while not there.exists():
        there = there.parent
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"output_dir={folder} cannot be written", "a folder of yours", "output_dir=/path/to/sweeps")


def preflight(plan: Plan) -> tuple[str, ...]:
    """Run the check that needs RLlib: the configuration builds at the ends of the space.

    Returns:
        Notes on what the fast engine leaves to stock RLlib, in some trials or in all.

    Raises:
        ConfigError: With the corner and RLlib's own words.
    """
    wait_for_ray()  # which starts meanwhile
    from rltune import engine

    configs = algorithm.preflight(plan.build, plan.space)
    if plan.config.engine != "fast":
        return ()
    reasons = [engine.static_unsupported(config) for config in configs]
    who = "some trials, those with" if None in reasons else "all trials, because the fast engine does not serve"
    return tuple(f"stock RLlib trains {who} {reason}" for reason in dict.fromkeys(reasons) if reason)
