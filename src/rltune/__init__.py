"""rltune: hyperparameter sweeps for reinforcement learning.

The public face. Everything is imported when it is first used, so that ``import rltune`` costs nothing and a script
that only acts with a policy never imports Ray.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rltune.algorithms.restore import load_algorithm
    from rltune.config.schema import RunConfig
    from rltune.errors import RltuneError
    from rltune.pipeline.run import resume_sweep, run_sweep
    from rltune.policies.evaluation import Evaluation, evaluate
    from rltune.policies.export import export_policy
    from rltune.policies.policy import load_policy
    from rltune.reporting.comparison import compare_sweeps
    from rltune.study.ledger import Ledger
    from rltune.study.storage import open_ledger
    from rltune.study.sweep_folder import find_sweep

_HOMES = {
    "Evaluation": "policies.evaluation",
    "Ledger": "study.ledger",
    "RltuneError": "errors",
    "RunConfig": "config.schema",
    "compare_sweeps": "reporting.comparison",
    "evaluate": "policies.evaluation",
    "export_policy": "policies.export",
    "find_sweep": "study.sweep_folder",
    "load_algorithm": "algorithms.restore",
    "load_policy": "policies.policy",
    "open_ledger": "study.storage",
    "resume_sweep": "pipeline.run",
    "run_sweep": "pipeline.run",
}

__all__ = [
    "Evaluation",
    "Ledger",
    "RltuneError",
    "RunConfig",
    "compare_sweeps",
    "evaluate",
    "export_policy",
    "find_sweep",
    "load_algorithm",
    "load_policy",
    "open_ledger",
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
