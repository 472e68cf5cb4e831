"""Lets Tune stop what the rungs would stop. Runs in the driver."""

from __future__ import annotations

from typing import Any

from ray.tune.schedulers import FIFOScheduler, TrialScheduler

from rltune.rungs import Rungs


class AshaScheduler(FIFOScheduler):
    """Lets Tune stop what `Rungs` would stop.

    Args:
        rungs: None runs every trial to its end.
    """

    def __init__(self, rungs: Rungs | None) -> None:
        super().__init__()
        self._rungs = rungs
        self.stopped: dict[int, int] = {}

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Tune's question after each report that does not end its trial."""
        number = int(result["number"])
        level = self._rungs.report(number, result["env_steps"], result["objective"]) if self._rungs else None
        if level is None:
            return str(TrialScheduler.CONTINUE)
        self.stopped[number] = level
        return str(TrialScheduler.STOP)
