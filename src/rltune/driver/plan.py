"""Check a sweep's settings before the first trial, the cheapest checks first, and make its plan.

An invalid name is reported before anything heavy is imported, and nothing is written. Runs in the driver.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rltune.algorithms.arguments import (
    apply_params,
    build_search_space,
    count_copies,
    count_env_runners,
    count_gpus,
    count_learners,
    name_arguments,
    widest_layer,
)
from rltune.algorithms.build import Build, make_inputs_absolute
from rltune.algorithms.checks import check_algorithm, list_encoders
from rltune.algorithms.normalising import find_obstacles, list_notes, remove_from_space, remove_from_values
from rltune.algorithms.preflight import check_bounds, check_corners, check_mask, check_spaces, check_vector_env
from rltune.checkpoints.clients import make_address
from rltune.checkpoints.store import Store, open_store
from rltune.cluster.ray_cluster import check_address, find_temp_folder, machine_of
from rltune.cluster.resources import Machine, Request, Share, describe_idle_gpu, fit_share
from rltune.config.authorship import find_key_file, find_key_problem
from rltune.config.budget import SCORE_EPISODES, fit_sizes, size_score
from rltune.config.capabilities import Capabilities, find_capabilities
from rltune.config.criteria import Criteria, read_criteria
from rltune.config.names import make_sweep_name, sweep_folder_of
from rltune.config.schema import (
    MEASURED,
    BudgetConfig,
    CertifyConfig,
    CheckpointConfig,
    ClusterConfig,
    FailuresConfig,
    ResourcesConfig,
    RunConfig,
    SchedulerConfig,
    ScoreConfig,
    SearcherConfig,
    TrackingConfig,
)
from rltune.config.settings_file import redact_config
from rltune.driver.warm_starts import (
    collect_earlier_trials,
    collect_portfolio,
    collect_warm_starts,
    find_baseline,
    note_values_outside,
)
from rltune.envs.changes import check_changes, is_measured_apart
from rltune.envs.child import Fork
from rltune.envs.copies import make_limit_error
from rltune.envs.facts import EnvFacts
from rltune.envs.objective import Objective, check_objective
from rltune.envs.pettingzoo import assign_policies
from rltune.envs.searched import (
    ENV,
    KWARGS,
    TRAIN_ENV,
    WRAPPERS,
    is_changed,
    is_of_env,
    list_corner_envs,
    list_env_arguments,
)
from rltune.envs.spec import RETURN, EnvSpec, parse_metrics, spec_of, specify_env
from rltune.envs.validation import examine_env, refuse_program
from rltune.errors import ABSENT, ConfigError, GuestError, spell
from rltune.formatting import flatten_settings, format_number
from rltune.probe import measure_on_gpu
from rltune.records import BASELINE, PORTFOLIO, SEARCHER, TUNED, WARM_START, TrialRecord
from rltune.search.dimensions import KINDS
from rltune.search.samplers import SamplerTraits, build_sampler, check_sampler, check_searcher, get_traits
from rltune.search.schedulers import StoppingRule, build_stopping_rule
from rltune.search.seeds import derive_certification_seeds, derive_sampler_seed, derive_trial_seeds
from rltune.search.space import Space
from rltune.trial.metrics import check_criteria
from rltune.trial.recent_episodes import USUAL_STEPS, spell_time_limit

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler

LOCAL_LEDGER = (
    "the ledger is a file on this machine, and the storage gets a copy when the command ends: if this machine is lost "
    "before that, the checkpoints remain but not the sweep; study.storage=postgresql+psycopg://host/db keeps both"
)

ONE_ENV = (
    "the winner is measured on the data that chose it, score.env, because certify.env names no other: "
    "'certify.env={kwargs: {split: test}}' names data that decide nothing"
)
FEW_EPISODES = 10  # With fewer episodes a report, scores are noisier than usual ones of training episodes.
LOSS = "td_error_loss_fn"


@dataclass(frozen=True)
class Plan:
    """A checked sweep with everything that follows from its settings: the one object that its driver works on.

    Attributes:
        folder: The sweep's folder, as an absolute path; its name is the sweep's.
        resumed: Whether the sweep exists already.
        given_settings: The settings as they were given, without logins, for ``config.yaml``: a resume starts from them.
        settings: The settings of the sweep as it runs, with the sizes that follow from others, without logins.
        env_name: The environment's name, which is part of the registered model's.
        seed: The seed from which all others derive.
        engine: ``fast`` or ``rllib``.
        report: Whether the report is written at the end.
        notify: The address to which the end is posted, with its login.
        store_address: The sweep's address in a bucket; None keeps everything in its folder.
        ledger_url: The address of the ledger's database with its login; None is a file in the folder.
        budget: The budget; a grid has no more trials than points.
        score: The episodes that trials play at each report; ``episodes`` is a number.
        certify: The size of the certification; ``top`` and ``seeds`` are numbers.
        checkpoint: When training states are saved.
        failures: What happens to trials that fail.
        cluster: The Ray that runs the trials.
        tracking: The trackers, with their login.
        searcher: The searcher and its arguments.
        traits: What the searcher's sampler can do.
        scheduler: The stopping rule and its arguments.
        criteria: The criteria by which trials are compared.
        space: The search space.
        build: The parts of each trial's algorithm that are not searched.
        baseline: The values of the certification's baseline by name (`rltune.driver.warm_starts.find_baseline`).
        request: A trial's request for resources, to be fitted into the machine.
        notes: Notes for the user, shown when the sweep starts.
        warm_starts: Values by name for the first trials: those of ``warm_start``, then the baseline's.
        portfolio: Values by name for the trials after the warm starts.
        origins: Where each warm start and each configuration of the portfolio comes from.
        earlier: Trials of earlier sweeps from which the searcher learns.
        not_normalised: What cannot be normalised in the environment, see `rltune.algorithms.normalising`.
    """

    folder: Path
    resumed: bool
    given_settings: Mapping[str, Any]
    settings: Mapping[str, Any]
    env_name: str
    seed: int
    engine: str
    report: bool
    notify: str | None
    store_address: str | None
    ledger_url: str | None
    budget: BudgetConfig
    score: ScoreConfig
    certify: CertifyConfig
    checkpoint: CheckpointConfig
    failures: FailuresConfig
    cluster: ClusterConfig
    tracking: TrackingConfig
    searcher: SearcherConfig
    traits: SamplerTraits
    scheduler: SchedulerConfig
    criteria: Criteria
    space: Space
    build: Build
    baseline: Mapping[str, Any]
    request: Request
    notes: tuple[str, ...]
    warm_starts: tuple[Mapping[str, Any], ...]
    portfolio: tuple[Mapping[str, Any], ...]
    origins: tuple[str, ...]
    earlier: tuple[TrialRecord, ...]
    not_normalised: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name of the sweep, which is that of its folder."""
        return self.folder.name

    @property
    def algorithm(self) -> str:
        """The name of the algorithm's file, such as ``ppo``."""
        return str(self.build.algo["name"])

    @property
    def is_joined(self) -> bool:
        """Whether the trials run on a cluster that this sweep joins."""
        return self.cluster.address is not None

    @property
    def objective(self) -> Objective:
        """The objective that scores measure."""
        return Objective.from_settings(self.build.env.objective)

    @property
    def reported_env(self) -> Mapping[str, Any]:
        """What is changed of the environment where results are measured that are reported, and champions compared."""
        return self.certify.env or self.score.env

    def with_notes(self, *notes: str) -> Plan:
        """Return a copy of the plan with further notes for the user."""
        return replace(self, notes=(*self.notes, *notes))

    def open_store(self) -> Store:
        """Open the sweep's checkpoint store; in a bucket, the sweep's files stay under its original name."""
        return open_store(self.folder, self.store_address)

    def is_folder_shared(self) -> bool:
        """Return whether the nodes of a joined cluster use the sweep's folder on a shared disk, and not a bucket."""
        return self.is_joined and self.open_store().is_shared_folder

    def share_of(self, *nodes: Machine) -> Share:
        """Return the CPUs and GPUs of each trial on this machine or on the nodes of a cluster."""
        return fit_share(self.request, *nodes)

    def seeds(self, number: int) -> list[int]:
        """Return the seeds of a trial, one for each replicate, derived from the sweep's seed and the trial's number."""
        return derive_trial_seeds(self.seed, number, self.build.replicates)

    def certification_seeds(self) -> list[int]:
        """Return the fresh seeds of the certification, which no trial uses; with more seeds, the first stay."""
        searched = {seed for number in range(self.budget.trials) for seed in self.seeds(number)}
        return derive_certification_seeds(self.seed, self.certify.seeds or 0, searched)

    def sampler(self, number: int) -> BaseSampler:
        """Return the Optuna sampler for a trial, seeded from the sweep's seed and the trial's number."""
        seed = derive_sampler_seed(self.seed, number)
        return build_sampler(self.searcher.kind, self.searcher.args, seed, self.space.is_conditional, self.seed)

    def stopping_rule(self) -> StoppingRule:
        """Return a new stopping rule, which has seen no report."""
        direction = self.criteria.direction
        return build_stopping_rule(self.scheduler.kind, self.scheduler.args, self.budget.env_steps, direction)

    def fixed_values(self, number: int, tried: Collection[Mapping[str, Any]] = ()) -> tuple[dict[str, Any], str]:
        """Return the values that are fixed for a trial, such as a warm start's, and their origin.

        A grid tries each of its points once, so it ignores warm starts that are not points of the grid.

        Args:
            number: The number of trials before it that were not enqueued.
            tried: The values of all trials before it, if the space has changed since the first: then other
                configurations may have come to lie in the space, and the next one is the first that was not tried.
        """
        starts = [self.space.encode(values) for values in (*self.warm_starts, *self.portfolio)]
        if tried:
            drawn = list(map(self.space.encode, tried))
            new = (
                index for index, start in enumerate(starts) if not any(start.items() <= each.items() for each in drawn)
            )
            number = next(new, len(starts))
        given = starts[number] if number < len(starts) else {}
        if self.traits.is_grid:
            is_new = given not in starts[:number]
            given = given if is_new and self.space.is_fully_specified(given) else {}
        return (given, self.origins[number]) if given else ({}, SEARCHER)

    def read_drawn(self, record: TrialRecord) -> Mapping[str, tuple[Any, BaseDistribution]] | None:
        """Return what was drawn for a trial, with distributions; None if its values are no longer in the space."""
        return self.space.place(record.params, record.drawn) if record.drawn else {}

    def encode_request(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the searched quantities by label of a configuration that a user has enqueued."""
        return self.space.encode(remove_from_values(values, self.not_normalised))

    def assignment_build(self) -> dict[str, Any]:
        """Return `build` as plain dictionaries, for the workers' assignments."""
        build = self.build
        return {**vars(build), "algo": dict(build.algo), "env": build.env.to_dict(), "facts": build.facts.to_dict()}


@dataclass(frozen=True)
class Invocation:
    """How a sweep's driver was called, and with which means it works.

    Attributes:
        began: The start of the command, on the monotonic clock; of an open sweep, earlier by what its drivers before
            this one took.
        stream: The stream to which the console writes; None is standard output.
        trainable: The Tune trainable; None is `rltune.trial.trainable.Trial`. Tests give a toy.
        typed: The command that runs the sweep again, for the report; None if a script has started the sweep.
        fork_child: Forks a process that has RLlib imported, as `rltune.envs.child.Child` takes it; None without a fork
            server.
        has_tables: Whether the console prints tables at the end.
    """

    began: float
    stream: TextIO | None = None
    trainable: type | None = None
    typed: str | None = None
    fork_child: Fork | None = None
    has_tables: bool = True


def describe_plan(plan: Plan) -> dict[str, Any]:
    """Describe the size of a sweep as plain values: its trials, environment steps and certification runs."""
    budget, certify = plan.budget, plan.certify
    steps_per_trial = budget.env_steps * plan.build.replicates
    search_steps = min(budget.trials * steps_per_trial, budget.total_env_steps or math.inf)
    runs = ((certify.top or 0) + 1) * certify.seeds if certify.seeds else 0
    score_episodes = budget.reports * (plan.score.episodes or 0) * (budget.trials * plan.build.replicates + runs)
    facts, time_limit = plan.build.facts, plan.build.facts.time_limit
    policies = facts.policies or plan.build.env.policies
    return {
        "algorithm": plan.algorithm,
        "environment": plan.build.env.id,
        "policies": assign_policies(policies, list(facts.agents)) if policies else {},
        "seed": plan.seed,
        "searched": {dimension.name: str(dimension) for dimension in plan.space.dimensions},
        "fixed": dict(plan.space.fixed),
        "normalised": plan.build.with_params(plan.space.fixed).env.list_normalised(),
        "trials": budget.trials,
        "search_env_steps": search_steps,
        "certification_runs": runs,
        "certification_env_steps": runs * budget.env_steps,
        "score_episodes": score_episodes,
        "score_env_steps": score_episodes * time_limit if time_limit else None,
        "notes": list(plan.notes),
    }


def make_plan(config: RunConfig, begun: Path | None = None, meanwhile: Callable[[], object] | None = None) -> Plan:
    """Check a request as far as this takes neither Ray nor RLlib, and resolve everything that follows from it.

    The checks of values against each other come before, in `rltune.config.validation.check_config`, and those that
    take RLlib come after, in `preflight`.

    Args:
        config: The settings.
        begun: The folder of the sweep, if it exists already.
        meanwhile: Called once if the environment's check takes long, as by `rltune.envs.child.Child.call`.

    Raises:
        RltuneError: Names the first invalid setting.
    """
    check_address(config.cluster)
    if config.cluster.address is None:
        find_temp_folder()
    row, traits = find_capabilities(config.algo), get_traits(config.searcher.kind)
    criteria = read_criteria(asdict(config))
    check_criteria(criteria, row, config.replicates, parse_metrics(config.metrics))
    arguments = name_arguments(config.algo, config.env)
    space = build_search_space(arguments, config.space)
    check_algorithm(arguments, space, row, several_agents=config.env.policies is not None)
    check_searcher(traits, space)
    request = _make_request(config, space, row)
    build_stopping_rule(config.scheduler.kind, config.scheduler.args, config.budget.env_steps)
    _check_places(config)
    searched_note = _check_searched_env(config, space, row)
    spec, facts, obstacles = _check_env(config, arguments, space, row, meanwhile)
    score, score_notes = _check_evaluations(config, spec, facts)
    encoder_notes = _check_encoders(config, space, spec, facts)
    env_notes = list_notes(obstacles, [config.algo, *space.corners()])
    given_settings, config = config, _leave_out(config, obstacles)
    arguments = name_arguments(config.algo, config.env)
    space = build_search_space(arguments, config.space)
    searcher_notes = check_searcher(traits, space)
    space = space.list_for_grid() if traits.is_grid else space
    earlier, earlier_notes = collect_earlier_trials(
        config, space, traits, resumed=begun is not None, not_normalised=obstacles
    )
    baseline = find_baseline(arguments, space)
    warm_starts, notes = collect_warm_starts(arguments, config.warm_start, space, baseline)
    from rltune.tracking.kinds import check_trackers  # Imported here, because SQLAlchemy loads slowly.

    check_trackers(config.tracking, config.notify)
    check_sampler(config.searcher.kind, config.searcher.args, space)
    tried = [*map(space.encode, warm_starts), *(trial.drawn or {} for trial in earlier)]
    portfolio, portfolio_notes = (
        ((), ()) if traits.is_grid else collect_portfolio(arguments, config.portfolio, space, tried)
    )
    baseline_origin = BASELINE if config.published.env_steps is None else TUNED
    origins = [WARM_START if number < len(config.warm_start) else baseline_origin for number in range(len(warm_starts))]
    fitted, grid_notes = fit_sizes(config, space.count_points() if traits.is_grid else None)
    optional_notes = (
        *env_notes,
        *facts.notes,
        *encoder_notes,
        searched_note,
        *score_notes,
        _describe_few_steps(config),
        _describe_long_updates(config, space, [*warm_starts, *portfolio], row),
        None if score.episodes else _describe_late_episodes(config, facts, row),
        _describe_missing_key(),
        *portfolio_notes,
        *searcher_notes,
        None if traits.is_grid else _describe_few_points(space, config.budget.trials),
        None if begun else _describe_not_varied(space, warm_starts, portfolio, config.budget.trials),
        *earlier_notes,
        _describe_own_learner(config, space, row),
        describe_idle_gpu(config.resources.gpus_per_trial),
        *grid_notes,
        LOCAL_LEDGER if config.storage and not config.study.storage else None,
    )
    algo = make_inputs_absolute(config.algo)
    folder = begun or sweep_folder_of(config, make_sweep_name(config))
    stored_name = config.name or folder.name
    build = Build(algo, spec, config.env.vectorize, request.gpus, config.replicates, config.precision, facts=facts)
    check_vector_env(build)
    return Plan(
        folder=folder,
        resumed=begun is not None,
        # The name is stored, too, because a bucket keeps the sweep's files under it even if the folder is renamed.
        given_settings=redact_config(replace(given_settings, name=stored_name, take_over=False)),
        settings=redact_config(replace(given_settings, budget=fitted.budget, score=score, certify=fitted.certify)),
        env_name=config.env.name,
        seed=config.seed,
        engine=config.engine,
        report=config.report,
        notify=config.notify,
        store_address=make_address(config.storage, stored_name) if config.storage else None,
        ledger_url=config.study.storage,
        budget=fitted.budget,
        score=score,
        certify=fitted.certify,
        checkpoint=config.checkpoint,
        failures=config.failures,
        cluster=config.cluster,
        tracking=config.tracking,
        searcher=config.searcher,
        traits=traits,
        scheduler=config.scheduler,
        criteria=criteria,
        space=space,
        build=build,
        baseline=baseline,
        request=request,
        # A resume cannot change what is searched to a value, and its first trials have been proposed.
        notes=(*notes, *(() if begun else note_values_outside(space, baseline)), *filter(None, optional_notes)),
        warm_starts=warm_starts,
        portfolio=portfolio,
        origins=(*origins, *(PORTFOLIO for _ in portfolio)),
        earlier=earlier,
        not_normalised=tuple(obstacles),
    )


def _make_request(config: RunConfig, space: Space, row: Capabilities | None) -> Request:
    """Make the request for each trial's resources, and check that this machine can fulfill it."""
    limit = spec_of(config.env).copy_limit
    request = Request(
        cpus=config.resources.cpus_per_trial,
        gpus=_compute_gpus(config.resources),
        max_concurrent=config.resources.max_concurrent,
        env_runners=count_env_runners(config.algo),
        trials=config.budget.trials,
        widest_layer=widest_layer(config.algo),
        learners=count_learners(config.algo),
        trials_per_gpu=config.resources.trials_per_gpu,
        copies=_check_copies(config, space, row),
        max_copies=limit[1] if limit else None,
    )
    gpus = count_gpus(config.algo, request.gpus, request.gpu_setting[0])
    request = replace(request, gpus=gpus, has_learner_gpus=gpus > request.gpus)
    if machine := machine_of(config.cluster):
        fit_share(request, machine)
    return request


def _check_copies(config: RunConfig, space: Space, row: Capabilities | None) -> int:
    """Return the most copies of the environment that a trial has, and refuse more than one machine may have.

    Raises:
        ConfigError: Not even one trial can run.
    """
    if row and row.offline:  # It learns from a file, and evaluates with as many copies as are free.
        return 1
    spec, algos = spec_of(config.env), [apply_params(config.algo, corner) for corner in space.corners()]
    copies, env_runners = max(map(count_copies, [config.algo, *algos])), max(1, count_env_runners(config.algo))
    factors = {"algo.env_runners.num_envs_per_env_runner": copies // env_runners, "replicates": config.replicates}
    if config.cluster.address is None:  # On a joined cluster, the env runners of a trial may lie on several nodes.
        factors["algo.env_runners.num_env_runners"] = env_runners
    num_scoring = 1 if size_score(config.score) else 0  # The trial's seeds share the copy of their scores.
    needed = math.prod(factors.values()) + num_scoring
    if spec.copy_limit is not None and needed > spec.copy_limit[1]:
        settings = [f"{key}={count}" for key, count in factors.items() if count > 1]
        left, fewer = spec.copy_limit[1] - num_scoring, list[str]()
        if left < 1:
            raise ConfigError(
                "score.episodes",
                size_score(config.score),
                f"with {spec.copy_limit[0]}={spec.copy_limit[1]}: a trial plays these episodes beside its training",
                "a copy for training and another one for the episodes of the reports",
                f"score.episodes=0, or {spec.copy_limit[0]}=2",
            )
        for key, count in reversed(factors.items()):  # The number of copies of a process is the first to be reduced.
            if count > left:
                fewer.insert(0, f"{key}={left}")
            left //= min(count, left)
        raise make_limit_error(spec, needed, f"of one trial with {' and '.join(settings)}", " ".join(fewer))
    return copies * config.replicates + num_scoring


def _check_places(config: RunConfig) -> None:
    """Check that the folder of sweeps can be written, and that the ledger's database and the bucket can be reached."""
    _check_writable(Path(config.output_dir).expanduser().absolute())
    if config.study.storage:
        from rltune.ledger.database import check_storage  # Imported here, because SQLAlchemy loads slowly.

        check_storage(config.study.storage)
    if config.storage:
        open_store(config.output_dir, make_address(config.storage)).check()


def _describe_missing_key() -> str | None:
    """Note that a resume of this sweep will need ``trust=true``, because this user's signing key cannot be stored."""
    problem = find_key_problem()
    if problem is None:
        return None
    return (
        f"this sweep's folder cannot be marked as yours, because {find_key_file()} cannot be written ({problem}): "
        "resuming it needs trust=true, unless the variable XDG_STATE_HOME names a folder that stays and is yours alone"
    )


def _check_searched_env(config: RunConfig, space: Space, row: Capabilities | None) -> str | None:
    """Refuse to search an environment's arguments where scores would say nothing about them; return a note on them.

    Raises:
        ConfigError: No trial steps the environment, or the returns that compare trials are of other rewards in each.
    """
    names = [name for name in space.names if is_of_env(name)]
    learned = [name for name in names if name.startswith(f"{TRAIN_ENV}.")]
    compared = [
        dimension.name
        for dimension in space.dimensions
        if dimension.name.startswith((f"{ENV}.{KWARGS}.", f"{ENV}.{WRAPPERS}."))
    ]
    if names and row and row.offline:
        problem = f": {row.name} learns from a file, and steps no environment"
        raise ConfigError(f"space.{names[0]}", ABSENT, problem, "algorithms that sample", f"~space.{names[0]}")
    if config.objective.kind == RETURN and learned and not size_score(config.score):
        raise ConfigError(
            f"space.{learned[0]}",
            ABSENT,
            ": trials would be compared by returns in different environments, and the largest rewards win",
            "a score that is not the training's return: of episodes in the settings' environment, or another objective",
            f"score.episodes={SCORE_EPISODES}, or objective.kind=info objective.key=...",
        )
    for key, changes in (("score.env", config.score.env), ("certify.env", config.certify.env)):
        if name := next((name for name in names if is_changed(name, changes)), None):
            problem = f": {key} has another value for all trials, so that none is judged with its own"
            raise ConfigError(f"space.{name}", ABSENT, problem, f"{key} without it", f"~space.{name}, or change {key}")
    if config.objective.kind != RETURN or not compared:
        return None
    return (
        f"trials with different {', '.join(compared)} are compared by their returns: what changes rewards, and not "
        f"only what a policy can reach, belongs into space.{TRAIN_ENV}"
    )


def _check_env(
    config: RunConfig,
    arguments: Mapping[str, Any],
    space: Space,
    row: Capabilities | None,
    meanwhile: Callable[[], object] | None,
) -> tuple[EnvSpec, EnvFacts, dict[str, str]]:
    """Check that the environment can be built, that it provides the objective, and that the algorithm can act in it.

    All of this is checked at each corner of the search space, too.

    Returns:
        Its specification, what was learned about it, and what cannot be normalised in it, with the reason.
    """
    spec = specify_env(config.env, config.objective, config.metrics)
    vectorize = config.env.vectorize
    corners = list_corner_envs(spec, space.corners())
    check_objective(spec.objective)
    refuse_program(spec)
    typed_range = _find_range(spec)
    try:
        facts = examine_env(spec, config.failures.stall_s, meanwhile, corners)
    except (ConfigError, GuestError) as error:
        if typed_range is None:
            raise
        name, value, fix = typed_range
        fix = f"{fix}, if it is to be searched; else: {error.fix}"
        raise ConfigError(name, value, f": {error.what}", error.allowed, fix) from None
    if typed_range:
        name, value, fix = typed_range
        note = f"{name}={spell(value)} goes to the environment as it is; to search it: {fix}"
        facts = replace(facts, notes=(*facts.notes, note))
    if facts.time_limit:  # It ends its episodes by itself, so that its digest must not depend on the setting.
        spec = replace(spec, evaluation_steps=None)
    if facts.mask:
        spec = replace(spec, action_mask=facts.mask.to_dict())
    if facts.policies:
        spec = replace(spec, policies=facts.policies)
    spaces = facts.find_policy_spaces()
    check_spaces(arguments, spec, spaces, row, space)
    check_mask(config.algo, config.env.id, facts.mask, facts.action_space, row)
    if spec.policies is None:
        bound_notes = check_bounds(config.algo["name"], config.env.id, facts.action_space, row)
        facts = replace(facts, notes=(*facts.notes, *bound_notes))
    shaped = next((corner for _, corner in corners if corner.rewards), spec)
    return spec, facts, find_obstacles(config.algo, shaped, vectorize, spaces)


def _find_range(spec: EnvSpec) -> tuple[str, Any, str] | None:
    """Return an argument of the environment that looks like a range, with what searches it; None without one."""
    for name, value in flatten_settings(list_env_arguments(spec)[ENV], key=ENV):
        if isinstance(value, list) and len(value) > 1 and isinstance(value[0], str) and value[0] in KINDS:
            one = f"++{name}={spell(value[1])}" if name.startswith(f"{ENV}.{KWARGS}.") else f"a value of {name}"
            return name, value, f"{one} '+space.{name}={spell(value)}'"
    return None


def _check_evaluations(config: RunConfig, spec: EnvSpec, facts: EnvFacts) -> tuple[ScoreConfig, list[str]]:
    """Check the environments of evaluations, and note what the episodes of the reports cost and are worth.

    Returns:
        How trials are scored, with a number of episodes, and the notes.

    Raises:
        RltuneError: One of them cannot be built, or its spaces are others than those of the sweep's environment.
    """
    num_episodes = size_score(config.score)
    score = replace(config.score, episodes=num_episodes)

    def examine(changed: EnvSpec) -> EnvFacts:
        return examine_env(changed, config.failures.stall_s)

    notes = [
        note
        for key, changes in (("score.env", score.env), ("certify.env", config.certify.env))
        if changes
        for note in check_changes(key, changes, spec, facts, examine)
    ]
    if num_episodes:
        notes.append(describe_cost(num_episodes, config.budget.reports, config.replicates, facts.time_limit))
    if 0 < num_episodes < FEW_EPISODES:
        notes.append(
            f"score.episodes={num_episodes}: so few episodes are noisy, and the stopping rule, best checkpoints and "
            f"the choice of the winner follow them; score.episodes={FEW_EPISODES} or more"
        )
    if score.env and not is_measured_apart(asdict(config.env), score.env, config.certify.env):
        notes.append(ONE_ENV)
    return score, notes


def describe_cost(episodes: int, reports: int, replicates: int, time_limit: int | None) -> str:
    """Describe what the episodes of a trial's reports cost besides its budget."""
    total = episodes * reports * replicates
    steps = f", at most {total * time_limit:,} environment steps" if time_limit else ""
    return (
        f"score.episodes={episodes}: each trial also plays {total:,} episodes, the same at each of its reports{steps}; "
        "they are not part of budget.env_steps"
    )


def _check_encoders(config: RunConfig, space: Space, spec: EnvSpec, facts: EnvFacts) -> list[str]:
    """Check the encoders of the user's in a process of its own, and return notes on what ONNX cannot express."""
    encoders = list_encoders(config.algo, space)
    if not encoders:
        return []
    from rltune.envs.masks import OFF  # Imported here, because Gymnasium and torch load slowly.
    from rltune.envs.observations import find_layout
    from rltune.policies.extractors import ExtractorSpec, examine_extractors

    masked = replace(spec, action_mask=facts.mask.to_dict() if facts.mask else OFF)
    layout, specs = find_layout(facts.observation_space, masked), [ExtractorSpec(*encoder) for encoder in encoders]
    return examine_extractors(specs, facts.observation_space, layout, config.failures.stall_s)


def _leave_out(config: RunConfig, obstacles: Collection[str]) -> RunConfig:
    """Leave what cannot be normalised out of the algorithm's file, the space, warm starts and the portfolio."""
    warm_start, portfolio = (
        [remove_from_values(values, obstacles) if isinstance(values, Mapping) else values for values in starts]
        for starts in (config.warm_start, config.portfolio)
    )
    algo, space = remove_from_values(config.algo, obstacles), remove_from_space(config.space, obstacles)
    return replace(config, algo=algo, space=space, warm_start=warm_start, portfolio=portfolio)


def _describe_own_learner(config: RunConfig, space: Space, row: Capabilities | None) -> str | None:
    """Return a note if ``engine=rllib`` trains SAC with a loss that RLlib's own learner lacks; else None."""
    loss = (config.algo.get("training") or {}).get(LOSS)
    is_squared = any(corner.get(LOSS, loss) == "mse" for corner in space.corners())
    if config.engine != "rllib" or row is None or row.name != "sac" or not is_squared:
        return None
    return (
        f"algo.training.{LOSS}=mse: RLlib 2.60's SAC knows Huber losses only, so rltune computes its critics' losses; "
        f"with algo.training.{LOSS}=huber all of it is RLlib's"
    )


def _describe_few_points(space: Space, trials: int) -> str | None:
    """Return a note if the space has fewer configurations than the search has trials; else None."""
    points = space.count_points(enough=trials)
    if points is None or points >= trials or not space.dimensions:
        return None
    return (
        f"the space has {format_number(points, 'configuration')}, fewer than budget.trials={trials}: some are tried "
        f"again, with other seeds; searcher=grid tries each once"
    )


def _describe_not_varied(
    space: Space, warm_starts: Sequence[Mapping[str, Any]], portfolio: Sequence[Mapping[str, Any]], trials: int
) -> str | None:
    """Return a note if most trials are known configurations, and none of these varies something searched; else None.

    Args:
        warm_starts: The configurations that are tried first, the baseline among them.
        portfolio: Those that are tried next.
        trials: The sweep's trials; what the known configurations leave of them is the searcher's.
    """
    known = [space.encode(values) for values in (*warm_starts, *portfolio)]
    same = [
        each.name
        for each in space.dimensions
        if known and each.label in known[0] and all(values.get(each.label) == known[0][each.label] for values in known)
    ]
    tried = min(trials, len(known))
    if tried < 2 or not same or 2 * tried < trials:
        return None
    fix = "portfolio=off leaves them to the searcher" if portfolio else f"budget.trials={2 * trials} lets it try others"
    return (
        f"{tried} of {trials} trials are known configurations, which leave {', '.join(same)} as set, "
        f"and {trials - tried or 'none'} from the searcher; {fix}"
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


def _describe_long_updates(
    config: RunConfig, space: Space, known: Sequence[Mapping[str, Any]], row: Capabilities | None
) -> str | None:
    """Return a note if an update of what may be tried collects more steps than a trial has; else None.

    Args:
        known: The configurations that are tried first; if there are more trials, then any of the space may follow.
    """
    if row is None or row.data != "rollouts":
        return None
    name, budget, trials = "train_batch_size_per_learner", config.budget.env_steps, config.budget.trials
    usual = (config.algo.get("training") or {}).get(name)
    tried = [*known[:trials], *(space.corners() if trials > len(known) else ())]
    sizes = [size for values in tried if isinstance(size := values.get(name, usual), int)]
    steps = max(sizes, default=0) * max(count_learners(config.algo), 1)
    if steps <= budget:
        return None
    return (
        f"an update may collect {steps:,} environment steps ({name}), and a trial ends after a whole one: some take "
        f"more than budget.env_steps={budget}. A larger budget, or smaller batches and minibatches (space.{name}, "
        "space.minibatch_size), makes them alike"
    )


def _describe_late_episodes(config: RunConfig, facts: EnvFacts, row: Capabilities | None) -> str | None:
    """Return a note if a trial, or the stopping rule's first judgement, may end before its first episode; else None.

    One random episode is no proof: others may be shorter, a policy's may be, and a trial ends with a whole batch.
    """
    if row and row.offline:  # Offline training collects no episodes.
        return None
    budget, num_envs = config.budget.env_steps, count_copies(config.algo)
    each, episode = budget // num_envs, f"a random episode of {config.env.id}"
    lasts = f"{episode} {'takes' if facts.episode_is_over else 'has not ended after'} {facts.episode_steps:,} steps"
    limit = (
        f"{spell_time_limit(each, has_agents=bool(facts.agents))} ends episodes there, and a larger budget.env_steps "
        "or fewer copies (algo.env_runners.num_envs_per_env_runner=1) give each of them more steps"
    )
    is_endless = not facts.episode_is_over and facts.time_limit is None and not facts.agents
    if is_endless and (each <= USUAL_STEPS or facts.episode_steps >= USUAL_STEPS):
        return (
            f"{lasts}, and the environment has no time limit. A trial in which no episode ends has no score, and its "
            f"{num_envs} copies take {each:,} steps each: {limit}"
        )
    longest = facts.episode_steps
    if not facts.episode_is_over and facts.time_limit:
        longest, lasts = facts.time_limit, f"an episode of {config.env.id} may take {facts.time_limit:,} steps"
    if longest > each:
        return (
            f"{lasts}, and each of the {num_envs} copies in a trial of budget.env_steps={budget} takes {each:,}: "
            f"trials in which no episode ends fail. {limit}"
        )
    fraction = config.scheduler.args.get("grace_fraction")
    if config.scheduler.kind == "none" or fraction is None:
        return None
    first, needed = math.ceil(fraction * budget), num_envs * longest
    if needed <= first:
        return None
    return (
        f"{lasts}, so that {num_envs} environments may need {needed:,} until their first episode ends, but the "
        f"scheduler first judges trials after {first:,} environment steps. A trial is not judged before an episode has "
        "ended; with a larger budget.env_steps or scheduler.args.grace_fraction all trials are judged at the same step"
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
    if plan.request.trials_per_gpu != MEASURED or (machine := machine_of(plan.cluster)) is None:
        return plan
    share = plan.share_of(machine)
    use = measure_on_gpu(plan.build, plan.space, plan.engine, share.threads)
    cpus = sum(bundle["CPU"] for bundle in share.bundles)
    most = math.ceil(plan.request.limit / machine.gpus)
    trials = min(use.count_trials(machine.cpus / machine.gpus / cpus), most)
    gpus = 1 / trials
    note = f"resources.trials_per_gpu={trials}, measured: {use}; {machine.cpus:g} CPUs beside {machine.gpus:g} GPUs"
    request, build = replace(plan.request, gpus=gpus), replace(plan.build, gpus=gpus)
    given_settings, settings = (
        {**stored, "resources": {**stored["resources"], "trials_per_gpu": trials}}
        for stored in (plan.given_settings, plan.settings)
    )
    return replace(
        plan.with_notes(note), given_settings=given_settings, settings=settings, request=request, build=build
    )


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


def preflight(build: Build, space: Space, engine: str) -> tuple[str, ...]:
    """Run the checks that need RLlib: build the configs at the corners of the space, and compile the kernels.

    Returns:
        Notes on what the fast engine leaves to stock RLlib, in some trials or in all.

    Raises:
        ConfigError: With the corner and RLlib's own words.
    """
    from rltune.engine import check_precision, find_static_obstacle, prepare_kernels

    configs = check_corners(build, space)
    for config in configs:
        check_precision(config, engine, build.precision)
    if engine != "fast":
        return ()
    reasons = [find_static_obstacle(config) for config in configs]
    who = "some trials, those with" if None in reasons else "all trials, because the fast engine does not support"
    notes = tuple(f"stock RLlib trains {who} {reason}" for reason in dict.fromkeys(reasons) if reason)
    return notes + prepare_kernels(configs[reasons.index(None)]) if None in reasons else notes
