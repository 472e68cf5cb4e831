"""What happens without our changes to other libraries: less quickly the same."""

from __future__ import annotations

import contextlib
import inspect
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import optuna
import pytest
import ray
import torch

from rltune.cluster import fork_server
from rltune.cluster.fork_server import begin_fork_server
from rltune.cluster.ray_cluster import can_fork_workers
from rltune.compat import patching
from rltune.compat.optuna_rows import choose_write, write_rows, write_values
from rltune.compat.patching import find_version
from rltune.compat.ray_registry import wait_for_ray
from rltune.compat.ray_start import (
    find_logs,
    hold_auto_start,
    list_private_arguments,
    start_in_own_session,
    start_without_extras,
)
from rltune.compat.rllib_internals import freeze_filters, list_remote_runners
from rltune.compat.tune_controller import adapt_tune
from rltune.config.schema import ClusterConfig
from rltune.policies import bundle_writer
from rltune.study.study import Study

SUPPORT = Path(__file__).resolve().parents[1] / "support"

# A sweep of the toy in a process of its own, as `toy_run` has it.
SWEEP = """
import sys, rltune.sweep.plan
rltune.sweep.plan.preflight = lambda plan: None
from composing import compose
from rltune.config.validation import parse_config
from rltune.sweep.pipeline import run_sweep
from toy import TOY, ToyTrial, ledger
outcome = run_sweep(parse_config(compose("run", "output_dir=outputs", *TOY, *sys.argv[1:])), trainable=ToyTrial)
print([(entry.state, len(entry.reports), "checkpoint" in entry.attributes) for entry in ledger(outcome)])
sys.exit(outcome.exit_code)
"""


@pytest.fixture
def off(monkeypatch):
    monkeypatch.setenv(patching.SWITCH, "off")
    monkeypatch.setattr(patching, "_refused", set(patching.TESTED))  # told before


@pytest.mark.usefixtures("off")
def test_ray_starts_and_tune_runs_with_their_own_names():
    from ray._private import parameter, services
    from ray.air._internal import usage
    from ray.air.execution._internal.actor_manager import RayActorManager
    from ray.tune.execution import tune_controller as controller
    from ray.tune.registry import _Registry

    owners = [parameter, services, usage, controller, RayActorManager, _Registry]
    before = [dict(vars(owner)) for owner in owners]
    with contextlib.ExitStack() as stack:
        stack.enter_context(hold_auto_start())
        stack.enter_context(start_in_own_session())
        stack.enter_context(start_without_extras(dashboard=False))
        stack.enter_context(adapt_tune(one_process=True))
        wait_for_ray()
        assert [dict(vars(owner)) for owner in owners] == before


@pytest.mark.usefixtures("off")
def test_an_untested_ray_gets_no_setting_that_would_end_it():
    assert list(list_private_arguments(["json"])) == ["_node_ip_address"]


def test_an_untested_ray_stays_on_this_machine_while_it_can(monkeypatch):
    monkeypatch.setattr(patching, "find_version", lambda library: "2.61.0")
    assert list_private_arguments() == {"_node_ip_address": "127.0.0.1"}
    monkeypatch.setattr(ray, "init", lambda **arguments: None)
    assert list_private_arguments() == {}


@pytest.mark.usefixtures("off")
def test_workers_are_not_forked():
    begin_fork_server()
    assert fork_server._early == []
    assert not can_fork_workers(ClusterConfig(num_cpus=2, num_gpus=0))


@pytest.mark.usefixtures("off")
def test_where_ray_writes_its_logs_is_not_known(monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    assert find_logs() is None


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


def test_fields_that_are_gone_are_done_without():
    connector = SimpleNamespace()
    freeze_filters(SimpleNamespace(connectors=[connector]))
    assert vars(connector) == {}
    assert list_remote_runners(SimpleNamespace()) == []
    assert list_remote_runners(None) == []
    with pytest.raises(ValueError, match="a bundle cannot express"):
        bundle_writer._network(type("DefaultBCTorchRLModule", (), {})())


@pytest.mark.parametrize("write", [write_rows, write_values])
def test_a_report_is_written_alike_by_rows_and_by_calls(write, tmp_path):
    storage = optuna.storages.RDBStorage(f"sqlite:///{tmp_path / 'study.db'}")
    study = optuna.create_study(storage=storage, direction="maximize")
    study.ask()
    (trial,) = storage.get_all_trials(storage.get_study_id_from_name(study.study_name))
    for reports, attributes in [({100: 1.0, 200: math.nan}, {"seeds": [1, 2]}), ({100: 2.0}, {"seeds": [3]})]:
        write(storage, trial._trial_id, reports, attributes)
    (trial,) = study.trials
    assert trial.intermediate_values[100] == 2.0
    assert math.isnan(trial.intermediate_values[200])
    assert trial.user_attrs == {"seeds": [3]}
    study.tell(0, 2.0)
    for late in [({300: 1.0}, {}), ({}, {"late": 1})]:
        with pytest.raises(optuna.exceptions.UpdateFinishedTrialError):
            write(storage, trial._trial_id, *late)


def test_tables_of_another_form_are_written_by_optunas_calls(monkeypatch, tmp_path):
    storage = optuna.storages.RDBStorage(f"sqlite:///{tmp_path / 'study.db'}")
    assert choose_write(storage) is write_rows
    monkeypatch.setattr(storage, "get_current_version", lambda: "v6.0.0")
    assert choose_write(storage) is write_values


@pytest.mark.usefixtures("off")
def test_a_study_is_kept_by_optunas_calls(tmp_path):
    study = Study(f"sqlite:///{tmp_path / 'study.db'}", "plain", create=True)
    number, _ = study.ask(lambda suggest: {}, {})
    study.report(number, 100, 5.0, checkpoint={"path": "trials/0/best"})
    study.finish(number, "COMPLETE", 5.0, "whole budget")
    (entry,) = study.trials()
    study.close()
    assert (entry.reports, entry.value) == ({100: 5.0}, 5.0)
    assert entry.attributes == {"checkpoint": {"path": "trials/0/best"}, "stop_reason": "whole budget"}


@pytest.mark.slow
def test_a_sweep_runs_to_its_end_and_says_once_that_it_is_plain(tmp_path):
    environment = {**os.environ, patching.SWITCH: "off", "PYTHONPATH": str(SUPPORT)}
    environment.pop("MLFLOW_TRACKING_URI", None)
    typed = [sys.executable, "-c", SWEEP, "budget.trials=3", "scheduler=none"]
    ran = subprocess.run(typed, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=500)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1] == str([("COMPLETE", 20, True)] * 3)
    (log,) = tmp_path.glob("outputs/*/sweep.log")
    told = ran.stderr + log.read_text()
    assert {library: told.count(f"{library} {find_version(library)} (") for library in ("ray", "optuna")} == {
        "ray": 1,
        "optuna": 1,
    }
