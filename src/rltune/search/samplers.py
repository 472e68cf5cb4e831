"""Which of Optuna's samplers proposes trials, by the name and arguments of a searcher file. Runs in the driver.

Optuna is imported inside the function, so that a typing error on the command line need not wait for it.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rltune.errors import ConfigError, choices

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler


SAMPLERS: Mapping[str, str] = {"tpe": "TPESampler", "random": "RandomSampler"}


def build_sampler(kind: str, args: Mapping[str, Any], seed: int, conditional: bool = False) -> BaseSampler:
    """The sampler that a searcher file names.

    Args:
        kind: One of SAMPLERS.
        args: Its arguments.
        seed: Its seed.
        conditional: Whether trials differ in what they have: TPE then models each group of parameters by itself.

    Raises:
        ConfigError: The kind or an argument is unknown, or its value is refused.
    """
    if kind not in SAMPLERS:
        raise ConfigError(f"searcher.kind={kind} is unknown", choices(kind, SAMPLERS), "searcher=tpe")
    import optuna

    cls = getattr(optuna.samplers, SAMPLERS[kind])
    known = [name for name in inspect.signature(cls).parameters if name != "seed"]
    for name in args:
        if name not in known:
            raise ConfigError(
                f"searcher.args.{name}={args[name]}: the {kind} searcher has no such argument",
                choices(name, known),
                f"correct or remove it: ~searcher.args.{name}",
            )
    if conditional and kind == "tpe" and args.get("multivariate") is not False:
        args = {"group": True, **args}  # otherwise it draws at random what not all trials have (Optuna 5)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # of group, which conditions need
            _dry_run(cls(seed=seed, **args))
            made: BaseSampler = cls(seed=seed, **args)
        return made
    except (TypeError, ValueError, AssertionError) as error:
        raise ConfigError(
            f"searcher.args={dict(args)}: {error}", "values that Optuna accepts", "~searcher.args"
        ) from None


def _dry_run(made: BaseSampler) -> None:
    """Optuna looks at some arguments only when it proposes."""
    import optuna

    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        optuna.create_study(sampler=made).ask({"x": optuna.distributions.FloatDistribution(0.0, 1.0)})
    finally:
        optuna.logging.set_verbosity(level)
