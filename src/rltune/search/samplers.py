"""Build the Optuna sampler that a searcher file describes.

`check_sampler` is asked once, before a sweep starts; `build_sampler` is asked for every trial and trusts it. Optuna is
imported inside the functions, so that a typing error on the command line is answered before it.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rltune.errors import ConfigError, choices, describe_exception
from rltune.search.class_names import import_class
from rltune.search.space import Space

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler


SAMPLERS: Mapping[str, str] = {"tpe": "optuna.samplers:TPESampler", "random": "optuna.samplers:RandomSampler"}


def build_sampler(kind: str, args: Mapping[str, Any], seed: int, conditional: bool = False) -> BaseSampler:
    """Build the sampler for one trial, from a searcher that `check_sampler` has let through.

    Args:
        kind: A name in SAMPLERS, or ``package.module:Class``.
        args: Arguments of the class.
        seed: Passed on where the class takes a ``seed``.
        conditional: Whether trials may lack some parameters. TPE then models each group of parameters by itself;
            otherwise it would draw at random whatever not all trials have (Optuna 5).
    """
    import optuna

    cls = import_sampler(kind)
    known = inspect.signature(cls).parameters
    given = dict(args)
    if "seed" in known:
        given["seed"] = seed
    grouping = issubclass(cls, optuna.samplers.TPESampler) and "group" in known
    if conditional and grouping and args.get("multivariate") is not False:
        given.setdefault("group", True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # of group, for one
        return cls(**given)


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
    known = [one.name for one in parameters if one.name != "seed" and one.kind is not one.VAR_KEYWORD]
    takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters)
    for name in args:
        if name == "seed" or not (name in known or takes_any):
            raise ConfigError(
                f"searcher.args.{name}={args[name]}: the {kind} searcher has no such argument",
                choices(name, known),
                f"correct or remove it: ~searcher.args.{name}",
            )
    try:
        _propose_once(build_sampler(kind, args, 0, space.is_conditional), space)
    except ImportError as error:
        raise ConfigError(
            f"searcher.kind={kind} needs a package: {error}", "a searcher whose packages are installed", "searcher=tpe"
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

    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        study = optuna.create_study(sampler=sampler)
        study.ask(space.distributions() or {"x": optuna.distributions.FloatDistribution(0.0, 1.0)})
    finally:
        optuna.logging.set_verbosity(level)
