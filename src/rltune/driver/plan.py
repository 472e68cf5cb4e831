"""Check a request before the first trial, cheapest first, and plan the sweep.

A wrong name is answered before anything heavy is imported; nothing is written. Runs in the driver.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rltune.algorithms.arguments import (
    build_search_space,
    check_values,
    count_env_runners,
    count_gpus,
    count_learners,
    widest_layer,
)
from rltune.algorithms.build import Build, make_inputs_absolute
from rltune.algorithms.preflight import check_actions, check_corners
from rltune.checkpoints.clients import make_address
from rltune.checkpoints.store import open_store
from rltune.cluster.ray_cluster import check_address, machine_of
from rltune.cluster.resources import Machine, Request, Share, describe_idle_gpu, fit_share
from rltune.config.capabilities import find_capabilities
from rltune.config.criteria import Criteria, read_criteria
from rltune.config.schema import MEASURED, MLFLOW, ResourcesConfig, RunConfig
from rltune.driver.warm_starts import choose_first_trial, collect_earlier_trials, collect_warm_starts, widen_ranges
from rltune.envs.objective import Objective, check_objective
from rltune.envs.spec import EnvSpec, specify_env
from rltune.envs.validation import check_env, check_rewards, find_time_limit
from rltune.errors import ConfigError
from rltune.probe import choose_trials, measure_on_gpu
from rltune.records import TrialRecord
from rltune.search.samplers import build_sampler, check_sampler, check_searcher, name_sampler
from rltune.search.schedulers import build_stopping_rule
from rltune.search.seeds import derive_certification_seeds, derive_sampler_seed, derive_trial_seeds
from rltune.search.space import Space
from rltune.tracking.uri_check import check_uri
from rltune.trial.metrics import check_criteria

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

LOCAL_LEDGER = (
    "the ledger is a file on this machine, and the storage gets a copy when the command ends: if this machine is lost "
    "before, the checkpoints are there but not the sweep; study.storage=postgresql+psycopg://host/db keeps it"
)


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
        earlier: Trials of earlier sweeps that the searcher is shown.
    """

    config: RunConfig
    space: Space
    build: Build
    warm_starts: tuple[Mapping[str, Any], ...]
    request: Request
    notes: tuple[str, ...]
    earlier: tuple[TrialRecord, ...] = ()

    @property
    def criteria(self) -> Criteria:
        """What it judges trials by."""
        return read_criteria(asdict(self.config))

    @property
    def objective(self) -> Objective:
        """What its scores measure."""
        return Objective.from_settings(self.build.env.objective)

    def with_notes(self, *notes: str) -> Plan:
        """Return the plan with further notes."""
        return replace(self, notes=(*self.notes, *notes))

    def share_of(self, *nodes: Machine) -> Share:
        """Return a trial's share of this machine, or of a cluster."""
        return fit_share(self.request, *nodes)

    def seeds(self, number: int) -> list[int]:
        """Return a trial's seeds, one per replicate, from the sweep's seed and the trial's number."""
        return derive_trial_seeds(self.config.seed, number, self.config.replicates)

    def certification_seeds(self) -> list[int]:
        """Return `certify.seeds` fresh seeds for each configuration: none is a trial's, and more keep the first."""
        searched = {seed for number in range(self.config.budget.trials) for seed in self.seeds(number)}
        return derive_certification_seeds(self.config.seed, self.config.certify.seeds, searched)

    def sampler(self, number: int) -> BaseSampler:
        """Return what proposes a trial, seeded from the sweep's seed and the trial's number."""
        seed = derive_sampler_seed(self.config.seed, number)
        searcher = self.config.searcher
        return build_sampler(searcher.kind, searcher.args, seed, self.space.is_conditional, self.config.seed)

    def given(self, number: int) -> dict[str, Any]:
        """Return the searched quantities by label that a trial takes as they are; the sampler draws the others.

        A grid tries whole points, each once: of its warm starts it takes those that are points.
        """
        starts = [self.space.encode(values) for values in self.warm_starts]
        given = starts[number] if number < len(starts) else {}
        if name_sampler(self.config.searcher.kind) == "grid" and given:
            is_new = given not in starts[:number]
            return given if is_new and self.space.is_whole(given) else {}
        return given

    def assignment_build(self) -> dict[str, Any]:
        """Return `build` as plain values, for the workers."""
        build = self.build
        env = build.env.to_dict()
        own = {name: getattr(build, name) for name in ("vectorize", "gpus", "replicates", "precision")}
        return {"algo": dict(build.algo), "env": env, **own}


def make_plan(config: RunConfig, resumed: bool = False) -> Plan:
    """Run the cheap checks: names, ranges, resources, the environment, storage and tracking.

    Args:
        config: The request.
        resumed: Whether the sweep was begun before.

    Raises:
        RltuneError: Names the first thing that is wrong.
    """
    check_address(config.cluster)
    check_criteria(read_criteria(asdict(config)), find_capabilities(config.algo), config.replicates)
    config = widen_ranges(config)
    searched = build_search_space(config.algo, config.space)
    check_values(config.algo, searched)
    left_to_chance = check_searcher(config.searcher.kind, searched)
    earlier, earlier_notes = collect_earlier_trials(config, searched, resumed)
    first = choose_first_trial(config, searched)
    env_runners = count_env_runners(config.algo)
    request = Request(
        cpus=config.resources.cpus_per_trial,
        gpus=_gpus_of(config.resources),
        max_concurrent=config.resources.max_concurrent,
        env_runners=env_runners,
        trials=config.budget.trials,
        widest_layer=widest_layer(config.algo),
        learners=count_learners(config.algo),
        trials_per_gpu=config.resources.trials_per_gpu,
    )
    request = replace(request, gpus=count_gpus(config.algo, request.gpus, request.gpu_setting))
    machine = machine_of(config.cluster)
    if machine is not None:
        fit_share(request, machine)
    build_stopping_rule(config.scheduler.kind, config.scheduler.args, config.budget.env_steps)
    _check_writable(Path(config.output_dir).expanduser().absolute())
    if config.study.storage:
        from rltune.ledger.ledger import check_storage  # brings SQLAlchemy, for which other requests need not wait

        check_storage(config.study.storage)
    if config.storage:
        open_store(config.output_dir, make_address(config.storage)).check()
    spec = specify_env(config.env, config.objective)
    check_rewards(spec, env_runners, config.env.vectorize)
    several = spec.policies is not None
    check_objective(spec.objective, env_runners=env_runners, vectorize=config.env.vectorize, several_agents=several)
    action_space = check_env(spec)
    check_actions(config.algo, config.env.id, action_space)
    if config.tracking.kind in MLFLOW:
        check_uri(config.tracking.uri)
    if config.tracking.kind == "wandb" and find_spec("wandb") is None:
        raise ConfigError("tracking=wandb: wandb is not installed", "the extra wandb", "pip install 'rltune[wandb]'")
    if ":" in config.tracking.kind:
        from rltune.tracking.tracker import import_tracker

        import_tracker(config.tracking.kind)
    check_sampler(config.searcher.kind, config.searcher.args, searched)
    if config.callbacks:
        from rltune.tracking.callbacks import import_callback  # SQLAlchemy again

        for target in config.callbacks:
            import_callback(target)
    warm, notes = collect_warm_starts(config, searched, first)
    idle = describe_idle_gpu(config.resources.gpus_per_trial)
    few, late = _describe_few_steps(config), _describe_late_episodes(config, spec, env_runners)
    notes = (*notes, *filter(None, [few, late]), *left_to_chance, *earlier_notes, *filter(None, [idle]))
    config, how_far = fit_grid(config)
    notes = (*notes, *how_far)
    if config.storage and not config.study.storage:
        notes = (*notes, LOCAL_LEDGER)
    algo = make_inputs_absolute(config.algo)
    build = Build(algo, spec, config.env.vectorize, request.gpus, config.replicates, config.precision)
    return Plan(config, searched, build, warm, request, notes, earlier)


def _describe_few_steps(config: RunConfig) -> str | None:
    """Say that the tuned settings get fewer steps than they were published for; None where they do not."""
    published, budget = config.published.env_steps, config.budget.env_steps
    if published is None or published <= budget:
        return None
    return (
        f"the tuned settings, which are tried first and are the baseline, were published for {published:,} environment "
        f"steps; with budget.env_steps={budget} they may do worse than their source says"
    )


def _describe_late_episodes(config: RunConfig, spec: EnvSpec, env_runners: int) -> str | None:
    """Say that trials may reach the stopping rule's first verdict before any episode has ended; None where not."""
    fraction = config.scheduler.args.get("grace_fraction")
    time_limit = find_time_limit(spec)
    if config.scheduler.kind == "none" or fraction is None or time_limit is None:
        return None
    num_envs = int((config.algo.get("env_runners") or {}).get("num_envs_per_env_runner") or 1) * max(1, env_runners)
    first, needed = math.ceil(fraction * config.budget.env_steps), num_envs * time_limit
    if needed <= first:
        return None
    return (
        f"the scheduler's first verdict is due after {first:,} environment steps, and {num_envs} environments may need "
        f"{needed:,} until their first episode ends; a trial is not judged before. A larger budget.env_steps or "
        "scheduler.args.grace_fraction lets all be judged at the same step"
    )


def _gpus_of(resources: ResourcesConfig) -> float:
    """Return a trial's GPUs, or its part of one, as ``resources`` asks for it; a whole one until it is measured."""
    trials = resources.trials_per_gpu
    if trials is None:
        return resources.gpus_per_trial
    return 1.0 if trials == MEASURED else 1 / int(trials)


def measure_share(plan: Plan) -> Plan:
    """Measure which part of a GPU a trial needs where that was left open, and note what was measured.

    The number becomes the sweep's own setting, so that a resume goes on with it.

    Raises:
        RltuneError: Not even one trial could be measured.
    """
    if plan.config.resources.trials_per_gpu != MEASURED or (machine := machine_of(plan.config.cluster)) is None:
        return plan
    share = plan.share_of(machine)
    use = measure_on_gpu(plan.build, plan.space, plan.config.engine, share.threads)
    cpus = sum(bundle["CPU"] for bundle in share.bundles)
    of_use = math.ceil(plan.request.limit / machine.gpus)
    trials = min(choose_trials(use, machine.cpus / machine.gpus / cpus), of_use)
    gpus = 1 / trials
    note = f"resources.trials_per_gpu={trials}, measured: {use}; {machine.cpus:g} CPUs beside {machine.gpus:g} GPUs"
    request, build = replace(plan.request, gpus=gpus), replace(plan.build, gpus=gpus)
    config = replace(plan.config, resources=replace(plan.config.resources, trials_per_gpu=trials))
    return replace(plan, config=config, request=request, build=build, notes=(*plan.notes, note))


def fit_grid(config: RunConfig) -> tuple[RunConfig, tuple[str, ...]]:
    """End the search after the last point of its grid, and say how far that is from ``budget.trials``.

    Args:
        config: The request, its ranges widened.
    """
    if name_sampler(config.searcher.kind) != "grid":
        return config, ()
    trials, points = config.budget.trials, build_search_space(config.algo, config.space).count_points()
    if trials < points:
        return config, (f"the grid has {points} points, of which {trials} are tried; budget.trials={points} tries all",)
    enough = f"the grid has {points} points, after which the search ends, before budget.trials={trials}"
    fitted = replace(config, budget=replace(config.budget, trials=points))
    return fitted, (enough,) if trials > points else ()


def _check_writable(folder: Path) -> None:
    """Check that the nearest folder that exists lets us create the rest."""
    there = folder
    while not there.exists():
        there = there.parent
    try:  # only writing tells: root may write where a file system lets nobody
        tempfile.TemporaryFile(dir=there).close()
    except OSError as error:
        raise ConfigError(
            f"output_dir={folder} cannot be written: {error.strerror}",
            "a folder of yours",
            "output_dir=/path/to/sweeps",
        ) from None


def preflight(plan: Plan) -> tuple[str, ...]:
    """Run the check that needs RLlib: the configuration builds at the ends of the space.

    Returns:
        Notes on what the fast engine leaves to stock RLlib, in some trials or in all.

    Raises:
        ConfigError: With the corner and RLlib's own words.
    """
    from rltune.engine import check_precision, find_static_obstacle

    configs = check_corners(plan.build, plan.space)
    for config in configs:
        check_precision(config, plan.config.engine, plan.config.precision)
    if plan.config.engine != "fast":
        return ()
    reasons = [find_static_obstacle(config) for config in configs]
    who = "some trials, those with" if None in reasons else "all trials, because the fast engine does not serve"
    return tuple(f"stock RLlib trains {who} {reason}" for reason in dict.fromkeys(reasons) if reason)
