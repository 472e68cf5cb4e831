"""Settings as a plain run composes them."""

from __future__ import annotations

from typing import Any

import pytest
from composing import compose
from omegaconf import OmegaConf


@pytest.fixture(scope="session")
def composed() -> Any:
    """The settings of a plain run, as plain values; a test that changes them takes a copy."""
    return OmegaConf.to_container(compose("run"), resolve=True)
