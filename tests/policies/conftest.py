"""Bundles that several files ask."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.sac import SACConfig

from rltune.policies.bundle_reader import BundlePolicy
from rltune.policies.bundle_writer import write_bundle
from tests.policies.rllib_modules import recurrent_runner, runner_of


@pytest.fixture(scope="session")
def recurrent(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recurrent")
    write_bundle(recurrent_runner(PPOConfig, "CartPole-v1").module, folder, info={})
    return SimpleNamespace(folder=folder, policy=BundlePolicy.load(folder))


@pytest.fixture(scope="session")
def cartpole(tmp_path_factory):
    runner = runner_of(PPOConfig(), "CartPole-v1")
    folder = tmp_path_factory.mktemp("cartpole")
    write_bundle(
        runner.module,
        folder,
        info={"algo": "ppo", "params": {"lr": np.float64(1e-3)}, "objective": float("nan")},
    )
    return SimpleNamespace(folder=folder, module=runner.module, policy=BundlePolicy.load(folder))


@pytest.fixture(scope="session")
def pendulum(tmp_path_factory):
    runner = runner_of(SACConfig(), "Pendulum-v1")
    folder = tmp_path_factory.mktemp("pendulum")
    write_bundle(runner.module, folder, info={"algo": "sac"})
    return SimpleNamespace(folder=folder, module=runner.module, policy=BundlePolicy.load(folder))
