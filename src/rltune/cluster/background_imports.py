"""Name the modules that are imported ahead of their use.

The modules are named by strings, because importing them here is what is to be avoided. A driver never imports the
modules of a trial, which its workers need. It imports what only the end of a sweep needs while trials run, but not
before the first report: the first trials need the CPU to start. Runs in the driver.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable

NEEDED_AT_END = ("rltune.policies.policy", "rltune.views.plotly_figures")


def worker_imports(algorithm_class: str) -> list[str]:
    """Return what a trial's process imports, which takes it 5 s of CPU unless it is forked from one that has.

    Args:
        algorithm_class: ``module:Name`` of the algorithm's configuration.
    """
    return ["rltune.trial.trainable", "rltune.trial.algorithm_runner", algorithm_class.partition(":")[0]]


class ImportAhead:
    """Imports modules one at a time, so that nothing else waits for all of them.

    Args:
        modules: Their names.
        is_time: Returns whether the next one may be imported.
    """

    def __init__(self, modules: tuple[str, ...], is_time: Callable[[], bool]) -> None:
        self._modules, self._is_time = list(modules), is_time

    def import_next(self) -> None:
        """Import the next module, if it is time; a module that fails raises the error where it is used."""
        if self._modules and self._is_time():
            with contextlib.suppress(Exception):
                importlib.import_module(self._modules.pop(0))
