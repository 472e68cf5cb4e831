"""Read what an ``RLlibCallback`` of the user's logs out of RLlib's results, where RLlib's own numbers lie beside it.

Callbacks see episodes with stock RLlib alone; the engine calls those that see the algorithm. Runs in the worker.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.utils import metrics
from ray.tune import result as tune_result

from rltune.algorithms.episodes import EPISODES
from rltune.envs.meter import read_number
from rltune.envs.spec import EPISODE, METRIC_NAME

# The names of RLlib's and Tune's own numbers are the constants of these modules, and some that are written out (2.60).
_OWN = {
    *(name for module in (metrics, tune_result) for name in vars(module).values() if isinstance(name, str)),
    *("agent_episode_return_mean", "module_episode_return_mean", "num_env_steps_sampled_lifetime_throughput"),
    *("env_runner_group", "date", "timestamp", "time_since_restore", "iterations_since_restore", "config", "perf"),
    EPISODES,
}


def has_callbacks(config: Any) -> bool:
    """Return whether an RLlib config has callbacks of the user's."""
    classes = config.callbacks_class
    if any(cls is not RLlibCallback for cls in (classes if isinstance(classes, list | tuple) else [classes])):
        return True
    return any(value for name, value in vars(config).items() if name.startswith("callbacks_on_"))


def read_logged(result: Mapping[str, Any]) -> tuple[dict[str, float], list[str]]:
    """Return what callbacks have logged through ``metrics_logger``, or written into an iteration's result.

    Args:
        result: What ``Algorithm.train`` gave.

    Returns:
        The numbers by their names in reports, and the names of what is no number or has a name that none can have.
    """
    numbers, refused = dict[str, float](), list[str]()
    for part in (result, result.get("env_runners") or {}):
        for name, value in _list_logged(part):
            number = read_number(value)
            # RLlib reduces to NaN what was logged in an earlier iteration alone.
            if math.isnan(number) and isinstance(value, float):
                continue
            if math.isfinite(number) and re.fullmatch(METRIC_NAME, name):
                numbers[EPISODE + name] = number
            else:
                refused.append(name)
    return numbers, refused


def _list_logged(part: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the names and values in a part of a result that are not RLlib's; nested ones have slashes."""
    for key, value in part.items():
        name = f"{above}{key}"
        if not above and (key in _OWN or str(key).endswith("_throughput")):
            continue
        if isinstance(value, Mapping):
            yield from _list_logged(value, f"{name}/")
        else:
            yield name, value
