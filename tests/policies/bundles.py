"""A bundle written by hand, without RLlib: a linear policy of two actions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from rltune.envs.layout import make_space
from rltune.envs.observations import make_layout

BOX = {
    "type": "Box",
    "shape": [4],
    "dtype": "float32",
    "low": [-4.8, "-inf", -0.42, "-inf"],
    "high": [4.8, "inf", 0.42, "inf"],
}
IMAGE = {"type": "Box", "shape": [4], "dtype": "uint8", "low": 0, "high": 255}
DISCRETE = {"type": "Discrete", "n": 5, "start": 0}


def write_linear(folder: Path, space: dict[str, Any], env: dict[str, Any] | None = None, **more: Any) -> Path:
    """Write it; ``more`` is added to policy.json, arrays to the weights."""
    folder.mkdir(parents=True, exist_ok=True)
    layout = make_layout(make_space(space))
    inputs = layout.num_columns
    layer = {"type": "Linear", "in_features": inputs, "out_features": 2}
    arrays = {name: more.pop(name) for name in list(more) if isinstance(more[name], np.ndarray)}
    spec = {
        "format": 1,
        "info": {"algo": "ppo", "env": env or {}},
        "layers": {"encoder": [], "head": [layer]},
        "head": {"kind": "categorical", "log_std_bounds": None},
        "actions": "raw",
        "observation_space": space,
        "layout": layout.to_dict(),
        "action_space": {"type": "Discrete", "n": 2, "start": 0},
        **more,
    }
    (folder / "policy.json").write_text(json.dumps(spec))
    weights = {"head.0.weight": np.arange(2 * inputs, dtype=np.float32).reshape(2, inputs)}
    np.savez(folder / "weights.npz", **weights, **{"head.0.bias": np.zeros(2, np.float32)}, **arrays)
    return folder
