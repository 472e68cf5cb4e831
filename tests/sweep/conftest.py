"""What a driver works on, without a Ray."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from rltune.cluster.resources import Share
from rltune.sweep.context import SweepContext
from rltune.sweep.open_sweep import OpenSweep, open_sweep
from rltune.sweep.plan import make_plan

Opener = Callable[..., AbstractContextManager[OpenSweep]]


@pytest.fixture
def open_mine(request_of: Callable[..., Any], tmp_path: Path, stream: io.StringIO) -> Opener:
    """Open a sweep ``mine`` of a plain CartPole from overrides; its folder is there."""

    def make(*overrides: str, resumed: bool = False) -> AbstractContextManager[OpenSweep]:
        plan = make_plan(request_of("tracking=off", "budget.trials=2", *overrides))
        (tmp_path / "mine").mkdir(exist_ok=True)
        context = SweepContext(plan, "mine", tmp_path / "mine", resumed, time.monotonic(), stream)
        return open_sweep(context, Share(cpus=1.0, gpus=0.0, env_runners=0, slots=2))

    return make
