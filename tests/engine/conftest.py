"""What all of the engine's tests can name."""

from __future__ import annotations

import pytest
from ray.tune import register_env

from tests.engine.engine_toy import CountEnv, CueEnv


@pytest.fixture(autouse=True)
def _known_envs() -> None:
    """Register the environments "count" and "cue"."""
    register_env("cue", lambda config: CueEnv())
    register_env("count", lambda config: CountEnv(**{k: v for k, v in config.items() if k != "num_envs"}))
