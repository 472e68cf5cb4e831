"""Read private fields of RLlib's objects for which RLlib has no public access.

Each function says what it does where a field is gone. Ray is not imported here. Tested with Ray 2.60.
"""

from __future__ import annotations

from typing import Any

# Methods that compute a module's outputs. If a user's module overrides one, its networks alone do not determine them.
FORWARD_METHODS = ("_forward", "_forward_inference", "_qf_forward_helper", "compute_q_values")


def read_part(module: Any, name: str) -> Any:
    """Return a network of an RLModule by its attribute's name; BC's module has an underscore before it (Ray 2.60).

    Raises:
        ValueError: It has neither name: its policy is then played by RLlib's own parts.
    """
    part = getattr(module, name, None) or getattr(module, f"_{name}", None)
    if part is None:
        raise ValueError(f"a bundle cannot express this version of {type(module).__name__}: it has no {name}")
    return part


def read_learner_pipeline(learner: Any) -> Any:
    """Return the connector pipeline that makes a learner's batches; None if the learner gets ready batches.

    Raises:
        AttributeError: RLlib keeps them elsewhere: A2C must not train on advantages that PPO has standardised.
    """
    return learner._learner_connector


def list_remote_runners(group: Any) -> list[Any]:
    """Return the env runner actors of an `EnvRunnerGroup`, to kill those that hang; RLlib would wait forever.

    Returns:
        None of them where RLlib keeps them elsewhere: a hung one is then waited for.
    """
    manager: Any = getattr(group, "_worker_manager", None)
    return list(manager.actors().values()) if hasattr(manager, "actors") else []


def list_connectors(config: Any) -> dict[str, Any]:
    """Return the functions that make a config's custom connectors, by the names of the arguments that set them.

    Returns:
        None of them where RLlib keeps them elsewhere: a bundle is then written that leaves them out.
    """
    names = ("env_to_module_connector", "module_to_env_connector")
    made = {name: getattr(config, f"_{name}", None) for name in names}
    return {name: make for name, make in made.items() if make is not None}


def is_learning(connector: Any) -> bool:
    """Return whether a filter of observations takes them into its moments, see `freeze_filters`."""
    return bool(connector._update_stats)


def freeze_filters(pipeline: Any) -> None:
    """Freeze the running statistics of a connector pipeline, so that evaluation does not change them.

    `MeanStdFilter` takes ``update_stats`` when it is made, but one from a checkpoint is as it was in training.
    Where the field is gone the statistics of a played policy go on changing, in memory alone.
    """
    for connector in pipeline.connectors:
        if hasattr(connector, "_update_stats"):
            connector._update_stats = False
