"""rltune: hyperparameter sweeps for reinforcement learning.

    sweep(...)          search, certify and register: rltune.sweep("algo=ppo", "env=cartpole", budget={"trials": 8})
    open_sweep(name)    a sweep that is there: .trials and .curves as frames, .best, .policy(), .report(), .resume()
    load_policy(uri)    a trained policy, to act with; evaluate(policy) plays it, export_policy(policy, path) writes it
    compare_sweeps(...) sweeps side by side
    load_algorithm(uri) RLlib's algorithm, to train on

Beneath: find_sweep, open_ledger, run_sweep and resume_sweep, with RunConfig. An error is an RltuneError.

Everything is imported when it is first used, so that ``import rltune`` costs nothing and a script that only acts with a
policy never imports Ray.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rltune.algorithms.restore import load_algorithm
    from rltune.config.schema import RunConfig
    from rltune.errors import RltuneError
    from rltune.interactive.call import sweep
    from rltune.interactive.sweep import Sweep, open_sweep
    from rltune.pipeline.run import resume_sweep, run_sweep
    from rltune.policies.evaluation import Evaluation, evaluate
    from rltune.policies.export import export_policy
    from rltune.policies.policy import load_policy
    from rltune.reporting.comparison import compare_sweeps
    from rltune.study.ledger import Ledger
    from rltune.study.storage import open_ledger
    from rltune.study.sweep_folder import find_sweep

__version__ = "0.1.0"

_HOMES = {
    "Evaluation": "policies.evaluation",
    "Ledger": "study.ledger",
    "RltuneError": "errors",
    "RunConfig": "config.schema",
    "Sweep": "interactive.sweep",
    "compare_sweeps": "reporting.comparison",
    "evaluate": "policies.evaluation",
    "export_policy": "policies.export",
    "find_sweep": "study.sweep_folder",
    "load_algorithm": "algorithms.restore",
    "load_policy": "policies.policy",
    "open_ledger": "study.storage",
    "open_sweep": "interactive.sweep",
    "resume_sweep": "pipeline.run",
    "run_sweep": "pipeline.run",
    "sweep": "interactive.call",
}

__all__ = [
    "Evaluation",
    "Ledger",
    "RltuneError",
    "RunConfig",
    "Sweep",
    "__version__",
    "compare_sweeps",
    "evaluate",
    "export_policy",
    "find_sweep",
    "load_algorithm",
    "load_policy",
    "open_ledger",
    "open_sweep",
    "resume_sweep",
    "run_sweep",
    "sweep",
]


def __getattr__(name: str) -> Any:
    """Import a public name from its module."""
    if name not in _HOMES:
        raise AttributeError(f"module 'rltune' has no attribute '{name}'; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(f"rltune.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """The public names, for completion."""
    return __all__
