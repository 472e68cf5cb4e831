"""Package a policy as a pickle-free MLflow model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rltune.policies.bundle_reader import load_bundle
from rltune.policies.multi_agent import MultiAgentPolicy, is_multi_agent

if TYPE_CHECKING:
    from mlflow.types import Schema


def make_model_arguments(folder: str | Path, carried: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What ``mlflow.pyfunc.log_model`` and ``save_model`` take to make a bundle a model without rltune.

    The signature says what comes out; what goes in is left open, because MLflow's check of a tensor (3.17)
    would refuse float64 arrays, dicts and data frames, and the model takes them all. The input example and
    ``metadata`` show what is meant.

    Args:
        folder: The bundle.
        carried: JSON-able facts for ``metadata``, such as the training config and the certification.
    """
    if is_multi_agent(Path(folder)):
        return make_multi_agent_model_arguments(folder, carried)
    from mlflow.types import Schema, TensorSpec

    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")  # the console shows the progress
    policy = load_bundle(folder)
    space = policy.observation_space
    space.seed(0)
    example = np.stack([space.sample() for _ in range(2)])
    actions, memory = policy.predict(example)
    given: Any = {"obs": example, "state": memory} if policy.memory_size else example
    outputs = [TensorSpec(actions.dtype, (-1, *actions.shape[1:]), "actions" if policy.memory_size else None)]
    if policy.memory_size:
        outputs.append(TensorSpec(memory.dtype, (-1, policy.memory_size), "state"))
    about = {"info": policy.info, "spaces": policy.spaces, **(carried or {})}
    return package_model(folder, Schema(outputs), given, about)


def make_multi_agent_model_arguments(folder: str | Path, carried: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What makes a team a model without rltune; see `rltune.policies.mlflow_model.make_model_arguments`.

    Args:
        folder: The team's.
        carried: JSON-able facts for ``metadata``.
    """
    from mlflow.types import Schema, TensorSpec

    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")  # the console shows the progress
    team = MultiAgentPolicy(Path(folder))
    example = {}
    for agent, owner in team.owners.items():
        space = team.policies[owner].observation_space
        space.seed(0)
        example[agent] = np.stack([space.sample() for _ in range(2)])
    actions = team.act(example)
    outputs = [TensorSpec(action.dtype, (-1, *action.shape[1:]), agent) for agent, action in actions.items()]
    return package_model(
        folder, Schema(outputs), example, {"info": team.info, "spaces": team.spaces, **(carried or {})}
    )


def package_model(folder: str | Path, outputs: Schema, example: Any, about: Mapping[str, Any]) -> dict[str, Any]:
    """What MLflow's ``log_model`` and ``save_model`` take for a policy or a team.

    Args:
        folder: Its files.
        outputs: What comes out of the model.
        example: Of what goes in.
        about: JSON-able, for ``metadata``.
    """
    from mlflow.models import ModelSignature

    here = Path(__file__).parent
    return {
        "python_model": str(here / "served_model.py"),
        "artifacts": {"policy": str(folder)},
        "code_paths": [str(here / "bundle_reader.py")],
        "signature": ModelSignature(outputs=outputs),
        "input_example": example,
        # Without the local tag of a CPU build ("+cpu"), which no package index has.
        "pip_requirements": [f"{name}=={version(name).split('+')[0]}" for name in ("mlflow", "numpy", "torch")],
        "metadata": {"rltune": dict(about)},
    }
