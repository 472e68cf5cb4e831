"""Which of Optuna's samplers proposes trials, by the name and arguments of a searcher file. Runs in the driver."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import optuna

from rltune.errors import ConfigError, choices

SAMPLERS: Mapping[str, type[optuna.samplers.BaseSampler]] = {
    "tpe": optuna.samplers.TPESampler,
    "random": optuna.samplers.RandomSampler,
}


def sampler(kind: str, args: Mapping[str, Any], seed: int) -> optuna.samplers.BaseSampler:
    """The sampler that a searcher file names.

    Raises:
        ConfigError: The kind or an argument is unknown, or its value is refused.
    """
    if kind not in SAMPLERS:
        raise ConfigError(f"searcher.kind={kind} is unknown", choices(kind, SAMPLERS), "searcher=tpe")
    known = [name for name in inspect.signature(SAMPLERS[kind]).parameters if name != "seed"]
    for name in args:
        if name not in known:
            raise ConfigError(
                f"searcher.args.{name}={args[name]}: the {kind} searcher has no such argument",
                choices(name, known),
                f"correct or remove it: ~searcher.args.{name}",
            )
    try:
        return SAMPLERS[kind](seed=seed, **args)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"searcher.args={dict(args)}: {error}", "values that Optuna accepts", "~searcher.args"
        ) from None
