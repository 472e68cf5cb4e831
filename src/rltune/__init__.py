"""Hyperparameter sweeps for reinforcement learning: search, certify the winner, load and use its policy.

    import rltune

    sweep = rltune.sweep("algo=ppo", "env=cartpole", budget={"trials": 8})
    sweep.best, sweep.trials, sweep.curves    # the winner; frames of trials and of their learning curves
    policy = sweep.policy()                   # later: rltune.load_policy("models:/cartpole-ppo@champion")
    action = policy.act(observation)          # one observation or a batch; no Ray is started
    rltune.evaluate(policy, episodes=100)     # the mean of fresh episodes with a 95% interval

What can be given to `sweep` is what ``rltune run --help`` lists.

    sweep(...)           search, certify and register, as the command does; check_sweep(...) only checks the request
    open_sweep(name)     a sweep that is there, ended or not: .trials, .curves, .best, .policy(), .report(), .resume()
    load_policy(uri)     a trained policy, to act with
    evaluate(policy)     play it; export_policy(policy, path) writes it as one file
    compare_sweeps(...)  sweeps side by side
    Client()             the service that `rltune serve` runs: submit, list, stop, resume, wait
    load_algorithm(uri)  RLlib's algorithm, to train on

Beneath them are run_sweep with RunConfig, and resume_sweep and open_ledger with SweepRef, which says which sweep is
meant and where it is kept. A request that cannot be carried out raises an RltuneError: what is wrong, what is allowed,
what to do.

Everything is imported when it is first used, so that ``import rltune`` costs nothing and a script that only acts with a
policy never imports Ray.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rltune.algorithms.restore import load_algorithm
    from rltune.cli.python.call import check_sweep, sweep
    from rltune.cli.python.sweep import Sweep, open_sweep
    from rltune.config.schema import RunConfig
    from rltune.driver.run import resume_sweep, run_sweep
    from rltune.errors import RltuneError
    from rltune.ledger.ledger import Ledger
    from rltune.ledger.storage import open_ledger
    from rltune.ledger.sweep_ref import SweepRef
    from rltune.policies.evaluation import evaluate
    from rltune.policies.export import export_policy
    from rltune.policies.policy import load_policy
    from rltune.policies.result import Evaluation
    from rltune.service.client import Client
    from rltune.views.comparison import compare_sweeps

__version__ = "0.1.0"

if os.path.expanduser("~") == "~":
    # No HOME, and a user without a name, as in many containers: Ray cannot be imported then. It is Debian's home of
    # users without one, and nothing is written there.
    os.environ["HOME"] = "/nonexistent"

_HOMES = {
    "Client": "service.client",
    "Evaluation": "policies.evaluation",
    "Ledger": "ledger.ledger",
    "RltuneError": "errors",
    "RunConfig": "config.schema",
    "Sweep": "cli.python.sweep",
    "SweepRef": "ledger.sweep_ref",
    "check_sweep": "cli.python.call",
    "compare_sweeps": "views.comparison",
    "evaluate": "policies.evaluation",
    "export_policy": "policies.export",
    "load_algorithm": "algorithms.restore",
    "load_policy": "policies.policy",
    "open_ledger": "ledger.storage",
    "open_sweep": "cli.python.sweep",
    "resume_sweep": "driver.run",
    "run_sweep": "driver.run",
    "sweep": "cli.python.call",
}

__all__ = [
    "Client",
    "Evaluation",
    "Ledger",
    "RltuneError",
    "RunConfig",
    "Sweep",
    "SweepRef",
    "__version__",
    "check_sweep",
    "compare_sweeps",
    "evaluate",
    "export_policy",
    "load_algorithm",
    "load_policy",
    "open_ledger",
    "open_sweep",
    "resume_sweep",
    "run_sweep",
    "sweep",
]


def __getattr__(name: str) -> Any:
    """Import a public name from its module when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module 'rltune' has no attribute '{name}'; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(f"rltune.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """List the public names, for tab completion."""
    return __all__
