"""Say which modules are imported ahead of their use, and import them in a thread while trials run.

The names are strings, and stand here alone: who names such a module must not import it, because its import is what is
to be saved. A driver imports neither a trial's modules, which its workers need, nor before the first report those that
only a sweep's end needs. Runs in the driver.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import threading

NEEDED_AT_END = ("rltune.policies.policy", "rltune.reporting.plotly_figures")
NEEDED_BY_FOREST = ("sklearn.tree", "scipy.special")  # by the random forest, after its first trials


def worker_imports(algorithm_class: str) -> list[str]:
    """Return what a trial's process imports, which takes it 5 s of CPU unless it is forked from one that has.

    Args:
        algorithm_class: ``module:Name`` of the algorithm's configuration.
    """
    return ["rltune.trial.trainable", "rltune.trial.algorithm_runner", algorithm_class.partition(":")[0]]


@functools.cache
def begin_imports(*modules: str) -> threading.Thread:
    """Begin to import modules in a thread, once a process; skip a module that fails: whoever needs it will say why."""
    thread = threading.Thread(target=_import, args=modules, name="rltune-imports", daemon=True)
    thread.start()
    return thread


def _import(*modules: str) -> None:
    for module in modules:
        with contextlib.suppress(Exception):
            importlib.import_module(module)
