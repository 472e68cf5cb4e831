"""List modules to import in the background, before they are needed.

They are named by strings, because this module must not import them. The driver never imports the modules of a trial,
but passes their names to the fork server and to Ray. It imports the modules for the end of a sweep while trials run,
and not before the first report, because the first trials need the CPU to start. Runs in the driver.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Callable

LOADED_BEFORE_FORK = (
    *("ray.rllib.connectors.module_to_env", "ray.rllib.core.models.torch.encoder", "ray.rllib.core.models.torch.heads"),
    *("ray.rllib.core.models.torch.primitives", "ray.rllib.utils.lambda_defaultdict", "rltune.engine.sampling.remote"),
    *("rltune.envs.atari", "rltune.envs.restarts"),
    "rltune.compat.patching:read_versions",
    "rltune.engine.kernels.compiler:load_compiled_kernels",
)
"""What else the fork server imports, and the functions that it calls then, so that no worker has to."""
NEEDED_AT_END = ("rltune.policies.policy", "rltune.views.plotly_figures")


def worker_imports(algorithm_class: str) -> list[str]:
    """Return the modules that a trial's process imports; unless it is forked, this takes 5 s of CPU.

    Args:
        algorithm_class: ``module:Name`` of the algorithm's configuration.
    """
    return ["rltune.trial.trainable", "rltune.trial.algorithm_runner", algorithm_class.partition(":")[0]]


class ImportAhead:
    """Imports slow modules in the driver's housekeeping loop, one module in each pass.

    Args:
        modules: The names of the modules.
        is_time: Returns whether the next module may be imported.
    """

    def __init__(self, modules: tuple[str, ...], is_time: Callable[[], bool]) -> None:
        self._modules, self._is_time = list(modules), is_time
        self._importing = threading.Lock()

    def import_next(self) -> None:
        """Import the next module, if `is_time` allows it; an ImportError is left to the code that needs the module."""
        with self._importing:
            if self._modules and self._is_time():
                with contextlib.suppress(Exception):
                    importlib.import_module(self._modules.pop(0))

    def finish(self) -> None:
        """Import no further module, and wait for the one that is being imported.

        If two threads import parts of one package, and the package imports both parts itself, then Python ends one of
        the two imports with an exception (3.11 to 3.13).
        """
        with self._importing:
            self._modules.clear()
