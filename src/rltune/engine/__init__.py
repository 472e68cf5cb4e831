"""The fast engine: train RLlib's algorithms with hot loops on arrays instead of RLlib's episode objects.

`build_algorithm` returns an RLlib ``Algorithm`` for an RLlib config: one of ours where its settings allow, stock RLlib
otherwise, with one logged line that names the setting. Sampling and updating are replaced; configs, modules, losses,
checkpoints and the public API stay RLlib's. Runs in a worker.

``on_policy`` and ``off_policy`` hold the algorithms, ``networks`` what they train, ``sampling`` how they meet their
environments. Call `rltune.engine.sampling.observation_filter.normalise_observations` before `build_algorithm` for
normalised observations.
"""

from __future__ import annotations

import importlib
import logging
import time
from typing import Any

from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

from rltune.algorithms.episodes import report_episodes
from rltune.compat.patching import find_version, is_tested
from rltune.compat.rllib_build import skip_needless_work, without_home_folder
from rltune.config.capabilities import capabilities_of
from rltune.config.schema import ENGINES
from rltune.engine.contract import find_missing_name
from rltune.engine.features import UnsupportedError, find_unserved_setting
from rltune.engine.kernels.compiler import find_missing_kernels
from rltune.engine.networks.mixed_precision import FLOAT32
from rltune.errors import ConfigError, choices

__all__ = ["build_algorithm", "check_precision", "find_obstacle", "find_static_obstacle", "prepare_kernels"]

logger = logging.getLogger(__name__)


def _find_fast_class(config: AlgorithmConfig) -> Any:
    """Return rltune's fast subclass of the config's algorithm; None if there is none."""
    path = capabilities_of(type(config)).engine
    if path is None:
        return None
    module, name = path.split(":")
    cls = getattr(importlib.import_module(module), name)
    # A user's subclass, for example of PPO, is trained by stock RLlib, because the engine would ignore its
    # training_step.
    return cls if cls.stock_class is config.algo_class else None


def find_obstacle(config: AlgorithmConfig, spaces: tuple[Any, Any] | None) -> str | None:
    """Name the feature of ``config`` that the fast engine does not support, so that stock RLlib must train; else None.

    Args:
        config: Any config of RLlib's.
        spaces: The spaces in which the networks see and act; None for several agents.
    """
    reason = find_static_obstacle(config)
    if reason is not None or spaces is None:
        return reason
    from rltune.engine.sampling.env_runner import check_spaces

    try:
        check_spaces(*spaces, config)
    except UnsupportedError as error:
        return error.feature
    return None


def find_static_obstacle(config: AlgorithmConfig) -> str | None:
    """Name the unsupported feature as `find_obstacle` does, but without knowing the environment."""
    if not is_tested("ray") and (name := find_missing_name()):
        return f"Ray {find_version('ray')}, which has no {name}"
    return find_unserved_setting(config) if _find_fast_class(config) else f"the algorithm {config.algo_class.__name__}"


def prepare_kernels(config: AlgorithmConfig) -> tuple[str, ...]:
    """Load or compile the kernels of an algorithm, and return notes for the user, such as the compile time."""
    start = time.monotonic()
    missing = find_missing_kernels(_find_fast_class(config).kernels)
    if missing:
        return (missing,)
    took = time.monotonic() - start
    compiled = f"the algorithm's kernels were compiled in {took:.0f} s, once for this version"
    return (compiled,) if took > 2.0 else ()


def check_precision(config: AlgorithmConfig, engine: str, precision: str) -> None:
    """Refuse bfloat16 for an algorithm that can only be trained in float32.

    Raises:
        ConfigError: Stock RLlib trains this one, or a hot loop that does not know it.
    """
    if precision == FLOAT32:
        return
    cls, why = _find_fast_class(config), "engine=rllib" if engine == "rllib" else find_static_obstacle(config)
    if cls and why is None and precision not in cls.precisions:
        why = f"algo.class={type(config).__name__}"
    if why:
        raise make_precision_error(precision, why)


def make_precision_error(precision: str, why: str) -> ConfigError:
    """Make the error for bfloat16 with an algorithm that can only be trained in float32."""
    return ConfigError(
        "precision",
        precision,
        f"with {why}, which is trained in float32",
        "PPO, A2C and DQN of the fast engine",
        "precision=float32",
    )


def build_algorithm(config: AlgorithmConfig, engine: str = "fast", precision: str = FLOAT32) -> Algorithm:
    """Build the algorithm that ``config`` describes: the fast one if it supports everything, else stock RLlib's.

    Args:
        config: Built with RLlib's fluent methods; not changed. `rltune.config.capabilities` lists the algorithms that
            have a class of ours.
        engine: ``fast``, or ``rllib`` for stock RLlib whatever the config.
        precision: The precision of the networks' products, ``float32`` or ``bfloat16``.

    Returns:
        An RLlib algorithm whose results have the iteration's episodes, see `rltune.algorithms.episodes`; call its
        ``stop()`` when done.

    Raises:
        ConfigError: For another engine, or a precision that is not served.
    """
    if engine not in ENGINES:
        raise ConfigError("engine", engine, "is unknown", choices(engine, ENGINES), "engine=fast")
    check_precision(config, engine, precision)
    skip_needless_work(compiling=config.torch_compile_learner or config.torch_compile_worker)
    with without_home_folder():
        return _build(config, engine, precision)


def _build(config: AlgorithmConfig, engine: str, precision: str) -> Algorithm:
    if engine == "rllib":
        return report_episodes(config).build_algo()
    cls, reason = _find_fast_class(config), find_static_obstacle(config)
    if cls and reason is None:
        try:
            return cls(config=config, precision=precision)
        # Some features, such as spaces and layers, are only known during the build, so this is the second check.
        except UnsupportedError as error:
            reason = error.feature
            if precision != FLOAT32:
                raise make_precision_error(precision, reason) from None
    logger.warning("engine: stock RLlib trains this trial, because the fast engine does not support %s", reason)
    return report_episodes(config).build_algo()
