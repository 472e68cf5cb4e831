"""Decide by the median stopping rule which trials go on.

The rule is plain arithmetic over reports. A resumed sweep rebuilds it by `MedianStopping.replay`.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rltune.records import Report, TrialRecord
from rltune.search.schedulers import GO_ON, Decision, Stop, make_argument_error, to_number

NUM_MARKS = 20


class MedianStopping:
    """Stop trials by the median stopping rule (Golovin et al. 2017, Google Vizier, section 3.2.2).

    A trial stops if its best objective so far is strictly below the median of the other trials' running averages: each
    the mean of that trial's objectives up to the same step. One that is as good as half of the others were on their
    way here goes on, whatever they become later.

    Trials whose batches differ in size report at different steps. So that like is compared with like, each is judged
    where it passes the twentieths of the budget, at each of them once, against the averages that the others had there.

    Args:
        env_steps: A trial's whole budget, in environment steps.
        grace_fraction: No trial is stopped before this fraction of the budget.
        min_trials: How many others must have come as far before a trial is stopped.

    Attributes:
        marks: Where trials are judged, in environment steps, ascending.

    Raises:
        ConfigError: An argument is out of range.
    """

    def __init__(self, env_steps: int, grace_fraction: float, min_trials: int) -> None:
        if not 0 <= to_number(grace_fraction) <= 1:
            raise make_argument_error("grace_fraction", grace_fraction, "at least 0, at most 1", 0.2)
        if not to_number(min_trials) >= 1:
            raise make_argument_error("min_trials", min_trials, "at least 1", 5)
        self.min_trials = min_trials
        marks = {math.ceil(env_steps * twentieth / NUM_MARKS) for twentieth in range(1, NUM_MARKS)}
        self.marks = sorted(mark for mark in marks if env_steps * grace_fraction - 1e-9 * env_steps <= mark < env_steps)
        self._averages: list[list[float]] = [[] for _ in self.marks]  # ascending, of all that have come there
        self._trials: dict[int, _Progress] = {}

    def decide(self, report: Report) -> Decision:
        """Take in a trial's report and decide whether the trial goes on.

        Args:
            report: An objective of NaN, before its first episode has ended, is left out of an average; a trial that
                has none but such ranks below every number.

        Returns:
            To stop at the newest mark that the trial has reached, or to go on.
        """
        trial = self._trials.setdefault(report.number, _Progress())
        if report.env_steps <= trial.env_steps:
            return GO_ON  # it failed and trains the same steps again: they are counted
        trial.add(report)
        reached = range(trial.num_marks, bisect.bisect_right(self.marks, report.env_steps))
        trial.num_marks += len(reached)
        is_below = bool(reached) and self._is_below(trial.best, self._averages[reached[-1]])
        for index in reached:  # whatever the verdict: a replay must rebuild the same averages
            bisect.insort(self._averages[index], trial.average)
        return Stop(self.marks[reached[-1]]) if is_below else GO_ON

    def _is_below(self, best: float, others: Sequence[float]) -> bool:
        return len(others) >= self.min_trials and best < _take_median(others)

    def replay(self, records: Iterable[TrialRecord]) -> None:
        """Rebuild the averages from the ledger's trials, in any order."""
        for record in records:
            for env_steps, objective in record.reports.items():
                self.decide(Report(record.number, env_steps, objective))


@dataclass
class _Progress:
    """What is known of one trial."""

    env_steps: int = -1
    num_marks: int = 0  # that it has reached
    best: float = -math.inf
    total: float = 0.0
    num_numbers: int = 0

    @property
    def average(self) -> float:
        return self.total / self.num_numbers if self.num_numbers else -math.inf

    def add(self, report: Report) -> None:
        self.env_steps = report.env_steps
        if math.isfinite(report.objective):
            self.best = max(self.best, report.objective)
            self.total += report.objective
            self.num_numbers += 1


def _take_median(ascending: Sequence[float]) -> float:
    middle = len(ascending) // 2
    return ascending[middle] if len(ascending) % 2 else ascending[middle - 1] / 2 + ascending[middle] / 2
