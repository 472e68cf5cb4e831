"""List the private names of RLlib and torch that the engine relies on, and find one that an installed version lacks."""

from __future__ import annotations

import functools
import importlib
import inspect
from typing import Any

# Attributes, each as "module:name.name".
NAMES = (
    "ray.rllib.algorithms.algorithm:Algorithm._set_up_metrics",
    "ray.rllib.core.learner.learner:Learner._set_optimizer_lr",
    "ray.rllib.core.rl_module.torch:TorchRLModule._forward",
    "ray.rllib.core.rl_module.torch:TorchRLModule._forward_train",
    "ray.tune.registry:_global_registry.get",
    "torch:_foreach_norm",
    "torch:_foreach_mul_",
    "torch:_fused_adam_",
)

# Instance attributes by class. They only exist on instances, so they are searched in the source of the class.
FIELDS = {
    "ray.rllib.algorithms.algorithm_config:AlgorithmConfig": (
        "_env_to_module_connector",
        "_learner_class",
        "_rl_module_spec",
    ),
    "ray.rllib.connectors.env_to_module.mean_std_filter:MeanStdFilter": ("_filters",),
    "ray.rllib.core.learner.learner:Learner": ("_optimizer_lr_schedules", "_weights_seq_no"),
    "ray.rllib.core.learner.learner_group:LearnerGroup": ("_learner",),
    "ray.rllib.env.env_runner_group:EnvRunnerGroup": ("_tune_trial_id", "_worker_manager"),
    "ray.rllib.env.single_agent_env_runner:SingleAgentEnvRunner": ("_env_to_module",),
    "ray.rllib.utils.schedules.scheduler:Scheduler": ("_schedule",),
}


def import_name(path: str) -> Any:
    """Import the object that ``module:name.name`` names."""
    module, _, names = path.partition(":")
    return functools.reduce(getattr, names.split("."), importlib.import_module(module))


@functools.cache
def find_missing_name() -> str | None:
    """Return a private name that the engine needs and an installed package lacks; None if all exist."""
    for path in NAMES:
        try:
            import_name(path)
        except (ImportError, AttributeError):
            return path
    for owner, fields in FIELDS.items():
        try:
            source = inspect.getsource(import_name(owner))
        except (ImportError, AttributeError, OSError):
            return owner
        for field in fields:
            if f"self.{field}" not in source:
                return f"{owner}.{field}"
    return None
