"""Fast hot loops for RLlib's algorithms.

``build`` returns an RLlib ``Algorithm`` for an RLlib config: ours where its features allow, stock RLlib
otherwise, with one logged line that names the feature. Runs in a worker. What is replaced is sampling and
updating; configs, modules, losses, checkpoints and the public API are RLlib's.

Normalised observations are asked for with :func:`normalise_observations`, before ``build``.
"""

from __future__ import annotations

import importlib
import logging
from typing import Any

from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

from rltune.compat.patching import find_version, is_tested
from rltune.compat.rllib_build import skip_needless_work
from rltune.config.capabilities import capabilities_of
from rltune.engine.features import UnsupportedError, find_unserved_setting
from rltune.engine.sampling.vector_envs import make_envs
from rltune.errors import ConfigError, choices

__all__ = ["build_algorithm", "find_obstacle", "find_static_obstacle"]

KINDS = ("fast", "rllib")
logger = logging.getLogger(__name__)


def _fast_class(config: AlgorithmConfig) -> Any:
    """Our subclass of the config's algorithm, or None for algorithms and subclasses that are not RLlib's."""
    path = capabilities_of(type(config)).engine
    if path is None:
        return None
    module, name = path.split(":")
    cls = getattr(importlib.import_module(module), name)
    return cls if cls.stock_class is config.algo_class else None


def find_obstacle(config: AlgorithmConfig) -> str | None:
    """Name the feature of ``config`` that forces stock RLlib; None when the fast engine serves it.

    Builds one environment for a moment to see its spaces, unless something else already decides.
    """
    reason = find_static_obstacle(config)
    if reason is not None:
        return reason
    from rltune.engine.sampling.env_runner import check_spaces

    envs = make_envs(config, num_envs=1)
    try:
        check_spaces(envs, config)
    except UnsupportedError as error:
        return error.feature
    finally:
        envs.close()
    return None


def find_static_obstacle(config: AlgorithmConfig) -> str | None:
    """As `unsupported`, from the config alone: no environment is built."""
    if not is_tested("ray"):  # its loops call private methods of RLlib's learners
        return f"Ray {find_version('ray')}"
    return find_unserved_setting(config) if _fast_class(config) else f"the algorithm {config.algo_class.__name__}"


def build_algorithm(config: AlgorithmConfig, kind: str = "fast") -> Algorithm:
    """Build the algorithm that ``config`` describes.

    Args:
        config: Built with RLlib's fluent methods; not changed. Which algorithms have a class of ours, says
            `rltune.config.capabilities`.
        kind: ``fast``, or ``rllib`` for stock RLlib whatever the config.

    Returns:
        An RLlib algorithm; call its ``stop()`` when done.

    Raises:
        ConfigError: For another kind.
    """
    if kind not in KINDS:
        raise ConfigError(f"engine: {kind!r} is unknown", choices(kind, KINDS), "engine=fast")
    skip_needless_work(compiling=config.torch_compile_learner or config.torch_compile_worker)
    if kind == "rllib":
        return config.build_algo()
    reason = find_static_obstacle(config)
    if reason is None:
        try:
            return _fast_class(config)(config=config)
        except UnsupportedError as error:
            reason = error.feature
    logger.warning("engine: stock RLlib trains this one, because the fast engine does not serve %s", reason)
    return config.build_algo()
