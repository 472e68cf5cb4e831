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
from rltune.envs.actions import ActionParts
from rltune.envs.facts import EnvFacts, describe_space
from rltune.envs.layout import FIRST, Layout, Leaf
from rltune.envs.observations import find_layout, make_layout
from rltune.envs.pettingzoo import assign_policies, describe_agent, policy_spaces
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
    layout: Layout | None = None,
    actions: Literal["normalize", "clip"] = "normalize",
) -> None:
    """Write the inference network of an RLlib module as a policy bundle.

    Args:
        module: A live RLModule of an algorithm with a ``network`` in `rltune.config.capabilities`; only read.
        folder: Made if it is missing; its two files are replaced.
        info: Where the policy came from; JSON-able. Non-finite numbers become null, except in its ``env``.
        observation_stats: ``mean``, ``var``, ``clip`` (None: no clipping) and optionally ``eps`` of an
            observation filter: ``clip((x - mean) / (sqrt(var) + eps))``. None: no filter.
        observation_space: The environment's own space, of which the module sees rows. None: the module's.
        action_space: The environment's own space, from which the module's was made. None: the module's.
        layout: The layout of the observations. None: that which follows from their space.
        actions: RLlib's ``normalize_actions`` (map [-1, 1] to the bounds), or ``clip_actions``.

    Raises:
        ValueError: The module, a layer or a space cannot be expressed; names its type.
    """
    module = module.unwrapped()  # With several learners, torch's DistributedDataParallel wraps the module.
    _check_forward_pass(type(module))
    seen = module.observation_space if observation_space is None else observation_space
    layout = make_layout(seen) if layout is None else layout
    spec, weights = _describe_network(module, layout)
    if observation_stats is not None:
        spec["observation_filter"] = {
            "clip": observation_stats.get("clip"),
            "eps": float(observation_stats.get("eps", 1e-6)),
        }
        for key in ("mean", "var"):
            weights[f"observation.{key}"] = np.asarray(observation_stats[key], np.float64).reshape(-1)
    spec |= {
        "format": FORMAT,
        # An argument of the environment may be infinite, and is needed to make it again.
        "info": {key: _make_jsonable(value, has_infinite=key == "env") for key, value in info.items()},
        "layout": layout.to_dict(),
        "observation_space": describe_space(seen),
        "action_space": describe_space(module.action_space if action_space is None else action_space),
        "actions": actions,
    }
    if not ActionParts(spec["action_space"]).is_identity:  # RLlib's setting is about what it sends to `NetworkAction`.
        spec["actions"] = "normalize"
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
            layout=find_layout(observation_space, describe_agent(spec, observation_space, action_space)),
            actions=actions,
        )
    _write_description({"format": FORMAT, "owners": owners}, folder)


def _write_description(description: dict[str, Any], folder: Path) -> None:
    """Write ``policy.json`` after all other files, so that its presence shows that the bundle is complete."""
    (folder / "policy.json").write_text(json.dumps(description, indent=1), encoding="utf-8")


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
        if cls.__module__ == "rltune.compat.masked_modules":  # What it adds follows from the layout.
            continue
        changed = [name for name in FORWARD_METHODS if name in vars(cls)]
        if changed:
            raise ValueError(f"{cls.__name__} overrides {', '.join(changed)}: a bundle cannot express its forward pass")


def _describe_network(module: Any, layout: Layout) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
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
    if type(parts["encoder"]).__name__ == "RowEncoder":
        parts |= {f"image{index}": net for index, net in enumerate(parts["encoder"].images)}
        parts["encoder"] = parts["encoder"].perceptron
    for part, container in parts.items():
        flat = _flatten(container)
        if part.startswith("image"):
            flat = [*_lay_out(layout.images[int(part.removeprefix("image"))]), *flat, nn.Flatten()]
        layers[part] = [_describe_layer(layer, f"{part}.{i}", weights) for i, layer in enumerate(flat)]
    log_std = getattr(parts["head"], "log_std", None)
    if log_std is not None:
        weights["log_std"] = log_std.detach().cpu().numpy().copy()
    return {"layers": layers, "head": head, **({"extractor": extractor} if extractor else {})}, weights


def _lay_out(leaf: Leaf) -> list[Any]:
    """List the layers that make an image with its channels last of a leaf's columns."""
    height, width, channels = leaf.image_shape
    if leaf.channels == FIRST:
        return [nn.Unflatten(1, (channels, height, width)), Permute([0, 2, 3, 1])]
    if leaf.num_frames > 1:
        return [nn.Unflatten(1, leaf.shape), Permute([0, 2, 3, 1, 4]), nn.Flatten(3, 4)]
    return [nn.Unflatten(1, leaf.image_shape)]


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


def _make_jsonable(value: Any, has_infinite: bool) -> Any:
    """Convert values to JSON types: arrays to lists, paths to text, infinite numbers to None unless they may stay."""
    if isinstance(value, dict):
        return {str(k): _make_jsonable(v, has_infinite) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_make_jsonable(v, has_infinite) for v in value]
    if isinstance(value, np.ndarray | np.generic):
        return _make_jsonable(value.tolist(), has_infinite)
    if isinstance(value, float) and not (has_infinite or math.isfinite(value)):
        return None
    return value if isinstance(value, str | int | float | bool | None) else str(value)
