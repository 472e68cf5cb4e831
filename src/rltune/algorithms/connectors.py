"""Make the connectors that a config adds to RLlib's pipelines.

Checkpoints pickle these functions by their module and name, so that neither may change.
"""

from __future__ import annotations

from typing import Any

from ray.rllib.connectors.env_to_module import MeanStdFilter


def make_mean_std_connector(env: Any = None, spaces: Any = None, device: Any = None) -> MeanStdFilter:
    """Make RLlib's running filter of observations. The engine recognizes this function and filters arrays itself."""
    return MeanStdFilter()
