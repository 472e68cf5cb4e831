"""What happens without our changes to other libraries: less quickly the same."""

from __future__ import annotations

import contextlib
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rltune.cluster import fork_server
from rltune.cluster.fork_server import begin_fork_server
from rltune.cluster.ray_cluster import can_fork_workers
from rltune.compat import patching
from rltune.compat.ray_registry import wait_for_ray
from rltune.compat.ray_start import (
    hold_auto_start,
    start_in_own_session,
    start_without_extras,
)
from rltune.compat.tune_controller import adapt_tune
from rltune.config.schema import ClusterConfig

SUPPORT = Path(__file__).resolve().parents[1] / "support"

# A sweep of the toy in a process of its own, as `toy_run` has it.
SWEEP = """
import sys, rltune.pipeline.plan
rltune.pipeline.plan.preflight = lambda plan: None
from composing import compose
from rltune.config.validation import parse_config
from rltune.pipeline.run import run_sweep
from toy import TOY, ToyTrial, ledger
outcome = run_sweep(parse_config(compose("run", "output_dir=outputs", *TOY, *sys.argv[1:])), trainable=ToyTrial)
print([(entry.state, len(entry.reports), entry.checkpoint is not None) for entry in ledger(outcome)])
sys.exit(outcome.exit_code)
"""


@pytest.mark.usefixtures("off")
def test_ray_starts_and_tune_runs_with_their_own_names():
    from ray._private import parameter, services
    from ray.air._internal import usage
    from ray.air.execution._internal.actor_manager import RayActorManager
    from ray.tune.execution import tune_controller as controller
    from ray.tune.registry import _Registry

    owners = [parameter, services, usage, controller, controller.TuneController, RayActorManager, _Registry]
    before = [dict(vars(owner)) for owner in owners]
    with contextlib.ExitStack() as stack:
        stack.enter_context(hold_auto_start())
        stack.enter_context(start_in_own_session())
        stack.enter_context(start_without_extras(dashboard=False))
        stack.enter_context(adapt_tune(one_process=True))
        wait_for_ray()
        assert [dict(vars(owner)) for owner in owners] == before


@pytest.mark.usefixtures("off")
def test_workers_are_not_forked():
    begin_fork_server()
    assert fork_server._early == []
    assert not can_fork_workers(ClusterConfig(num_cpus=2, num_gpus=0))


@pytest.mark.parametrize("refused", ["ray", "torch"])
def test_an_algorithm_is_built_as_rllib_builds_it(refused, monkeypatch):
    from ray.rllib.connectors import connector_v2
    from ray.rllib.utils import torch_utils

    from rltune.compat import rllib_build
    from rltune.compat.rllib_build import skip_needless_work

    monkeypatch.setattr(connector_v2, "inspect", inspect)
    monkeypatch.setattr(torch_utils, "torch", torch)
    monkeypatch.setattr(rllib_build, "is_supported", lambda library: library != refused)
    skip_needless_work(compiling=False)
    assert torch_utils.torch is torch
    assert (connector_v2.inspect is inspect) is (refused == "ray")


def test_an_untested_ray_trains_by_stock_rllib(monkeypatch):
    from ray.rllib.algorithms.ppo import PPOConfig

    from rltune import engine
    from rltune.engine import find_static_obstacle

    monkeypatch.setattr(patching, "find_version", lambda library: "2.61.0")
    monkeypatch.setattr(engine, "find_version", lambda library: "2.61.0")
    assert find_static_obstacle(PPOConfig().environment("CartPole-v1")) == "Ray 2.61.0"


@pytest.mark.slow
def test_a_sweep_runs_to_its_end_without_our_changes(tmp_path):
    environment = {**os.environ, patching.SWITCH: "off", "PYTHONPATH": str(SUPPORT)}
    environment.pop("MLFLOW_TRACKING_URI", None)
    typed = [sys.executable, "-c", SWEEP, "budget.trials=3", "scheduler=none"]
    ran = subprocess.run(typed, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=500)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1] == str([("COMPLETE", 20, True)] * 3)
