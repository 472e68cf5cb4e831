"""Package a policy as an MLflow model without pickle."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from rltune.envs import actions, layout
from rltune.policies.bundle_reader import GRAPH_FILE
from rltune.policies.policy import MultiAgentPolicy, Policy, read_policy


def make_model_arguments(folder: str | Path, carried: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Make the arguments of ``mlflow.pyfunc.log_model`` and ``save_model`` that package a policy.

    The model needs no rltune. Its signature says what comes out. It leaves open what goes in, because MLflow's check of
    a tensor (3.17) would refuse float64 arrays, dicts and data frames, and the model takes them all. The input example
    and ``metadata`` show what is meant.

    Args:
        folder: A bundle, or the policies of several agents.
        carried: JSON-able facts for ``metadata``, such as the training config and the certification.
    """
    from mlflow.models import ModelSignature
    from mlflow.types import ParamSchema, ParamSpec, Schema, TensorSpec

    # MLflow's own progress bar would disturb rltune's console.
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    folder, source = Path(folder), Path(__file__).parent
    policy = read_policy(folder)
    example, outputs = _make_example(policy)
    specs = [TensorSpec(values.dtype, (-1, *values.shape[1:]), name) for name, values in outputs.items()]
    way = ParamSpec("deterministic", "boolean", policy.deterministic)
    packages = ("mlflow", "numpy", "torch", *(["onnxruntime"] if (folder / GRAPH_FILE).is_file() else []))
    return {
        "python_model": str(source / "served_model.py"),
        "artifacts": {"policy": str(folder)},
        "code_paths": [str(path) for path in (source / "bundle_reader.py", actions.__file__, layout.__file__)],
        "signature": ModelSignature(outputs=Schema(specs), params=ParamSchema([way])),
        "input_example": _spell(example),
        # A torch version such as "2.9+cpu" is not on PyPI under its local tag, so the tag is removed.
        "pip_requirements": [f"{name}=={version(name).split('+')[0]}" for name in packages],
        "metadata": {"rltune": {"info": policy.info, "spaces": policy.spaces, **(carried or {})}},
    }


def _make_example(policy: Policy | MultiAgentPolicy) -> tuple[Any, Mapping[Any, np.ndarray]]:
    """Make an example of the model's inputs and outputs by name, for MLflow's signature."""
    if isinstance(policy, MultiAgentPolicy):
        batches = {agent: _sample_batch(policy.policies[owner]) for agent, owner in policy.owners.items()}
        return {
            agent: _name_parts(policy.policies[policy.owners[agent]], batch) for agent, batch in batches.items()
        }, policy.act(batches)
    batch = _sample_batch(policy)
    example = _name_parts(policy, batch)
    mask = np.ones((2, policy.layout.mask.shape[0]), np.int8) if policy.layout.mask else None
    memory: Any = np.zeros((2, policy.memory_size), np.float32)
    if policy.extractor and policy.graph is None:  # Only the code of its extractor could act, which is not run here.
        samples = [policy.actions.unfold(policy.action_space.sample()) for _ in range(2)]
        arrays = [np.stack(leaves) for leaves in zip(*samples, strict=True)]
    else:
        chosen, memory = policy.predict(batch, action_mask=mask)
        arrays = policy.actions.unfold(chosen)
    leaves = zip(policy.actions.parts, arrays, strict=True)
    outputs: dict[Any, Any] = {f"actions.{part.name}" if part.path else None: leaf for part, leaf in leaves}
    if policy.memory_size:
        outputs = {"actions" if name is None else name: leaf for name, leaf in outputs.items()}
        inputs = {"obs": example, "state": memory} | ({"action_mask": mask} if policy.needs_mask else {})
        return inputs, {**outputs, "state": memory}
    return {"obs": example, "action_mask": mask} if policy.needs_mask else example, outputs


def _name_parts(policy: Policy, batch: Any) -> Any:
    """Return a batch with its parts by name, if it has any: MLflow takes no tuples, and those of two for parameters."""
    return policy.layout.name_leaves(batch) if policy.layout.leaves[0].path else batch


def _spell(example: Any) -> Any:
    """Return an example as MLflow takes it: an array, a dict of arrays, or a dict without any, but with lists."""
    if not isinstance(example, dict) or not any(isinstance(part, dict) for part in example.values()):
        return example
    return {
        key: {name: array.tolist() for name, array in part.items()} if isinstance(part, dict) else part.tolist()
        for key, part in example.items()
    }


def _sample_batch(policy: Policy) -> Any:
    space = policy.observation_space
    space.seed(0)
    batch, mask = policy.stack([space.sample() for _ in range(2)]), policy.layout.mask
    if mask and mask.path:  # A mask that is drawn may forbid every action.
        leaves = policy.layout.name_leaves(batch)
        batch = policy.layout.read_named(leaves | {mask.name: np.ones_like(leaves[mask.name])})
    return batch
