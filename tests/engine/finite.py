"""Whether an update shows that a trial has diverged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def is_finite(update: Any, stats: Mapping[str, float]) -> bool:
    """Return whether the statistics and parameters of an update are finite, as `FastAlgorithm.check_finite` asks."""
    return bool(np.isfinite(list(stats.values())).all() and torch.isfinite(update.flat.data).all())
