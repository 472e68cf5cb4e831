"""What all contenders of ``benchmarks/sweep.py`` are given: PPO's settings, space and first trial, read from conf/.

Runs in the peers' environment too, so that it imports nothing of rltune.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import yaml

CONF = Path(__file__).resolve().parent.parent / "conf"


def read(*path: str) -> Any:
    """Read a file of conf/."""
    return _read_numbers(yaml.safe_load((CONF / "/".join(path)).read_text()))


def _read_numbers(value: Any) -> Any:
    """Make a number of ``1.0e6``, which is one to Hydra, and a string to YAML 1.1, which wants ``1.0e+6``."""
    if isinstance(value, dict):
        return {key: _read_numbers(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_read_numbers(one) for one in value]
    return float(value) if isinstance(value, str) and re.fullmatch(r"-?[\d.]+e\d+", value) else value


ALGO: dict[str, Any] = read("algo", "ppo.yaml")
SPACE: dict[str, list[Any]] = {
    name: form for name, form in read("space", "ppo.yaml").items() if name in ALGO["training"]
}
"""What all of them can search: not ``normalise``, which is rltune's own."""
RULE: dict[str, Any] = read("scheduler", "asha.yaml")["args"]
STARTUP: int = read("searcher", "tpe.yaml")["args"]["n_startup_trials"]


def suggest(trial: Any) -> dict[str, Any]:
    """Draw one configuration of the space with an Optuna trial; return it by RLlib's names."""
    drawn = {}
    for name, (kind, *args) in SPACE.items():
        if kind == "choice":
            drawn[name] = trial.suggest_categorical(name, args)
        elif kind == "pow2":
            drawn[name] = 2 ** trial.suggest_int(f"log2_{name}", *(int(math.log2(end)) for end in args))
        elif kind == "one_minus_loguniform":
            drawn[name] = 1 - trial.suggest_float(f"one_minus_{name}", *args, log=True)
        else:
            drawn[name] = trial.suggest_float(name, *args, log={"uniform": False, "loguniform": True}[kind])
    return drawn


def first_trial() -> dict[str, Any]:
    """Return the algorithm file's own values, with which our sweep begins, by the names that `suggest` draws.

    One that lies outside its range, such as an entropy coefficient of zero in a logarithmic one, is left to be drawn.
    """
    point: dict[str, Any] = {}
    for name, (kind, *args) in SPACE.items():
        value = ALGO["training"][name]
        if kind == "pow2":
            point[f"log2_{name}"] = int(math.log2(value))
        elif kind == "one_minus_loguniform":
            point[f"one_minus_{name}"] = 1 - value
        elif kind == "choice" or min(args) <= value <= max(args):
            point[name] = value
    return point
