"""What an algorithm's config plugs into RLlib's connector pipelines. Runs in the driver and in workers."""

from __future__ import annotations

from typing import Any

from ray.rllib.connectors.env_to_module import MeanStdFilter


def make_mean_std_connector(env: Any = None, spaces: Any = None, device: Any = None) -> MeanStdFilter:
    """RLlib's running filter of observations; the engine knows this function and does the same on arrays."""
    return MeanStdFilter()
