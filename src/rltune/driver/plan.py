"""Check a sweep's settings before the first trial, the cheapest checks first, and make its plan.

An invalid name is reported before anything heavy is imported, and nothing is written. Runs in the driver.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rltune.algorithms.arguments import (
    NORMALISE,
    build_search_space,
    check_values,
    count_env_runners,
    count_gpus,
    count_learners,
    widest_layer,
)
from rltune.algorithms.build import Build, make_inputs_absolute
from rltune.algorithms.preflight import check_corners, check_spaces, find_normalisable
from rltune.checkpoints.clients import make_address
from rltune.checkpoints.store import open_store
from rltune.cluster.ray_cluster import check_address, machine_of
from rltune.cluster.resources import Machine, Request, Share, describe_idle_gpu, fit_share
from rltune.config.budget import fit_certification
from rltune.config.capabilities import find_capabilities
from rltune.config.criteria import Criteria, read_criteria
from rltune.config.schema import MEASURED, ResourcesConfig, RunConfig
from rltune.driver.warm_starts import (
    collect_earlier_trials,
    collect_portfolio,
    collect_warm_starts,
    find_baseline,
    note_values_outside,
)
from rltune.envs.objective import Objective, check_objective
from rltune.envs.spec import EnvSpec, specify_env
from rltune.envs.validation import check_env, check_rewards, find_time_limit
from rltune.errors import ConfigError
from rltune.probe import measure_on_gpu
from rltune.records import BASELINE, PORTFOLIO, SEARCHER, TUNED, WARM_START, TrialRecord
from rltune.search.samplers import build_sampler, check_sampler, check_searcher, get_traits
from rltune.search.schedulers import build_stopping_rule
from rltune.search.seeds import derive_certification_seeds, derive_sampler_seed, derive_trial_seeds
from rltune.search.space import Space
from rltune.trial.metrics import check_criteria

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

LOCAL_LEDGER = (
    "the ledger is a file on this machine, and the storage gets a copy when the command ends: if this machine is lost "
    "before that, the checkpoints remain but not the sweep; study.storage=postgresql+psycopg://host/db keeps both"
)
IMAGE_NOTE = (
    "observations are images to the networks, with algo.rl_module.model_config.conv_filters={filters}, derived from "
    "their size; the wrapper rltune.envs.spaces:FlatObservation makes vectors of them"
)


LOSS = "td_error_loss_fn"


@dataclass(frozen=True)
class Plan:
    """A checked sweep: its settings, and everything that is derived from them before the first trial.

    Attributes:
        config: The settings.
        space: The search space.
        build: The parts of each trial's algorithm that are not searched.
        warm_starts: Values by name for the first trials: those of ``warm_start``, then the baseline's.
        baseline: The values of the certification's baseline by name (`rltune.driver.warm_starts.find_baseline`).
        request: A trial's request for resources, to be fitted into the machine.
        notes: Notes for the user, shown when the sweep starts.
        earlier: Trials of earlier sweeps from which the searcher learns.
        portfolio: Values by name for the trials after the warm starts.
    """

    config: RunConfig
    space: Space
    build: Build
    warm_starts: tuple[Mapping[str, Any], ...]
    baseline: Mapping[str, Any]
    request: Request
    notes: tuple[str, ...]
    earlier: tuple[TrialRecord, ...] = ()
    portfolio: tuple[Mapping[str, Any], ...] = ()

    @property
    def criteria(self) -> Criteria:
        """The criteria by which trials are compared, from the settings."""
        return read_criteria(asdict(self.config))

    @property
    def objective(self) -> Objective:
        """The objective that scores measure."""
        return Objective.from_settings(self.build.env.objective)

    def with_notes(self, *notes: str) -> Plan:
        """Return a copy of the plan with further notes for the user."""
        return replace(self, notes=(*self.notes, *notes))

    def share_of(self, *nodes: Machine) -> Share:
        """Return the CPUs and GPUs of each trial on this machine or on the nodes of a cluster."""
        return fit_share(self.request, *nodes)

    def seeds(self, number: int) -> list[int]:
        """Return the seeds of a trial, one for each replicate, derived from the sweep's seed and the trial's number."""
        return derive_trial_seeds(self.config.seed, number, self.config.replicates)

    def certification_seeds(self) -> list[int]:
        """Return the fresh seeds of the certification, which no trial uses; with more seeds, the first stay."""
        searched = {seed for number in range(self.config.budget.trials) for seed in self.seeds(number)}
        return derive_certification_seeds(self.config.seed, self.config.certify.seeds or 0, searched)

    def sampler(self, number: int) -> BaseSampler:
        """Return the Optuna sampler for a trial, seeded from the sweep's seed and the trial's number."""
        seed = derive_sampler_seed(self.config.seed, number)
        searcher = self.config.searcher
        return build_sampler(searcher.kind, searcher.args, seed, self.space.is_conditional, self.config.seed)

    def fixed_values(self, number: int) -> tuple[dict[str, Any], str]:
        """Return the values that are fixed for a trial, such as a warm start's, and their origin.

        A grid tries each of its points once, so it ignores warm starts that are not points of the grid.
        """
        starts = [self.space.encode(values) for values in (*self.warm_starts, *self.portfolio)]
        given = starts[number] if number < len(starts) else {}
        if get_traits(self.config.searcher.kind).is_grid:
            is_new = given not in starts[:number]
            given = given if is_new and self.space.is_fully_specified(given) else {}
        if not given:
            return {}, SEARCHER
        if number < len(self.config.warm_start):
            return given, WARM_START
        if number < len(self.warm_starts):
            return given, BASELINE if self.config.published.env_steps is None else TUNED
        return given, PORTFOLIO

    def assignment_build(self) -> dict[str, Any]:
        """Return `build` as plain dictionaries, for the workers' assignments."""
        plain = {"algo": dict(self.build.algo), "normalisable": list(self.build.normalisable)}
        return {**vars(self.build), **plain, "env": self.build.env.to_dict()}


def describe_plan(plan: Plan) -> dict[str, Any]:
    """Describe the size of a sweep as plain values: its trials, environment steps and certification runs."""
    config, certify = plan.config, plan.config.certify
    steps_per_trial = config.budget.env_steps * config.replicates
    search_steps = min(config.budget.trials * steps_per_trial, config.budget.total_env_steps or math.inf)
    runs = ((certify.top or 0) + 1) * certify.seeds if certify.seeds else 0
    return {
        "algorithm": config.algo["name"],
        "environment": config.env.id,
        "seed": config.seed,
        "searched": {dimension.name: str(dimension) for dimension in plan.space.dimensions},
        "fixed": dict(plan.space.fixed),
        "normalised": plan.build.with_params(plan.space.fixed).env.list_normalised(),
        "trials": config.budget.trials,
        "search_env_steps": search_steps,
        "certification_runs": runs,
        "certification_env_steps": runs * config.budget.env_steps,
        "notes": list(plan.notes),
    }


def make_plan(config: RunConfig, resumed: bool = False) -> Plan:
    """Run the checks that take no RLlib: names, ranges, resources, environment, storage and tracking.

    Args:
        config: The settings.
        resumed: Whether the sweep exists already.

    Raises:
        RltuneError: Names the first invalid setting.
    """
    check_address(config.cluster)
    check_criteria(read_criteria(asdict(config)), find_capabilities(config.algo), config.replicates)
    space = build_search_space(config.algo, config.space)
    check_values(config.algo, space)
    searcher_notes = check_searcher(config.searcher.kind, space)
    earlier, earlier_notes = collect_earlier_trials(config, space, resumed)
    warm_starts, notes = collect_warm_starts(config, space)
    request = _make_request(config)
    build_stopping_rule(config.scheduler.kind, config.scheduler.args, config.budget.env_steps)
    _check_places(config)
    spec, normalisable, env_notes = _check_env(config, space)
    from rltune.driver.trackers import check_trackers  # Imported here, because SQLAlchemy loads slowly.

    check_trackers(config)
    check_sampler(config.searcher.kind, config.searcher.args, space)
    tried = [*map(space.encode, warm_starts), *(trial.drawn or {} for trial in earlier)]
    portfolio, portfolio_notes = collect_portfolio(config, space, tried)
    own_learner = _describe_own_learner(config, space)
    budget_notes = [_describe_few_steps(config), _describe_late_episodes(config, spec, request.env_runners)]
    config, grid_notes = fit_sizes(config)
    idle_gpu = describe_idle_gpu(config.resources.gpus_per_trial)
    ledger_note = LOCAL_LEDGER if config.storage and not config.study.storage else None
    if not normalisable and any(dimension.name == NORMALISE for dimension in space.dimensions):
        env_notes += (f"{NORMALISE} is searched, but nothing here depends on it: '~space.{NORMALISE}' leaves it out",)
    search_notes = *portfolio_notes, *searcher_notes, *earlier_notes
    optional_notes = filter(
        None, [*env_notes, *budget_notes, *search_notes, own_learner, idle_gpu, *grid_notes, ledger_note]
    )
    algo = make_inputs_absolute(config.algo)
    build = Build(algo, spec, config.env.vectorize, request.gpus, config.replicates, config.precision, normalisable)
    baseline = find_baseline(config, space)
    notes = *notes, *note_values_outside(space, baseline), *optional_notes
    return Plan(config, space, build, warm_starts, baseline, request, notes, earlier, portfolio)


def _make_request(config: RunConfig) -> Request:
    """Make the request for each trial's resources, and check that this machine can fulfill it."""
    request = Request(
        cpus=config.resources.cpus_per_trial,
        gpus=_compute_gpus(config.resources),
        max_concurrent=config.resources.max_concurrent,
        env_runners=count_env_runners(config.algo),
        trials=config.budget.trials,
        widest_layer=widest_layer(config.algo),
        learners=count_learners(config.algo),
        trials_per_gpu=config.resources.trials_per_gpu,
    )
    gpus = count_gpus(config.algo, request.gpus, request.gpu_setting[0])
    request = replace(request, gpus=gpus, has_learner_gpus=gpus > request.gpus)
    if machine := machine_of(config.cluster):
        fit_share(request, machine)
    return request


def _check_places(config: RunConfig) -> None:
    """Check that the folder of sweeps can be written, and that the ledger's database and the bucket can be reached."""
    _check_writable(Path(config.output_dir).expanduser().absolute())
    if config.study.storage:
        from rltune.ledger.database import check_storage  # Imported here, because SQLAlchemy loads slowly.

        check_storage(config.study.storage)
    if config.storage:
        open_store(config.output_dir, make_address(config.storage)).check()


def _check_env(config: RunConfig, space: Space) -> tuple[EnvSpec, tuple[str, ...], tuple[str, ...]]:
    """Check that the environment can be built, that it provides the objective, and that the algorithm can act in it.

    Returns:
        Its specification, what ``algo.normalise`` decides, and notes on what cannot be normalised.
    """
    spec = specify_env(config.env, config.objective)
    env_runners, vectorize = count_env_runners(config.algo), config.env.vectorize
    check_rewards(spec, env_runners, vectorize)
    has_several_agents = spec.policies is not None
    check_objective(spec.objective, env_runners=env_runners, vectorize=vectorize, several_agents=has_several_agents)
    spaces = check_env(spec)
    check_spaces(config.algo, config.env.id, spaces, space)
    return spec, *find_normalisable(config.algo, config.env, spec, spaces)


def _describe_own_learner(config: RunConfig, space: Space) -> str | None:
    """Return a note if ``engine=rllib`` trains SAC with a loss that RLlib's own learner lacks; else None."""
    row, loss = find_capabilities(config.algo), (config.algo.get("training") or {}).get(LOSS)
    is_squared = any(corner.get(LOSS, loss) == "mse" for corner in space.corners())
    if config.engine != "rllib" or row is None or row.name != "sac" or not is_squared:
        return None
    return (
        f"algo.training.{LOSS}=mse: RLlib 2.60's SAC knows Huber losses only, so rltune computes its critics' losses; "
        f"with algo.training.{LOSS}=huber all of it is RLlib's"
    )


def _describe_few_steps(config: RunConfig) -> str | None:
    """Return a note if the budget is smaller than the one for which tuned settings were published; else None."""
    published, budget = config.published.env_steps, config.budget.env_steps
    if published is None or published <= budget:
        return None
    return (
        f"the tuned settings, which are tried first and are the baseline, were published for {published:,} environment "
        f"steps; with budget.env_steps={budget} they may do worse than their source says"
    )


def _describe_late_episodes(config: RunConfig, spec: EnvSpec, env_runners: int) -> str | None:
    """Return a note if a trial, or the stopping rule's first judgement, may end before its first episode; else None."""
    fraction = config.scheduler.args.get("grace_fraction")
    time_limit = find_time_limit(spec)
    algo = find_capabilities(config.algo)
    if time_limit is None or (algo and algo.offline):  # Offline training collects no episodes.
        return None
    num_envs = int((config.algo.get("env_runners") or {}).get("num_envs_per_env_runner") or 1) * max(1, env_runners)
    needed = num_envs * time_limit
    until = f"{num_envs} environments may need {needed:,} until their first episode ends"
    if needed > config.budget.env_steps:
        return f"with budget.env_steps={config.budget.env_steps} trials may fail, because {until}"
    if config.scheduler.kind == "none" or fraction is None:
        return None
    first = math.ceil(fraction * config.budget.env_steps)
    if needed <= first:
        return None
    return (
        f"the scheduler first judges trials after {first:,} environment steps, but {until}, and a trial is not judged "
        "before that. With a larger budget.env_steps or scheduler.args.grace_fraction all trials are judged at the "
        "same step"
    )


def _compute_gpus(resources: ResourcesConfig) -> float:
    """Return the GPUs of each trial, or its fraction of a GPU: 1 until `measure_share` has measured it."""
    trials = resources.trials_per_gpu
    if trials is None:
        return resources.gpus_per_trial
    return 1.0 if trials == MEASURED else 1 / int(trials)


def measure_share(plan: Plan) -> Plan:
    """Measure how many trials fit on a GPU if resources.trials_per_gpu=auto, and add a note on the result.

    The number becomes the sweep's own setting, so that a resume uses it, too.

    Raises:
        RltuneError: Not even one trial could be measured.
    """
    if plan.config.resources.trials_per_gpu != MEASURED or (machine := machine_of(plan.config.cluster)) is None:
        return plan
    share = plan.share_of(machine)
    use = measure_on_gpu(plan.build, plan.space, plan.config.engine, share.threads)
    cpus = sum(bundle["CPU"] for bundle in share.bundles)
    most = math.ceil(plan.request.limit / machine.gpus)
    trials = min(use.count_trials(machine.cpus / machine.gpus / cpus), most)
    gpus = 1 / trials
    note = f"resources.trials_per_gpu={trials}, measured: {use}; {machine.cpus:g} CPUs beside {machine.gpus:g} GPUs"
    request, build = replace(plan.request, gpus=gpus), replace(plan.build, gpus=gpus)
    config = replace(plan.config, resources=replace(plan.config.resources, trials_per_gpu=trials))
    return replace(plan.with_notes(note), config=config, request=request, build=build)


def fit_sizes(config: RunConfig) -> tuple[RunConfig, tuple[str, ...]]:
    """Compute settings that follow from others: the number of trials of a grid, and the size of the certification.

    Args:
        config: The settings.

    Returns:
        The settings, and notes on the difference to ``budget.trials``.
    """
    config, notes = _fit_grid(config)
    return fit_certification(config), notes


def _fit_grid(config: RunConfig) -> tuple[RunConfig, tuple[str, ...]]:
    """Limit the number of trials to the number of points in a grid search."""
    if not get_traits(config.searcher.kind).is_grid:
        return config, ()
    trials, points = config.budget.trials, build_search_space(config.algo, config.space).count_points()
    if trials < points:
        return config, (f"the grid has {points} points, of which {trials} are tried; budget.trials={points} tries all",)
    enough = f"the grid has {points} points, after which the search ends, before budget.trials={trials}"
    fitted = replace(config, budget=replace(config.budget, trials=points))
    return fitted, (enough,) if trials > points else ()


def _check_writable(folder: Path) -> None:
    """Check that a folder, or the nearest parent that exists, can be written."""
    parent = next(path for path in (folder, *folder.parents) if path.exists())
    try:  # Only writing a file is a reliable test: the file system may be read-only, and root ignores permissions.
        tempfile.TemporaryFile(dir=parent).close()
    except OSError as error:
        raise ConfigError(
            "output_dir",
            folder,
            f"cannot be written: {error.strerror}",
            "a folder of yours",
            "output_dir=/path/to/sweeps",
        ) from None


def preflight(plan: Plan) -> tuple[str, ...]:
    """Run the checks that need RLlib: build the configs at the corners of the space, and compile the kernels.

    Returns:
        Notes on what the fast engine leaves to stock RLlib, in some trials or in all.

    Raises:
        ConfigError: With the corner and RLlib's own words.
    """
    from rltune.engine import check_precision, find_static_obstacle, prepare_kernels

    configs = check_corners(plan.build, plan.space)
    given = (plan.build.algo.get("rl_module") or {}).get("model_config") or {}
    filters = None if given.get("conv_filters") else configs[0].model_config.get("conv_filters")
    filter_notes = (IMAGE_NOTE.format(filters=str(filters).replace(" ", "")),) if filters else ()
    for config in configs:
        check_precision(config, plan.config.engine, plan.config.precision)
    if plan.config.engine != "fast":
        return filter_notes
    reasons = [find_static_obstacle(config) for config in configs]
    who = "some trials, those with" if None in reasons else "all trials, because the fast engine does not support"
    notes = *filter_notes, *(f"stock RLlib trains {who} {reason}" for reason in dict.fromkeys(reasons) if reason)
    return notes + prepare_kernels(configs[reasons.index(None)]) if None in reasons else notes
