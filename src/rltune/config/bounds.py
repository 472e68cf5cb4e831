"""Bound the arguments of `training` whose meaning every algorithm shares; RLlib checks few of them."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from rltune.errors import ConfigError


class Bounds(NamedTuple):
    """Where an argument's value makes sense.

    Attributes:
        low: The least value.
        high: The greatest value.
        usual: One to suggest.
        is_open: Whether `low` itself makes no sense.
    """

    low: float
    high: float
    usual: float
    is_open: bool = False

    def __str__(self) -> str:
        least = f"above {self.low:g}" if self.is_open else f"at least {self.low:g}"
        return least if self.high == math.inf else f"{least} and at most {self.high:g}"


_RATE = Bounds(0, math.inf, 3e-4, is_open=True)
_COUNT = Bounds(1, math.inf, 1)
_WEIGHT = Bounds(0, math.inf, 0)

BOUNDS = {
    "gamma": Bounds(0, 1, 0.99),
    "lambda_": Bounds(0, 1, 0.95),
    "tau": Bounds(0, 1, 0.005),
    **dict.fromkeys(("lr", "actor_lr", "critic_lr", "value_lr"), _RATE),
    "alpha_lr": Bounds(0, math.inf, 3e-4),  # 0 leaves SAC's temperature as it is
    "initial_alpha": Bounds(0, math.inf, 1, is_open=True),
    "clip_param": Bounds(0, math.inf, 0.2, is_open=True),
    "vf_clip_param": Bounds(0, math.inf, 10, is_open=True),
    "grad_clip": Bounds(0, math.inf, 0.5, is_open=True),
    **dict.fromkeys(("entropy_coeff", "vf_loss_coeff", "kl_coeff", "beta"), _WEIGHT),
    **dict.fromkeys(("num_epochs", "minibatch_size", "train_batch_size", "train_batch_size_per_learner"), _COUNT),
}


def check_bounds(key: str, name: str, value: Any, shown: Any = None) -> None:
    """Refuse a value that is no number, or lies out of its argument's bounds; None, lists and unknown names pass.

    Args:
        key: The setting, for the error.
        name: The argument.
        value: A fixed value or an end of a range. RLlib reads a list as a schedule.
        shown: What the setting says, where that is a range.

    Raises:
        ConfigError: It makes no sense.
    """
    bounds = BOUNDS.get(name)
    if bounds is None or value is None or isinstance(value, list | tuple | dict):
        return
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    inside = is_number and bounds.low <= value <= bounds.high
    if not inside or (bounds.is_open and value == bounds.low):
        what = f"{key}={value if shown is None else shown}"
        why = f"{value:g} is out of range" if is_number else f"{value!r} is no number"
        raise ConfigError(f"{what}: {why}", f"{name} {bounds}", f"{key}={bounds.usual:g}")
