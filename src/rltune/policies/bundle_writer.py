"""Write a policy bundle: save an RLlib module's network to files that can be read without RLlib and pickle.

A bundle is a folder with ``policy.json`` (network, spaces, pre- and post-processing, where it came from) and
``weights.npz`` (arrays). The policies of several agents are a folder with ``policy.json`` (which acts for which agent)
and a bundle for each policy. A trial's worker writes one per checkpoint, which must take a few milliseconds only.
``bundle_reader`` reads it and acts; ``uri`` finds it. RLlib's modules are walked by their attributes and class names
(ray 2.60), so that importing this file does not import ray.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete, Tuple
from torch import nn

from rltune.compat.rllib_internals import FORWARD_METHODS, read_part
from rltune.config.capabilities import list_algos, network_of
from rltune.envs.facts import EnvFacts
from rltune.envs.facts import describe_space as describe_any_space
from rltune.envs.pettingzoo import assign_policies, policy_spaces
from rltune.envs.spaces import find_image_scale
from rltune.envs.spec import spec_of
from rltune.policies.bundle_reader import (
    FORMAT,
    HEADS,
    LAYERS,
    POLICIES,
    CategoricalHead,
    GaussianHead,
    PartsHead,
    Permute,
)

# Containers of RLlib that do nothing but call an inner stack of layers, and the attribute that holds the stack (2.60).
_CONTAINERS = {
    "TorchMLPEncoder": "net",
    "TorchCNNEncoder": "net",
    "TorchMLPHead": "net",
    "TorchFreeLogStdMLPHead": "net",
    "TorchMLP": "mlp",
}


def write_bundle(
    module: Any,
    folder: str | Path,
    *,
    info: dict[str, Any],
    observation_stats: dict[str, Any] | None = None,
    observation_space: Any = None,
    action_space: Any = None,
    actions: Literal["normalize", "clip"] = "normalize",
) -> None:
    """Write the inference network of an RLlib module as a policy bundle.

    Args:
        module: A live RLModule of an algorithm with a ``network`` in `rltune.config.capabilities`; only read.
        folder: Made if it is missing; its two files are replaced.
        info: Where the policy came from; JSON-able, non-finite numbers become null.
        observation_stats: ``mean``, ``var``, ``clip`` (None: no clipping) and optionally ``eps`` of an
            observation filter: ``clip((x - mean) / (sqrt(var) + eps))``. None: no filter.
        observation_space: The environment's own space, if the module sees what `rltune.envs.spaces` makes of it, such
            as one-hot vectors of a Discrete space. None: the module's.
        action_space: The environment's own space, from which the module's was made. None: the module's.
        actions: RLlib's ``normalize_actions`` (map [-1, 1] to the bounds), or ``clip_actions``.

    Raises:
        ValueError: The module, a layer or a space cannot be expressed; names its type.
    """
    module = module.unwrapped()  # With several learners, torch's DistributedDataParallel wraps the module.
    _check_forward_pass(type(module))
    spec, weights = _describe_network(module)
    seen = module.observation_space if observation_space is None else observation_space
    scale = 1.0 if observation_space is None else find_image_scale(observation_space)
    if scale != 1.0:  # The filter is free to scale images, because they are not normalised.
        observation_stats = {"mean": [0.0], "var": [scale**2], "clip": None, "eps": 0.0}
    if observation_stats is not None:
        spec["observation_filter"] = {
            "clip": observation_stats.get("clip"),
            "eps": float(observation_stats.get("eps", 1e-6)),
        }
        for key in ("mean", "var"):
            weights[f"observation.{key}"] = np.asarray(observation_stats[key], np.float64).reshape(-1)
    spec |= {
        "format": FORMAT,
        "info": _make_jsonable(info),
        "observation_space": describe_space(seen),
        "action_space": describe_any_space(module.action_space if action_space is None else action_space),
        "actions": actions,
    }
    root = Path(folder)
    root.mkdir(parents=True, exist_ok=True)
    np.savez(root / "weights.npz", **weights)  # type: ignore[arg-type]  # NumPy's stub mixes up the keywords.
    _write_description(spec, root)


def write_policies(
    modules: Mapping[str, Any],
    folder: Path,
    *,
    facts: EnvFacts,
    info: dict[str, Any],
    actions: Literal["normalize", "clip"] = "normalize",
) -> None:
    """Write the networks of a multi-agent training, each as a bundle in its own folder.

    Args:
        modules: A live RLModule for each policy.
        folder: Made if it is missing.
        facts: What is known about their environment.
        info: Where they came from; ``info["env"]`` assigns agents to policies.
        actions: As for `write_bundle`.

    Raises:
        ValueError: A module cannot be expressed.
    """
    spec = spec_of(info["env"])
    spaces = policy_spaces(spec, facts.spaces_by_agent)
    owners = assign_policies(spec.policies or "", list(facts.agents))
    for name, module in modules.items():
        observation_space, action_space = spaces[name]
        write_bundle(
            module,
            folder / POLICIES / name,
            info=info,
            observation_space=observation_space,
            action_space=action_space,
            actions=actions,
        )
    _write_description({"format": FORMAT, "owners": owners}, folder)


def _write_description(description: dict[str, Any], folder: Path) -> None:
    """Write ``policy.json`` after all other files, so that its presence shows that the bundle is complete."""
    (folder / "policy.json").write_text(json.dumps(description, indent=1, allow_nan=False), encoding="utf-8")


def read_filter_stats(connector: Any) -> dict[str, Any] | None:
    """Read the observation statistics from RLlib's MeanStdFilter or a pipeline that contains it, else None."""
    for piece in getattr(connector, "connectors", [connector]):
        if "MeanStdFilter" in {c.__name__ for c in type(piece).__mro__} and None in (state := piece.get_state()):
            from ray.rllib.utils.filter import RunningStat

            (held,) = state[None]["running_stats"]
            stats = RunningStat.from_state(held)
            return {"mean": stats.mean, "var": stats.var, "clip": piece.clip_by_value}
    return None


def _check_forward_pass(module_class: type) -> None:
    """Refuse a module class that overrides RLlib's forward pass, because a bundle cannot express it.

    Raises:
        ValueError: It does; the error names the methods.
    """
    for cls in module_class.__mro__:
        if cls.__module__.startswith("ray.rllib."):
            break
        changed = [name for name in FORWARD_METHODS if name in vars(cls)]
        if changed:
            raise ValueError(f"{cls.__name__} overrides {', '.join(changed)}: a bundle cannot express its forward pass")


def _describe_network(module: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Describe the network for ``policy.json``, as RLlib's ``forward_inference`` and action distribution use it.

    Returns:
        The entry in policy.json, and the arrays by name.
    """
    network = network_of(type(module))
    if network is None:
        algos = list_algos(lambda row: row.network, "and")
        raise ValueError(f"a bundle cannot express the module {type(module).__name__}: known are those of {algos}")
    encoder = _select_actors_encoder(read_part(module, network.encoder))
    parts = {"encoder": encoder, "head": read_part(module, network.head)}
    extractor, weights = None, dict[str, np.ndarray]()
    head = _describe_head(network.kind, module, parts["head"])
    if head.get("dueling"):
        parts["value"] = getattr(module, network.value)
    layers: dict[str, Any] = {}
    if type(encoder).__name__ == "TorchLSTMEncoder":
        parts |= {"encoder": encoder.tokenizer, "memory": encoder.lstm}
    if type(own := parts["encoder"]).__name__ == "ExtractorEncoder":
        extractor = own.spec.to_dict()
        parts["encoder"] = own.perceptron or nn.Sequential()
        state = own.extractor.state_dict(prefix="extractor.")
        weights |= {name: value.detach().cpu().numpy().copy() for name, value in state.items()}
    for part, container in parts.items():
        flat = _flatten(container)
        if any(isinstance(layer, Permute) for layer in flat):
            flat = [nn.Unflatten(1, tuple(module.observation_space.shape)), *flat]
        layers[part] = [_describe_layer(layer, f"{part}.{i}", weights) for i, layer in enumerate(flat)]
    log_std = getattr(parts["head"], "log_std", None)
    if log_std is not None:
        weights["log_std"] = log_std.detach().cpu().numpy().copy()
    return {"layers": layers, "head": head, **({"extractor": extractor} if extractor else {})}, weights


def _select_actors_encoder(encoder: Any) -> Any:
    """Return the part of RLlib's encoder that the policy uses; actor and critic may share one or have one each."""
    for name in ("encoder", "actor_encoder"):
        if hasattr(encoder, name):
            return getattr(encoder, name)
    return encoder


def _describe_head(kind: str, module: Any, layers: Any) -> dict[str, Any]:
    """Describe the `Head` for RLlib's output layers; with choices, those of a Gaussian are logits."""
    space = module.action_space
    if isinstance(space, Discrete):
        return (HEADS[kind] if HEADS[kind].is_discrete else CategoricalHead).describe(module, layers)
    choices = [part for part in (space if isinstance(space, Tuple) else [space]) if isinstance(part, MultiDiscrete)]
    if choices and kind == GaussianHead.kind:
        return PartsHead.describe(module, layers, [size for part in choices for size in part.nvec.tolist()])
    if not isinstance(space, Box) or np.issubdtype(space.dtype, np.integer):
        raise ValueError(f"a bundle cannot express the action space {space}")
    return HEADS[kind].describe(module, layers)


def _flatten(container: Any) -> list[Any]:
    """Flatten one of RLlib's nested network containers into a list of torch layers."""
    name = type(container).__name__
    if name in LAYERS or _is_one_cell(container):
        return [container]
    if isinstance(container, nn.Sequential):
        return [layer for child in container for layer in _flatten(child)]
    # TorchCNN gets channels-last images and permutes them itself (ray 2.60), so both permutations become layers.
    if name == "TorchCNN":
        return [Permute([0, 3, 1, 2]), *_flatten(container.cnn), Permute([0, 2, 3, 1])]
    if name in _CONTAINERS:
        return _flatten(getattr(container, _CONTAINERS[name]))
    raise ValueError(f"a bundle cannot express the layer {name}: known are {', '.join(sorted(LAYERS))}")


def _is_one_cell(layer: Any) -> bool:
    """Return whether a layer is an LSTM with a single layer and direction, which can run step by step as a cell."""
    return isinstance(layer, nn.LSTM) and (layer.num_layers, layer.bidirectional, layer.proj_size) == (1, False, 0)


def _describe_layer(layer: nn.Module, prefix: str, weights: dict[str, np.ndarray]) -> dict[str, Any]:
    """Describe one layer for ``policy.json``, and add its arrays to ``weights`` under the prefix."""
    name = "LSTMCell" if isinstance(layer, nn.LSTM) else type(layer).__name__
    entry: dict[str, Any] = {"type": name} | {key: getattr(layer, key) for key in LAYERS[name]}
    if name in ("Linear", "Conv2d", "LSTMCell"):
        entry["bias"] = bool(layer.bias) if isinstance(layer, nn.LSTM) else layer.bias is not None
    for key, value in layer.state_dict().items():
        weights[f"{prefix}.{key.removesuffix('_l0')}"] = value.detach().cpu().numpy()
    return entry


def describe_space(space: Any) -> dict[str, Any]:
    """Describe a Box or Discrete space as JSON values; infinite bounds become ``"inf"`` and ``"-inf"``."""
    if isinstance(space, Discrete):
        other = {} if space.dtype == np.int64 else {"dtype": str(np.dtype(space.dtype))}
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start), **other}
    if not isinstance(space, Box):
        raise ValueError(f"a bundle cannot express the space {type(space).__name__}: known are Box and Discrete")
    bounds = {key: _describe_bound(getattr(space, key)) for key in ("low", "high")}
    return {"type": "Box", "shape": list(space.shape), "dtype": str(np.dtype(space.dtype))} | bounds


def _describe_bound(values: np.ndarray) -> float | str | list[float | str]:
    """Describe a Box's bound: one number if all elements are equal, as in images, else a list."""
    flat = [x if math.isfinite(x) else str(x) for x in np.asarray(values, np.float64).reshape(-1).tolist()]
    return flat[0] if flat and all(x == flat[0] for x in flat) else flat


def _make_jsonable(value: Any) -> Any:
    """Convert values to JSON types: NumPy arrays to lists, paths to text, non-finite numbers to None."""
    if isinstance(value, dict):
        return {str(k): _make_jsonable(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_make_jsonable(v) for v in value]
    if isinstance(value, np.ndarray | np.generic):
        return _make_jsonable(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | bool | None) else str(value)
