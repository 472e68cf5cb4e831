"""The code of a registered MLflow model ("models from code", no pickle), which MLflow runs to serve a policy.

MLflow copies it and ``bundle_reader.py`` into the model, where it imports neither rltune nor ray. ``mlflow_model`` says
what a model is made of. Runs in whatever process loads the model.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import mlflow.models
import numpy as np
from mlflow.exceptions import MlflowException
from mlflow.pyfunc import PythonModel

STATE = ("state", "episode_start", "action_mask")
"""The keys beside the observations, for policies with memory, and for those that were trained with an action mask."""


def _load_reader() -> ModuleType:
    """Import the bundle_reader.py that is packaged with this model, without registering it in ``sys.modules``.

    Two models of different versions in one process must not share the first one's reader, as an import would.
    """
    folder = Path(__file__).resolve().parent
    path = next(p for p in (folder / "code" / "bundle_reader.py", folder / "bundle_reader.py") if p.is_file())
    spec = importlib.util.spec_from_file_location("rltune_bundle_reader", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def _refuse_by_mlflow(allowed: str) -> Iterator[None]:
    """Turn errors about invalid observations into MLflow's own error, for which its server responds with status 400."""
    try:
        yield
    except (ValueError, TypeError, KeyError) as error:
        problem = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise MlflowException.invalid_parameter_value(
            f"{problem}\n  allowed: {allowed}\n  try:     the model's input example"
        ) from error


def _describe_space(space: dict[str, Any]) -> str:
    """Describe the allowed observations for an error message."""
    if space["type"] == "Discrete":
        return f"whole numbers from {space['start']} to {space['start'] + space['n'] - 1}"
    if space["type"] != "Box":
        return f"observations of a {space['type']}, with one more axis in front of each part"
    return f"finite numbers of shape {tuple(space['shape'])}, or (n, ...), from {space['low']} to {space['high']}"


def act(policy: Any, model_input: Any, deterministic: bool | None = None, agent: str = "") -> Any:
    """Choose actions for observations, or for a dict with the key ``obs``; a recurrent policy adds its state.

    Args:
        policy: The policy of one agent.
        model_input: As for `PolicyModel.predict`.
        deterministic: Whether to choose the best action or to sample; None: as the policy acts.
        agent: The agent's name for the error, if there are several.

    Raises:
        MlflowException: They are no observations of this policy.
    """
    space = policy.spaces["observation"]
    with _refuse_by_mlflow(f"{agent and f'for {agent} '}{_describe_space(space)}"):
        inputs = model_input if _has_key(space, model_input) else {"obs": model_input}
        obs = _read_observations(policy, inputs["obs"])
        policy.check_range(obs)
        actions, state = policy.predict(
            obs, inputs.get("state"), inputs.get("episode_start"), deterministic, None, _read_mask(policy, inputs)
        )
        if policy.memory_size:
            return {"actions": actions, "state": state}
        return actions if policy.actions.is_nested else np.asarray(actions)


def _read_mask(policy: Any, inputs: Mapping[str, Any]) -> Any:
    """Return the masks of a batch; one mask is a batch of one."""
    mask = inputs.get("action_mask")
    return None if mask is None else np.atleast_2d(np.asarray(policy.actions.flatten_mask(mask)))


def _has_key(space: dict[str, Any], model_input: Any) -> bool:
    """Return whether a dict has the observations under the key ``obs``, and is none itself."""
    if not isinstance(model_input, dict) or space["type"] not in ("Dict", "Tuple"):
        return isinstance(model_input, dict)
    if not set(model_input) <= {"obs", *STATE}:
        return False
    keys = {key for key, _ in space["spaces"]} if space["type"] == "Dict" else set()
    inner = model_input.get("obs")  # An environment may have a part of this name.
    return not keys <= set(model_input) or (isinstance(inner, Mapping) and keys <= set(inner))


def _read_observations(policy: Any, given: Any) -> Any:
    """Return a batch of observations, of those that came in as arrays, lists, a data frame or leaves by name."""
    leaf = policy.layout.leaves[0]
    if leaf.path:
        named = policy.layout.read_named(given) if isinstance(given, Mapping) else None
        obs = given if named is None else named
        return policy.stack([obs]) if policy.layout.is_single(obs) else obs
    obs = np.asarray(given)
    if obs.shape == leaf.shape:
        obs = obs[None]
    if obs.ndim == 2 and obs.shape[1] == np.prod(leaf.shape, dtype=int):
        # A data frame has only flat rows, so each row is reshaped to the observation space.
        obs = obs.reshape(-1, *leaf.shape)
    return obs


def act_together(
    policies: Mapping[str, Any], model_input: Mapping[str, Any], deterministic: bool | None = None
) -> dict[str, Any]:
    """Choose actions for a mapping from agents to observations.

    Args:
        policies: The policy of each agent.
        model_input: Observations by agent, of all agents or some.
        deterministic: As for `act`.

    Raises:
        MlflowException: There is no such agent, or they are no observations of its policy.
    """
    with _refuse_by_mlflow(f"observations by agent, of {', '.join(policies)}"):
        acting = {agent: policies[agent] for agent in model_input}
    return {agent: act(policy, model_input[agent], deterministic, agent) for agent, policy in acting.items()}


def load_model(folder: Path) -> Callable[..., Any]:
    """Load the packaged policy, and return the function that maps a model's input to actions; see `act`.

    Args:
        folder: A bundle, or the policies of several agents as `rltune.policies.bundle_writer` writes them.
    """
    reader = _load_reader()
    owners: dict[str, str] = reader.read_owners(folder)
    if not owners:
        return partial(act, reader.BundlePolicy.load(folder))
    policies = {name: reader.BundlePolicy.load(folder / reader.POLICIES / name) for name in set(owners.values())}
    return partial(act_together, {agent: policies[owner] for agent, owner in owners.items()})


class PolicyModel(PythonModel):
    """The MLflow model of a policy: maps observations to actions, and keeps no state between calls."""

    def load_context(self, context: Any) -> None:
        """Load the policy from the model's artifacts."""
        self._act = load_model(Path(context.artifacts["policy"]))

    # The type hint names only np.ndarray, because MLflow (3.17) prints a red warning for no hint, for dicts and for
    # Any.
    def predict(self, context: Any, model_input: np.ndarray, params: dict[str, Any] | None = None) -> Any:
        """Choose actions for a batch of observations, in the policy's own way of acting.

        Args:
            model_input: Observations (n, ...) as an array or nested lists, a Dict or Tuple as the environment has it or
                as a dict of its parts by name, such as ``robot.camera``; the same under the key ``obs``,
                or a data frame with one row an observation and one column a feature. One observation is a
                batch of one. For a recurrent policy also ``state`` (n, memory_size), as the last call returned it,
                and ``episode_start`` (n): where it is true, or without a state, an episode begins. For a policy
                trained with an action mask beside the observations also ``action_mask`` (n, flags).
                Of several agents, a dict of observations by agent, any of them.
            params: ``deterministic`` for the other way of acting.

        Raises:
            MlflowException: What came in is no observation: text, NaN, infinite numbers, another shape, values that
                a discrete space does not have, or numbers far outside of a Box.

        Returns:
            Actions (n, ...); of a recurrent policy ``actions`` and the ``state`` for the next call, by these names;
            of several agents a dict by agent.
        """
        return self._act(model_input, (params or {}).get("deterministic"))


mlflow.models.set_model(PolicyModel())
