"""What a driver works on, without a Ray."""

from __future__ import annotations

import contextlib
import io
import pickle
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from composing import compose
from omegaconf import OmegaConf

from rltune.cluster.resources import Machine, Share
from rltune.cluster.slots import Slots
from rltune.config.validation import parse_config
from rltune.driver.folder import hold_sweep
from rltune.driver.open_sweep import OpenSweep, open_sweep
from rltune.driver.plan import Invocation, make_plan
from rltune.driver.provenance import record_start

Opener = Callable[..., AbstractContextManager[OpenSweep]]


@pytest.fixture
def open_mine(request_of: Callable[..., Any], tmp_path: Path, stream: io.StringIO) -> Opener:
    """Open a sweep ``mine`` of a plain CartPole from overrides; its folder is there."""

    @contextlib.contextmanager
    def make(*overrides: str, resumed: bool = False) -> Iterator[OpenSweep]:
        folder = tmp_path / "mine"
        plan = make_plan(request_of("tracking=off", "budget.trials=2", *overrides), folder)
        plan = replace(plan, resumed=resumed)
        folder.mkdir(exist_ok=True)
        invocation = Invocation(time.monotonic(), stream)
        share = Share(cpus=1.0, gpus=0.0, env_runners=0)
        slots = Slots(share.bundles, 2, [Machine(2, 0)])
        with hold_sweep(plan) as ledger, open_sweep(plan, invocation, ledger, share, slots) as sweep:
            record_start(sweep)
            yield sweep

    return make


SAFE = ("tracking=off",)


@pytest.fixture(scope="module")
def plain_run():
    """A plain run's settings, pickled, because a copy of them is made for each plan."""
    return pickle.dumps(OmegaConf.create(OmegaConf.to_container(compose("run", *SAFE), resolve=True)))


@pytest.fixture
def make(plain_run, tmp_path, monkeypatch):
    """A plan from a plain run with some settings changed, in a folder of its own that stays empty."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)

    def build(**changes):
        settings = pickle.loads(plain_run)
        for key, value in changes.items():
            OmegaConf.update(settings, key.replace("__", "."), value, merge=not isinstance(value, dict))
        return make_plan(parse_config(settings))

    yield build
    assert list(tmp_path.iterdir()) == [], "checks write nothing"
