"""The median stopping rule: stop a trial whose best score is below the median of the other trials' averages.

The rule is plain arithmetic over reports.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from rltune.records import Report
from rltune.search.schedulers import GO_ON, Decision, Stop, StoppingRule, make_argument_error, to_number


class MedianStopping(StoppingRule):
    """Stop trials by the median stopping rule (Golovin et al. 2017, Google Vizier, section 3.2.2).

    A trial stops if its best score so far is strictly below the median of the other trials' running averages. A
    running average is the mean of a trial's scores up to the same step. Trials whose first episode ended later than
    this trial's are left out: their averages lack the low scores of early training, so they would be too high.

    Args:
        env_steps: A trial's whole budget, in environment steps.
        grace_fraction: No trial is stopped before this fraction of the budget.
        min_trials: The number of these other trials that must have reached the same step before a trial is stopped.

    Raises:
        ConfigError: An argument is out of range.
    """

    def __init__(self, env_steps: int, grace_fraction: float, min_trials: int) -> None:
        if not 0 <= to_number(grace_fraction) <= 1:
            raise make_argument_error("grace_fraction", grace_fraction, "at least 0, at most 1", 0.2)
        if not to_number(min_trials) >= 1:
            raise make_argument_error("min_trials", min_trials, "at least 1", 5)
        self.min_trials = min_trials
        self._first, self._budget = env_steps * grace_fraction - 1e-9 * env_steps, env_steps
        # For each step at which trials report, the first mark with a score and the running average of the trials there.
        self._averages: dict[int, list[tuple[int, float]]] = defaultdict(list)
        self._trials: dict[int, _Progress] = {}

    def decide(self, report: Report) -> Decision:
        """Record a trial's report, and decide whether the trial continues.

        Args:
            report: The score is NaN before the first episode has ended. Averages leave it out, and a trial without
                any other score is neither judged nor compared with.

        Returns:
            To stop at the report's mark, or to go on.
        """
        mark, trial = report.nominal_steps, self._trials.setdefault(report.number, _Progress())
        if mark <= trial.mark:
            return GO_ON  # A trial that resumed from a checkpoint repeats reports; they are not counted twice.
        trial.add(report)
        if not trial.num_numbers:
            return GO_ON
        is_below = self._first <= mark < self._budget and self._is_below(trial, self._averages[mark])
        # A trial's average counts in later comparisons even if the trial is stopped now.
        self._averages[mark].append((trial.first_mark, trial.average))
        return Stop(mark) if is_below else GO_ON

    def _is_below(self, trial: _Progress, others: Sequence[tuple[int, float]]) -> bool:
        averages = [average for first_mark, average in others if first_mark <= trial.first_mark]
        return len(averages) >= self.min_trials and trial.best < statistics.median(averages)


@dataclass
class _Progress:
    """The best score and the running average of a trial so far, and the first mark at which it had a score."""

    mark: int = -1
    first_mark: int = -1
    best: float = -math.inf
    total: float = 0.0
    num_numbers: int = 0

    @property
    def average(self) -> float:
        return self.total / self.num_numbers

    def add(self, report: Report) -> None:
        self.mark = report.nominal_steps
        if math.isfinite(report.score):
            self.first_mark = self.first_mark if self.num_numbers else self.mark
            self.best = max(self.best, report.score)
            self.total += report.score
            self.num_numbers += 1
