"""What a trial calls, RLlib's runner and the toy both have."""

from __future__ import annotations

import inspect

import pytest
from toy import ToyRunner

from rltune.trial.algorithm_runner import AlgorithmRunner
from rltune.trial.runner import Runner

NAMES = [name for name in vars(Runner) if not name.startswith("_")]


@pytest.mark.parametrize("implementation", [AlgorithmRunner, ToyRunner])
@pytest.mark.parametrize("name", NAMES)
def test_a_runner_is_called_in_one_way(name: str, implementation: type) -> None:
    wanted, implemented = getattr(Runner, name), getattr(implementation, name)
    assert isinstance(implemented, property) == isinstance(wanted, property)
    if not isinstance(wanted, property):
        assert list(inspect.signature(implemented).parameters) == list(inspect.signature(wanted).parameters)


def test_a_trial_trains_saves_restores_and_stops() -> None:
    assert set(NAMES) == {
        "train",
        "play",
        "save",
        "restore",
        "kept_steps",
        "replay_bytes",
        "save_replay",
        "load_replay",
        "close_envs",
        "stop",
    }
