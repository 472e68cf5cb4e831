"""Let a stopping rule stop Tune's trials. Runs in the driver."""

from __future__ import annotations

from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler, TrialScheduler

from rltune.search.schedulers import StoppingRule
from rltune.study.checkpoints import TRIALS


class StoppingRuleScheduler(FIFOScheduler):
    """Stop in Tune what a stopping rule would stop.

    Args:
        rule: None runs every trial to its end.

    Attributes:
        stopped: The environment steps at which the rule stopped a trial, by the trial's number.
    """

    def __init__(self, rule: StoppingRule | None) -> None:
        super().__init__()
        self._rule = rule
        self.stopped: dict[int, int] = {}

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Decide after a report, as Tune asks for each that does not end its trial."""
        if result.get("kind", TRIALS) != TRIALS or result.get("between"):
            return str(TrialScheduler.CONTINUE)  # a certification's run has its whole budget; the other is no report
        number = int(result["number"])
        level = self._rule.report(number, result["env_steps"], result["objective"]) if self._rule else None
        if level is None:
            return str(TrialScheduler.CONTINUE)
        self.stopped[number] = level
        return str(TrialScheduler.STOP)

    def choose_trial_to_run(self, tune_controller: Any) -> Any:
        """Return the first trial that waits; Tune's own looks through all that ever ran, at each event (Ray 2.60)."""
        waiting = [
            trial for trial in tune_controller.get_live_trials() if trial.status in (Trial.PENDING, Trial.PAUSED)
        ]
        return min(waiting, key=_order, default=None)


def _order(trial: Any) -> tuple[bool, int]:
    """Trials before a certification's runs, each by number."""
    task = trial.config["assignment"]
    return task.get("kind", TRIALS) != TRIALS, task["number"]
