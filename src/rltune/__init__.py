"""rltune: hyperparameter sweeps for reinforcement learning.

The public face. Everything is imported when it is first used, so that ``import rltune`` costs nothing and a script
that only acts with a policy never imports Ray.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rltune.comparison import compare_sweeps
    from rltune.config import RunConfig
    from rltune.errors import RltuneError
    from rltune.exporting import export_policy
    from rltune.ledger import open_study
    from rltune.policy import Evaluation, evaluate, load_algorithm, load_policy
    from rltune.study import Study
    from rltune.sweep import resume_sweep, run_sweep
    from rltune.sweep_folder import find_sweep

_HOMES = {
    "Evaluation": "policy",
    "RltuneError": "errors",
    "RunConfig": "config",
    "Study": "study",
    "compare_sweeps": "comparison",
    "evaluate": "policy",
    "export_policy": "exporting",
    "find_sweep": "sweep_folder",
    "load_algorithm": "policy",
    "load_policy": "policy",
    "open_study": "ledger",
    "resume_sweep": "sweep",
    "run_sweep": "sweep",
}

__all__ = [
    "Evaluation",
    "RltuneError",
    "RunConfig",
    "Study",
    "compare_sweeps",
    "evaluate",
    "export_policy",
    "find_sweep",
    "load_algorithm",
    "load_policy",
    "open_study",
    "resume_sweep",
    "run_sweep",
]


def __getattr__(name: str) -> Any:
    """Import a public name from its module."""
    if name not in _HOMES:
        raise AttributeError(f"module 'rltune' has no attribute '{name}'; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(f"rltune.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """The public names, for completion."""
    return __all__
