"""Build the Optuna sampler that a searcher file describes, and list what each sampler can do.

`check_searcher` and `check_sampler` are called once, before a sweep starts; `build_sampler` is called for every trial
and relies on them. Optuna is imported inside the functions, so that a typing error on the command line is reported
without it. A further sampler of Optuna needs a file in ``conf/searcher``, and a row of `_KNOWN` if the usual traits do
not fit.
"""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from rltune.config.entry_points import naming_setting
from rltune.errors import ConfigError, choices
from rltune.search.class_names import import_class
from rltune.search.conditions import WHEN, format_yaml_value
from rltune.search.dimensions import CONTINUOUS, OR, Dimension
from rltune.search.space import Space

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler


@dataclass(frozen=True)
class SamplerTraits:
    """What a sampler can do, as far as it matters to a sweep (Optuna 5.0).

    Attributes:
        name: Its short name in searcher files; None if it has none.
        target: Its class, ``package.module:Class``.
        also: Other classes with these traits.
        handles_conditions: Whether it models parameters that not all trials have, rather than draw them at random.
        models_choices: Whether it models choices, rather than draw them at random.
        learns_from_others: Whether trials of other sweeps change its proposals.
        reads_curves: Whether it reads the curves of stopped trials, or no trials at all; otherwise it fits complete
            trials alone, so that each trial needs a value.
        heeds_constraints: Whether it avoids trials that break a constraint, or proposes at random.
        is_grid: Whether it tries each point of the space once.
        package: The package that it needs besides Optuna, which is also the name of our extra; None for no package.
        imports: Modules that it needs after the first trials. A driver imports them ahead of time.
    """

    name: str | None
    target: str
    also: tuple[str, ...] = ()
    handles_conditions: bool = True
    models_choices: bool = True
    learns_from_others: bool = True
    reads_curves: bool = False
    heeds_constraints: bool = False
    is_grid: bool = False
    package: str | None = None
    imports: tuple[str, ...] = ()


_OPTUNA = "optuna.samplers"
_KNOWN = (
    SamplerTraits("tpe", f"{_OPTUNA}:TPESampler", reads_curves=True, heeds_constraints=True),
    SamplerTraits(
        "rf",
        "rltune.search.searchers.random_forest:RandomForestSampler",
        reads_curves=True,
        heeds_constraints=True,
        imports=("sklearn.tree", "scipy.special"),
    ),
    SamplerTraits("gp", f"{_OPTUNA}:GPSampler", handles_conditions=False, heeds_constraints=True),
    SamplerTraits(
        "cmaes",
        f"{_OPTUNA}:CmaEsSampler",
        handles_conditions=False,
        models_choices=False,
        # CMA-ES cannot learn from trials of other sweeps, because it only reads trials that it proposed itself.
        learns_from_others=False,
        package="cmaes",
    ),
    SamplerTraits(
        "qmc",
        "rltune.search.searchers.sobol:SobolSampler",
        also=(f"{_OPTUNA}:QMCSampler",),
        handles_conditions=False,
        learns_from_others=False,
        reads_curves=True,
    ),
    SamplerTraits(
        "random", f"{_OPTUNA}:RandomSampler", learns_from_others=False, reads_curves=True, heeds_constraints=True
    ),
    SamplerTraits(
        "grid",
        f"{_OPTUNA}:BruteForceSampler",
        also=(f"{_OPTUNA}:GridSampler",),
        learns_from_others=False,
        reads_curves=True,
        is_grid=True,
    ),
    SamplerTraits(None, f"{_OPTUNA}:NSGAIISampler", also=(f"{_OPTUNA}:NSGAIIISampler",), heeds_constraints=True),
)
SAMPLERS: Mapping[str, str] = {traits.name: traits.target for traits in _KNOWN if traits.name}
_TRAITS = {target: traits for traits in _KNOWN for target in (traits.target, *traits.also)}
SEEDS = ("seed", "sweep_seed")  # These arguments cannot be set in a searcher file, because the sweep sets them.


def build_sampler(
    kind: str, args: Mapping[str, Any], seed: int, conditional: bool = False, sweep_seed: int = 0
) -> BaseSampler:
    """Build the sampler that proposes one trial, with arguments that `check_sampler` has accepted.

    Args:
        kind: A name in SAMPLERS, or ``package.module:Class``.
        seed: The trial's seed, if the class takes a ``seed``.
        conditional: Whether trials may lack some parameters. TPE then models each group of parameters by itself;
            otherwise it would draw at random whatever not all trials have (Optuna 5).
        sweep_seed: The seed of all trials of the sweep, if the class takes a ``sweep_seed``.
    """
    import optuna

    cls = import_sampler(kind)
    parameters = inspect.signature(cls).parameters
    seeds = {"seed": seed, "sweep_seed": sweep_seed}
    given = {**args, **{name: value for name, value in seeds.items() if name in parameters}}
    grouping = issubclass(cls, optuna.samplers.TPESampler) and "group" in parameters
    if conditional and grouping and args.get("multivariate") is not False:
        given.setdefault("group", True)
    with warnings.catch_warnings():
        # Optuna warns that TPE's argument `group` is experimental.
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return cls(**given)


def check_searcher(traits: SamplerTraits, space: Space) -> tuple[str, ...]:
    """Refuse a searcher that cannot handle the search space, before any trial is proposed.

    Args:
        traits: What the searcher's sampler can do.

    Returns:
        Notes on the parameters that the searcher draws at random.

    Raises:
        ConfigError: The two do not go together, or the searcher needs a package that is not installed.
    """
    name = traits.name or traits.target
    if space.is_conditional and not traits.handles_conditions:
        first = next(dimension for dimension in space.dimensions if dimension.when)
        point = space.find_point(first.name)
        parents = " ".join(f"space.{parent}={format_yaml_value(point[parent])}" for parent in first.when)
        raise ConfigError(
            "searcher",
            name,
            f": space.{first.name} has a condition ({first.condition})",
            f"a space without conditions for {name}; tpe, rf and random search any",
            f"searcher=rf, or {parents} to have it in every trial",
        )
    if traits.is_grid and (endless := [dimension for dimension in space.dimensions if dimension.kind in CONTINUOUS]):
        first = endless[0]
        raise ConfigError(
            "searcher",
            name,
            f": space.{first.name}={first} has infinitely many values",
            "choices, integers (randint, lograndint, pow2) and steps (quniform), of which a grid tries each",
            " ".join(f"'space.{dimension.name}={_format_choice(dimension)}'" for dimension in endless),
        )
    names = [dimension.name for dimension in space.dimensions if dimension.kind == "choice"]
    if names and len(names) == len(space.dimensions) and not traits.models_choices:
        raise ConfigError(
            "searcher",
            name,
            ": the space has only choices",
            f"a range of numbers, which {name} searches",
            "searcher=rf",
        )
    # Optuna would miss a sampler's optional package only once there are trials, in the middle of the sweep.
    if traits.package and find_spec(traits.package) is None:
        raise ConfigError(
            "searcher",
            name,
            f": {traits.package} is not installed",
            f"the extra {traits.package}",
            f"pip install 'rltune[{traits.package}]'",
        )
    if names and not traits.models_choices:
        return (f"searcher={name} draws choices at random: {', '.join(names)}; searcher=rf models them",)
    return ()


def _format_choice(dimension: Dimension) -> str:
    """Format a continuous range as a choice of three of its values, for an error's advice."""
    # A range that depends on another parameter keeps its ends, and gets steps.
    form: list[Any] = ["quniform", *dimension.args, 0.1] if dimension.bounds else ["choice", *dimension.spread(3)]
    if dimension.bounds and (dimension.before or dimension.after):
        form = [OR, *dimension.before, form, *dimension.after]
    if dimension.when:
        form = [WHEN, {parent: list(allowed) for parent, allowed in dimension.when.items()}, form]
    return format_yaml_value(form).replace(", ", ",")


def find_known_traits(kind: str) -> SamplerTraits | None:
    """Return a sampler's traits from the table `_KNOWN`, without importing its class; None for an unknown sampler."""
    return _TRAITS.get(SAMPLERS.get(kind, kind))


def get_traits(kind: str) -> SamplerTraits:
    """Return a sampler's traits; those of a user's class are found by importing it.

    A class without a row in `_KNOWN` is imported, and has the traits of the class with a row from which it derives;
    without one it has the usual traits.

    Args:
        kind: A name in SAMPLERS, or ``package.module:Class``.

    Raises:
        ConfigError: There is no sampler of this kind.
    """
    if known := find_known_traits(kind):
        return known
    for base in import_sampler(kind).__mro__:
        module = _OPTUNA if base.__module__.startswith(f"{_OPTUNA}.") else base.__module__
        if traits := _TRAITS.get(f"{module}:{base.__qualname__}"):
            return replace(traits, name=None, target=kind)
    return SamplerTraits(None, kind)


def check_sampler(kind: str, args: Mapping[str, Any], space: Space) -> None:
    """Refuse a searcher whose sampler cannot be built or cannot propose a trial.

    Args:
        kind: A name in SAMPLERS, or ``package.module:Class``.

    Raises:
        ConfigError: The kind or an argument is unknown, or the class refuses its value.
    """
    cls = import_sampler(kind)
    arguments = list_sampler_arguments(kind)
    takes_any = any(each.kind is each.VAR_KEYWORD for each in inspect.signature(cls).parameters.values())
    for name in args:
        if name in SEEDS or not (name in arguments or takes_any):
            raise ConfigError(
                f"searcher.args.{name}",
                args[name],
                f": the {kind} searcher has no such argument",
                choices(name, arguments),
                f"correct or remove it: ~searcher.args.{name}",
            )
    try:
        with naming_setting("searcher.args", dict(args), "values that Optuna accepts", "~searcher.args"):
            _propose_once(build_sampler(kind, args, 0, space.is_conditional), space)
    except ImportError as error:
        raise ConfigError(
            "searcher.kind", kind, f"needs a package: {error}", "a searcher whose packages are installed", "searcher=rf"
        ) from None


def list_sampler_arguments(kind: str) -> list[str]:
    """List the arguments of a sampler that ``searcher.args`` may set.

    Raises:
        ConfigError: There is no sampler of this name.
    """
    parameters = inspect.signature(import_sampler(kind)).parameters.values()
    return [each.name for each in parameters if each.name not in SEEDS and each.kind is not each.VAR_KEYWORD]


def import_sampler(kind: str) -> type[BaseSampler]:
    """Import the class of a sampler, which is one of Optuna, of rltune or of a user.

    Args:
        kind: A name in SAMPLERS, or ``package.module:Class``.

    Raises:
        ConfigError: There is no sampler of this name.
    """

    def is_sampler(cls: type) -> bool:
        from optuna.samplers import BaseSampler

        return issubclass(cls, BaseSampler)

    cls: type[BaseSampler] = import_class(
        "searcher", kind, SAMPLERS, "sampler (an optuna.samplers.BaseSampler)", is_sampler
    )
    return cls


def _propose_once(sampler: BaseSampler, space: Space) -> None:
    """Let the sampler propose a trial for a test, because Optuna checks some arguments only then."""
    import optuna

    with quieten_optuna():
        study = optuna.create_study(sampler=sampler)
        distributions = space.distributions(space.corners()[0])
        study.ask(distributions or {"x": optuna.distributions.IntDistribution(0, 1)})


@contextlib.contextmanager
def quieten_optuna() -> Iterator[None]:
    """Keep Optuna from logging about a temporary study that the user did not create."""
    import optuna

    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(level)
