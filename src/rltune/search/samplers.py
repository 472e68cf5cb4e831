"""Build the Optuna sampler that a searcher file describes.

`check_searcher` and `check_sampler` are asked once, before a sweep starts; `build_sampler` is asked for every trial and
trusts them. Optuna is imported inside the functions, so that a typing error on the command line is answered before it.
"""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from rltune.errors import ConfigError, choices, describe_exception
from rltune.search.class_names import import_class
from rltune.search.conditions import WHEN, format_yaml_value
from rltune.search.dimensions import CONTINUOUS, Dimension
from rltune.search.space import Space

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler


SAMPLERS: Mapping[str, str] = {
    "tpe": "optuna.samplers:TPESampler",
    "rf": "rltune.search.searchers.random_forest:RandomForestSampler",
    "gp": "optuna.samplers:GPSampler",
    "cmaes": "optuna.samplers:CmaEsSampler",
    "qmc": "rltune.search.searchers.sobol:SobolSampler",
    "random": "optuna.samplers:RandomSampler",
    "grid": "optuna.samplers:BruteForceSampler",
}
WITHOUT_CONDITIONS = ("gp", "cmaes", "qmc")  # they would draw at random whatever not all trials have (Optuna 5)
UNTEACHABLE = ("qmc", "random", "grid")  # what came of other trials changes nothing for them
SEEDS = ("seed", "sweep_seed")  # arguments that are ours to give


def build_sampler(
    kind: str, args: Mapping[str, Any], seed: int, conditional: bool = False, sweep_seed: int = 0
) -> BaseSampler:
    """Build the sampler for one trial, from a searcher that `check_sampler` has let through.

    Args:
        kind: A name in SAMPLERS, or ``package.module:Class``.
        args: Arguments of the class.
        seed: The trial's; passed on where the class takes a ``seed``.
        conditional: Whether trials may lack some parameters. TPE then models each group of parameters by itself;
            otherwise it would draw at random whatever not all trials have (Optuna 5).
        sweep_seed: The sweep's, one for all its trials; passed on where the class takes a ``sweep_seed``.
    """
    import optuna

    cls = import_sampler(kind)
    known = inspect.signature(cls).parameters
    seeds = {"seed": seed, "sweep_seed": sweep_seed}
    given = {**args, **{name: value for name, value in seeds.items() if name in known}}
    grouping = issubclass(cls, optuna.samplers.TPESampler) and "group" in known
    if conditional and grouping and args.get("multivariate") is not False:
        given.setdefault("group", True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # of group, for one
        return cls(**given)


def check_searcher(kind: str, space: Space) -> tuple[str, ...]:
    """Refuse a searcher that cannot search a space, before Optuna is imported.

    Args:
        kind: A name in SAMPLERS, or ``package.module:Class``, of which only Optuna's are known.
        space: What is searched.

    Returns:
        Notes on what the searcher leaves to chance.

    Raises:
        ConfigError: The two do not go together, or the searcher needs a package that is not installed.
    """
    name = name_sampler(kind)
    if name in WITHOUT_CONDITIONS and space.is_conditional:
        first = next(dimension for dimension in space.dimensions if dimension.when)
        parents = " ".join(f"space.{parent}={format_yaml_value(allowed[0])}" for parent, allowed in first.when.items())
        raise ConfigError(
            f"searcher={name}: space.{first.name} has a condition ({first.condition})",
            f"a space without conditions for {name}; tpe, rf and random search any",
            f"searcher=rf, or {parents} to have it in every trial",
        )
    if name == "grid" and (endless := [one for one in space.dimensions if one.kind in CONTINUOUS]):
        first = endless[0]
        raise ConfigError(
            f"searcher=grid: space.{first.name}={first} has no end of values",
            "choices, integers (randint, lograndint, pow2) and steps (quniform), of which a grid tries each",
            " ".join(f"'space.{one.name}={_format_choice(one)}'" for one in endless),
        )
    if name != "cmaes":
        return ()
    if space.dimensions and all(one.kind == "choice" for one in space.dimensions):
        raise ConfigError(
            "searcher=cmaes: the space has choices alone", "a range of numbers, which CMA-ES moves over", "searcher=rf"
        )
    if find_spec("cmaes") is None:  # Optuna asks for it only when it has trials to learn from
        raise ConfigError("searcher=cmaes: cmaes is not installed", "the extra cmaes", "pip install 'rltune[cmaes]'")
    left = [one.name for one in space.dimensions if one.kind == "choice"]
    return (f"searcher=cmaes draws choices at random: {', '.join(left)}; searcher=rf models them",) if left else ()


def _format_choice(dimension: Dimension) -> str:
    """Format a choice of three values of a continuous range, under its condition."""
    form: list[Any] = ["choice", *dimension.spread(3)]
    if dimension.when:
        form = [WHEN, {parent: list(allowed) for parent, allowed in dimension.when.items()}, form]
    return format_yaml_value(form).replace(", ", ",")


def name_sampler(kind: str) -> str:
    """Return a sampler's short name, also where its class is named; ``kind`` where it has none."""
    named = {target: name for name, target in SAMPLERS.items()} | {
        "optuna.samplers:QMCSampler": "qmc",
        "optuna.samplers:GridSampler": "grid",
    }
    return named.get(kind, kind)


def check_sampler(kind: str, args: Mapping[str, Any], space: Space) -> None:
    """Refuse a searcher that could not propose the sweep's trials.

    Args:
        kind: A name in SAMPLERS, or ``package.module:Class``.
        args: Arguments of the class.
        space: What is searched.

    Raises:
        ConfigError: The kind or an argument is unknown, or the class refuses its value.
    """
    cls = import_sampler(kind)
    parameters = inspect.signature(cls).parameters.values()
    known = [one.name for one in parameters if one.name not in SEEDS and one.kind is not one.VAR_KEYWORD]
    takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters)
    for name in args:
        if name in SEEDS or not (name in known or takes_any):
            raise ConfigError(
                f"searcher.args.{name}={args[name]}: the {kind} searcher has no such argument",
                choices(name, known),
                f"correct or remove it: ~searcher.args.{name}",
            )
    try:
        _propose_once(build_sampler(kind, args, 0, space.is_conditional), space)
    except ImportError as error:
        raise ConfigError(
            f"searcher.kind={kind} needs a package: {error}", "a searcher whose packages are installed", "searcher=rf"
        ) from None
    except Exception as error:  # a sampler raises whatever it likes
        raise ConfigError(
            f"searcher.args={dict(args)}: {describe_exception(error)}", "values that Optuna accepts", "~searcher.args"
        ) from None


def import_sampler(kind: str) -> type[BaseSampler]:
    """Import a sampler's class.

    Args:
        kind: A name in SAMPLERS, or ``package.module:Class``.

    Raises:
        ConfigError: There is none of this name.
    """

    def is_sampler(cls: type) -> bool:
        from optuna.samplers import BaseSampler

        return issubclass(cls, BaseSampler)

    cls: type[BaseSampler] = import_class(
        "searcher", kind, SAMPLERS, "sampler (an optuna.samplers.BaseSampler)", is_sampler
    )
    return cls


def _propose_once(sampler: BaseSampler, space: Space) -> None:
    """Ask for a trial that nobody runs: Optuna looks at some arguments only when it proposes."""
    import optuna

    with quieten_optuna():
        study = optuna.create_study(sampler=sampler)
        study.ask(space.distributions() or {"x": optuna.distributions.IntDistribution(0, 1)})


@contextlib.contextmanager
def quieten_optuna() -> Iterator[None]:
    """Keep Optuna from telling of a study in memory, which is none of the person's."""
    import optuna

    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(level)
