"""Apply a stopping rule, such as successive halving, to Tune's trials. Runs in the driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler, TrialScheduler

from rltune.records import TRIALS
from rltune.search.schedulers import Stop, StoppingRule
from rltune.trial.metrics import is_report, make_report


class StoppingRuleScheduler(FIFOScheduler):
    """Tune scheduler that stops trials by a stopping rule.

    Args:
        rule: Decides about the search's trials. A certification's runs always have their whole budget.
    """

    def __init__(self, rule: StoppingRule) -> None:
        super().__init__()
        self._rule = rule
        self._reasons: dict[int, str] = {}
        self._waiting: list[Any] = []

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """Add a trial to those that wait to be started."""
        self._waiting.append(trial)

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Ask the stopping rule after a report whether the trial goes on; Tune skips the last report of a trial."""
        if _is_judged(result):
            report = make_report(result)
            decision = self._rule.decide(report)
            if isinstance(decision, Stop):
                self._reasons[report.number] = decision.reason
                return str(TrialScheduler.STOP)
        return str(TrialScheduler.CONTINUE)

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        """Pass a trial's last report to the stopping rule, as a resume does when it replays the ledger."""
        if _is_judged(result) and int(result["number"]) not in self._reasons:
            self._rule.decide(make_report(result))

    def pop_reason(self, number: int) -> str | None:
        """Return and forget the reason why the rule has stopped a trial; None if it has not."""
        return self._reasons.pop(number, None)

    def choose_trial_to_run(self, tune_controller: Any) -> Any:
        """Return the first waiting trial; Tune's own scheduler searches all trials at each event (Ray 2.60)."""
        self._waiting = [trial for trial in self._waiting if trial.status == Trial.PENDING]
        return min(self._waiting, key=_order, default=None)


def _order(trial: Any) -> tuple[bool, int]:
    """Return a sort key that starts the search's trials before certification runs, each by number."""
    task = trial.config["assignment"]
    return task.get("kind", TRIALS) != TRIALS, task["number"]


def _is_judged(result: Mapping[str, Any]) -> bool:
    return result.get("kind") == TRIALS and is_report(result)
