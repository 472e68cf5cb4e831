"""Lets Tune stop what the rungs would stop. Runs in the driver."""

from __future__ import annotations

from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler, TrialScheduler

from rltune.search.successive_halving import SuccessiveHalving
from rltune.study.checkpoints import TRIALS


class StoppingRuleScheduler(FIFOScheduler):
    """Lets Tune stop what `Rungs` would stop.

    Args:
        rungs: None runs every trial to its end.
    """

    def __init__(self, rungs: SuccessiveHalving | None) -> None:
        super().__init__()
        self._rungs = rungs
        self.stopped: dict[int, int] = {}

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Tune's question after each report that does not end its trial."""
        if result.get("kind", TRIALS) != TRIALS or result.get("between"):
            return str(TrialScheduler.CONTINUE)  # a certification's run has its whole budget; the other is no report
        number = int(result["number"])
        level = self._rungs.report(number, result["env_steps"], result["objective"]) if self._rungs else None
        if level is None:
            return str(TrialScheduler.CONTINUE)
        self.stopped[number] = level
        return str(TrialScheduler.STOP)

    def choose_trial_to_run(self, tune_controller: Any) -> Any:
        """The first trial that waits; Tune's own would look through all that ever ran, at each event (Ray 2.60)."""
        waiting = [
            trial for trial in tune_controller.get_live_trials() if trial.status in (Trial.PENDING, Trial.PAUSED)
        ]
        return min(waiting, key=_order, default=None)


def _order(trial: Any) -> tuple[bool, int]:
    """Trials before a certification's runs, each by number."""
    task = trial.config["assignment"]
    return task.get("kind", TRIALS) != TRIALS, task["number"]
