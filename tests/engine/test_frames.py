"""Connectors are built as RLlib builds them, and no source code is searched for."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from engine_toy import ppo_config
from ray.rllib.connectors import connector_v2
from ray.rllib.connectors.common.numpy_to_tensor import NumpyToTensor

from rltune import engine
from rltune.engine.frames import quicken, stack

BUILDER = compile("def build(make): return make()", "no/such/_raylet.pyx", "exec")  # as a Ray worker's lowest frames


def built_below_code_without_source(make: Any) -> Any:
    scope: dict[str, Any] = {}
    exec(BUILDER, scope)
    return scope["build"](make)


def test_a_connector_knows_the_arguments_it_was_made_with_as_without_us(monkeypatch: pytest.MonkeyPatch) -> None:
    def kept() -> Any:
        return built_below_code_without_source(lambda: NumpyToTensor(pin_memory=False, device="cpu"))._ctor_kwargs

    monkeypatch.setattr(connector_v2, "inspect", inspect)
    plain = kept()
    quicken()
    assert kept() == plain
    assert plain["device"] == "cpu"


def test_an_algorithm_is_built_without_a_search_for_source(monkeypatch: pytest.MonkeyPatch) -> None:
    engine.build(ppo_config()).stop()  # brings imports that search for themselves
    searched: list[Any] = []
    findsource = inspect.findsource

    def spy(thing: Any) -> Any:
        searched.append(thing)
        return findsource(thing)

    monkeypatch.setattr(connector_v2, "inspect", inspect)
    monkeypatch.setattr(inspect, "findsource", spy)
    built_below_code_without_source(lambda: engine.build(ppo_config())).stop()
    assert not searched


def test_frames_are_those_of_inspect() -> None:
    ours, theirs = stack(), inspect.stack()
    assert [(one.frame, one.function) for one in ours] == [(one.frame, one.function) for one in theirs]
