"""List the modules that are imported before they are needed.

They are named by strings, because this module must not import them. The driver never imports the modules of a trial,
which only the workers need. It imports the modules for the end of a sweep while trials run, but not before the first
report, because the first trials need the CPU to start. Runs in the driver.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable

NEEDED_AT_END = ("rltune.policies.policy", "rltune.views.plotly_figures")


def worker_imports(algorithm_class: str) -> list[str]:
    """Return the modules that a trial's process needs; importing them takes 5 s of CPU, if it was not forked.

    Args:
        algorithm_class: ``module:Name`` of the algorithm's configuration.
    """
    return ["rltune.trial.trainable", "rltune.trial.algorithm_runner", algorithm_class.partition(":")[0]]


class ImportAhead:
    """Imports modules one at a time, so that the housekeeping is never delayed for long.

    Args:
        modules: The names of the modules.
        is_time: Returns whether the next module may be imported.
    """

    def __init__(self, modules: tuple[str, ...], is_time: Callable[[], bool]) -> None:
        self._modules, self._is_time = list(modules), is_time

    def import_next(self) -> None:
        """Import the next module if it is time. If a module cannot be imported, then its user gets the error."""
        if self._modules and self._is_time():
            with contextlib.suppress(Exception):
                importlib.import_module(self._modules.pop(0))
