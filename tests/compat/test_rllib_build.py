"""What is built is what RLlib builds, without its search for source code and torch's import of its compiler."""

from __future__ import annotations

import importlib
import inspect
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.connectors import connector_v2
from ray.rllib.connectors.common.numpy_to_tensor import NumpyToTensor
from ray.rllib.utils.torch_utils import set_torch_seed
from ray.tune.trainable import trainable

from rltune.compat.rllib_build import COMPILER, skip_needless_work, stack
from rltune.engine import build_algorithm

pytestmark = pytest.mark.replacement


def ppo_config() -> PPOConfig:
    training = {"train_batch_size_per_learner": 256, "minibatch_size": 64, "num_epochs": 2}
    return PPOConfig().environment("CartPole-v1").env_runners(num_env_runners=0).training(**training)


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
    skip_needless_work(compiling=False)
    assert kept() == plain
    assert plain["device"] == "cpu"


@pytest.mark.parametrize("engine", ["fast", "rllib"])
def test_an_algorithm_makes_no_folder_in_the_home(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainable, "DEFAULT_STORAGE_PATH", "/proc/nope")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    build_algorithm(ppo_config(), engine).stop()
    assert trainable.DEFAULT_STORAGE_PATH == "/proc/nope"
    assert not any(path.name.startswith("rltune-build-") for path in tmp_path.iterdir())


def test_an_algorithm_is_built_without_a_search_for_source(monkeypatch: pytest.MonkeyPatch) -> None:
    build_algorithm(ppo_config()).stop()  # brings imports that search for themselves
    searched: list[Any] = []
    findsource = inspect.findsource

    def spy(thing: Any) -> Any:
        searched.append(thing)
        return findsource(thing)

    monkeypatch.setattr(connector_v2, "inspect", inspect)
    monkeypatch.setattr(inspect, "findsource", spy)
    built_below_code_without_source(lambda: build_algorithm(ppo_config())).stop()
    assert not searched


def test_frames_are_those_of_inspect() -> None:
    ours, theirs = stack(), inspect.stack()
    assert [(one.frame, one.function) for one in ours] == [(one.frame, one.function) for one in theirs]


@pytest.mark.parametrize("compiling", [False, True])
def test_a_seed_asks_for_deterministic_algorithms_whether_the_compiler_is_there_or_not(compiling: bool) -> None:
    before = torch.are_deterministic_algorithms_enabled()
    try:
        torch.use_deterministic_algorithms(False)
        skip_needless_work(compiling)
        set_torch_seed(1)
        # RLlib asks for them in builds of torch without CUDA alone.
        assert torch.are_deterministic_algorithms_enabled() is (torch.version.cuda is None)
        if hasattr(compiler := importlib.import_module(COMPILER), "deterministic"):  # In torch 2.9 and later.
            assert compiler.deterministic is (torch.version.cuda is None)
    finally:
        torch.use_deterministic_algorithms(before)
