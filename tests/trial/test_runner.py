"""What a trial calls, RLlib's runner and the toy both have."""

from __future__ import annotations

import inspect

import pytest
from toy import ToyRunner

from rltune.trial.algorithm_runner import AlgorithmRunner
from rltune.trial.runner import Runner

METHODS = [name for name in vars(Runner) if not name.startswith("_")]


@pytest.mark.parametrize("implementation", [AlgorithmRunner, ToyRunner])
@pytest.mark.parametrize("name", METHODS)
def test_a_runner_is_called_in_one_way(name: str, implementation: type) -> None:
    wanted, found = (inspect.signature(getattr(cls, name)) for cls in (Runner, implementation))
    assert list(found.parameters) == list(wanted.parameters)


def test_a_trial_trains_saves_restores_and_stops() -> None:
    assert set(METHODS) == {"train", "save", "restore", "stop"}
