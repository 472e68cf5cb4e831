"""One case for each private name that we use: a new release shows those it has lost as a list of red ones."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from ray._private import ray_constants

from rltune.cluster.ray_cluster import TUNE_SETTINGS
from rltune.compat import patching, rllib_build
from rltune.compat.patching import find_version, is_tested
from rltune.compat.rllib_build import LEFT_OUT
from rltune.compat.rllib_internals import FORWARD_METHODS
from rltune.engine import contract
from rltune.engine.contract import find_missing_name
from tests.compat.private_uses import read_source

# "module:name.name", and parameters that it must have.
NAMES: dict[str, tuple[str, ...]] = {
    "ray._private.auto_init_hook:enable_auto_connect": (),
    "ray._private.parameter:RayParams": ("worker_path", "no_monitor", "include_log_monitor"),
    "ray._private.services:ConsolePopen": (),
    "ray._private.services:get_node": ("gcs_address", "node_id"),
    "ray._private.services:start_api_server": ("include_dashboard",),
    "ray._private.services:start_raylet": (),
    "ray._private.services:_site_flags": (),
    "ray._private.services:_get_gcs_client_options": ("gcs_server_address",),
    "ray._private.state:GlobalState._initialize_global_state": ("gcs_options",),
    "ray._private.state:GlobalState.node_table": (),
    "ray._private.state:GlobalState.get_node": ("node_id",),
    "ray._private.worker:_global_node": (),
    "ray._private.worker:print_to_stdstream": ("data", "ignore_prefix"),
    "ray._private.node:Node.get_logs_dir_path": (),
    "ray.experimental.internal_kv:_internal_kv_del": ("key", "namespace"),
    "ray.experimental.internal_kv:_internal_kv_put": ("key", "value", "namespace"),
    "ray.actor:ActorClassID.from_random": (),
    "ray.actor:ActorClassID.size": (),
    "ray.tune.registry:_global_registry.get": ("category", "key"),
    "ray.tune.execution.tune_controller:PlacementGroupResourceManager": (),
    "ray.tune.execution.tune_controller:_ActorClassCache.get": ("trainable_cls",),
    "ray.tune.execution.tune_controller:TuneController.stop_trial": ("trial",),
    "ray.tune.execution.tune_controller:TuneController._cleanup_trials": (),
    "ray.tune.execution.tune_controller:TuneController._schedule_trial_task": ("method_name", "on_result", "on_error"),
    "ray.tune.trainable:Trainable.stop": (),
    "atexit:_run_exitfuncs": (),
    "weakref:finalize._registry": (),
    "sys:_current_frames": (),
    "ray.air.execution._internal.actor_manager:RayActorManager._actor_task_failed": ("tracked_actor_task", "exception"),
    "ray.air._internal.usage:tag_callbacks": ("callbacks",),
    "ray.rllib.connectors.connector_v2:inspect.stack": (),
    "ray.rllib.utils.torch_utils:torch.use_deterministic_algorithms": (),
    "ray.rllib.algorithms.algorithm:Algorithm._set_up_metrics": (),
    "ray.rllib.algorithms.sac.sac_catalog:SACCatalog._build_qf_encoder_continuous": ("framework",),
    "ray.rllib.core.models.catalog:Catalog._get_encoder_config": (
        "observation_space",
        "model_config_dict",
        "action_space",
    ),
    "ray.rllib.core.learner.learner:Learner._set_optimizer_lr": ("optimizer", "lr"),
    "ray.rllib.core.rl_module.torch:TorchRLModule._forward": ("batch",),
    "ray.rllib.core.rl_module.torch:TorchRLModule._forward_train": ("batch",),
    "torch:_C._set_deterministic_algorithms": (),
    "torch:_compile.__file__": (),
    "torch:_foreach_norm": (),
    "torch:_foreach_mul_": (),
    "torch:_fused_adam_": (),
}

# "module:class" whose instances have these fields, which only their source shows.
FIELDS = {
    "ray.rllib.algorithms.algorithm_config:AlgorithmConfig": (
        "_env_to_module_connector",
        "_learner_class",
        "_module_to_env_connector",
        "_rl_module_spec",
        "_torch_grad_scaler_class",
        "_torch_lr_scheduler_classes",
    ),
    "ray.rllib.algorithms.sac.torch.sac_torch_learner:SACTorchLearner": ("_temp_losses",),
    "ray.rllib.algorithms.bc.torch.default_bc_torch_rl_module:DefaultBCTorchRLModule": ("_encoder", "_pi_head"),
    "ray.rllib.connectors.env_to_module.mean_std_filter:MeanStdFilter": ("_filters", "_update_stats"),
    "ray.rllib.core.learner.learner:Learner": (
        "_learner_connector",
        "_optimizer_lr_schedules",
        "_weights_seq_no",
    ),
    "ray.rllib.core.learner.learner_group:LearnerGroup": ("_learner",),
    "ray.rllib.core.models.catalog:Catalog": ("_model_config_dict",),
    "ray.rllib.env.env_runner:EnvRunner": ("_seed",),
    "ray.rllib.env.env_runner_group:EnvRunnerGroup": (
        "_local_env_runner",
        "_num_env_runners_dropped_lifetime",
        "_remote_config",
        "_tune_trial_id",
        "_worker_manager",
    ),
    "ray.rllib.env.single_agent_env_runner:SingleAgentEnvRunner": ("_env_to_module",),
    "ray.rllib.utils.schedules.scheduler:Scheduler": ("_schedule",),
    "ray.tune.execution.tune_controller:TuneController": (
        "_actor_manager",
        "_resetting_trials",
        "_stopping_actors",
        "_trial_to_actor",
    ),
}

# What we use of MLflow besides its documented functions: `tracking.model_registry` logs a model without global state.
MODEL_CALLS = {
    "create_logged_model": ("experiment_id", "name", "source_run_id", "tags", "params", "model_type"),
    "create_model_version": ("name", "source", "run_id", "tags", "description", "model_id"),
    "finalize_logged_model": ("model_id", "status"),
    "log_model_artifacts": ("model_id", "local_dir"),
    "log_outputs": ("run_id", "models"),
}


def find(path: str) -> Any:
    module, _, names = path.partition(":")
    value = importlib.import_module(module)
    for name in names.split("."):
        value = getattr(value, name)
    return value


@pytest.mark.parametrize("path", NAMES)
def test_a_private_name_is_there_as_we_use_it(path):
    function = find(path)
    if NAMES[path]:
        missing = set(NAMES[path]) - set(inspect.signature(function).parameters)
        assert not missing, f"{path} has no parameter {', '.join(sorted(missing))}"


@functools.cache
def read_class(path: str) -> str:
    return inspect.getsource(find(path))


@pytest.mark.parametrize(("owner", "field"), [(owner, field) for owner in FIELDS for field in FIELDS[owner]])
def test_a_private_field_is_there(owner, field):
    assert f"self.{field}" in read_class(owner), f"{owner} sets no {field}"


def test_what_the_engine_checks_is_here_and_in_the_installed_versions():
    assert find_missing_name() is None
    assert {*contract.NAMES} <= NAMES.keys()
    assert all({*fields} <= {*FIELDS[owner]} for owner, fields in contract.FIELDS.items())


@pytest.mark.parametrize("call", MODEL_CALLS)
def test_mlflows_client_takes_what_we_give_it(call):
    from mlflow import MlflowClient

    assert set(MODEL_CALLS[call]) <= set(inspect.signature(getattr(MlflowClient, call)).parameters)


@pytest.mark.parametrize("method", FORWARD_METHODS)
def test_a_method_that_computes_outputs_is_called_so(method):
    homes = ("ray.rllib.core.rl_module.torch:TorchRLModule",)
    homes += ("ray.rllib.algorithms.sac.torch.default_sac_torch_rl_module:DefaultSACTorchRLModule",)
    homes += ("ray.rllib.algorithms.dqn.torch.default_dqn_torch_rl_module:DefaultDQNTorchRLModule",)
    assert any(hasattr(find(home), method) for home in homes)


@functools.cache
def read_tune() -> str:
    root = Path(ray.__file__).parent
    return "".join(path.read_text() for room in ("tune", "air", "train") for path in (root / room).rglob("*.py"))


@pytest.mark.parametrize("setting", TUNE_SETTINGS)
def test_a_setting_in_the_environment_is_still_read(setting):
    homes = read_tune() + Path(ray_constants.__file__).read_text()
    assert re.search(rf"[\"']{setting}[\"']", homes), f"Ray {ray.__version__} reads no {setting}"


def test_torch_marks_what_its_compiler_leaves_out_so():
    assert LEFT_OUT in Path(torch._compile.__file__).read_text()
    assert any(map(rllib_build._is_left_out, vars(torch.optim.Optimizer).values()))


@pytest.mark.parametrize("library", patching.TESTED)
def test_the_installed_version_is_the_tested_one(library):
    assert is_tested(library), f"{library} {find_version(library)}"


@pytest.mark.xdist_group("source")
def test_every_private_name_that_we_use_has_a_case_here():
    used = {use.name for use in read_source(Path(__file__).resolve().parents[2]).uses}
    cases = {part for path in NAMES for part in path.replace(":", ".").split(".")} | {*FORWARD_METHODS}
    assert used - cases - {field for fields in FIELDS.values() for field in fields} == set()
