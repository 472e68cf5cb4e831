"""What a driver works on, without a Ray."""

from __future__ import annotations

import contextlib
import io
import pickle
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import opened
import pytest
from composing import compose
from omegaconf import OmegaConf

from rltune.config.validation import parse_config
from rltune.driver.plan import make_plan
from rltune.driver.sweep import Sweep

Opener = Callable[..., AbstractContextManager[Sweep]]


@pytest.fixture
def open_mine(tmp_path: Path, stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> Opener:
    """Open a sweep ``mine`` of a plain CartPole from overrides, as its driver does; its folder is there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return lambda *words, **options: opened.drive_sweep(tmp_path / "mine", *words, stream=stream, **options)


@pytest.fixture
def make_sweep(tmp_path: Path) -> Iterator[Callable[..., Sweep]]:
    """Make a sweep for the driver's modules from overrides; made once more, it is resumed."""
    with contextlib.ExitStack() as stack:

        def make(*words: str, name: str = "mine", **options: Any) -> Sweep:
            sweep = opened.make_sweep(tmp_path / name, *words, **options)
            stack.callback(sweep.ledger.close)
            return sweep

        yield make


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
