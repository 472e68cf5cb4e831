"""With the switch off sweeps give the same results, more slowly."""

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
from rltune.compat import patching
from rltune.compat.ray_start import find_logs, start_in_own_session, start_without_extras
from rltune.compat.ray_store import delete_value, read_values, write_value
from rltune.compat.tune_controller import adapt_tune

SUPPORT = Path(__file__).resolve().parents[1] / "support"

# A sweep of the toy in a process of its own, as `toy_run` has it.
SWEEP = """
import sys, rltune.driver.plan
rltune.driver.plan.preflight = lambda *_: ()
from composing import compose
from rltune.config.validation import parse_config
from rltune.driver.run import run_sweep
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

    owners = [parameter, services, usage, controller, controller.TuneController, RayActorManager]
    before = [dict(vars(owner)) for owner in owners]
    with contextlib.ExitStack() as stack:
        stack.enter_context(start_in_own_session())
        stack.enter_context(start_without_extras(dashboard=False))
        stack.enter_context(adapt_tune(one_process=True))
        assert [dict(vars(owner)) for owner in owners] == before


@pytest.mark.usefixtures("off")
def test_workers_are_not_forked(monkeypatch):
    monkeypatch.setattr(fork_server, "_early", [])  # Another test may have started one.
    begin_fork_server()
    assert fork_server._early == []


@pytest.mark.parametrize("library", ["ray", "torch"])
def test_an_algorithm_is_built_as_rllib_builds_it(library, monkeypatch):
    from ray.rllib.connectors import connector_v2
    from ray.rllib.utils import torch_utils

    from rltune.compat.rllib_build import skip_needless_work

    monkeypatch.setattr(connector_v2, "inspect", inspect)
    monkeypatch.setattr(torch_utils, "torch", torch)
    monkeypatch.setitem(patching.TESTED, library, ("0.0", "0.0"))
    patching._is_ray_tested.cache_clear()
    skip_needless_work(compiling=False)
    patching._is_ray_tested.cache_clear()
    assert torch_utils.torch is torch
    assert (connector_v2.inspect is inspect) is (library == "ray")


@pytest.mark.usefixtures("off")
def test_what_only_private_names_tell_is_not_known():
    assert find_logs() is None
    write_value("steps:/a/b", "17")
    assert read_values(["steps:/a/b"]) == {}
    delete_value("steps:/a/b")


@pytest.mark.nightly
@pytest.mark.slow
def test_a_sweep_runs_to_its_end_without_our_changes(tmp_path):
    environment = {**os.environ, patching.SWITCH: "off", "PYTHONPATH": str(SUPPORT)}
    environment.pop("MLFLOW_TRACKING_URI", None)
    typed = [sys.executable, "-c", SWEEP, "budget.trials=3", "scheduler=none"]
    ran = subprocess.run(typed, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=500)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1] == str([("COMPLETE", 20, True)] * 3)
