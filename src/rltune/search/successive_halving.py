"""Asynchronous successive halving (ASHA): stop the trials that are not among the best of a rung.

The rule is plain arithmetic over reports.
"""

from __future__ import annotations

import bisect
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from rltune.records import Report
from rltune.search.schedulers import GO_ON, Decision, Stop, StoppingRule, make_argument_error, to_number


class SuccessiveHalving(StoppingRule):
    """Stop trials by asynchronous successive halving (Li et al. 2020, algorithm 2, stopping variant).

    A trial that reaches a rung goes on if it is among the best ``1/reduction_factor`` of all trials that have reached
    it. The first ``reduction_factor - 1`` always go on, because there is nothing to compare them with. A trial that has
    not finished an episode when it reaches a rung goes on, and that rung compares it with nobody: a policy that
    survives long finishes its first episode late, and its later score would be compared with the others' earlier ones.

    Args:
        env_steps: A trial's whole budget, in environment steps.
        grace_fraction: Where the first rung lies, as a fraction of the budget.
        reduction_factor: The factor by which the steps grow and the trials become fewer from one rung to the next.

    Attributes:
        levels: The rungs, in environment steps, ascending.

    Raises:
        ConfigError: An argument is out of range.
    """

    def __init__(self, env_steps: int, grace_fraction: float, reduction_factor: float) -> None:
        if not 0 < to_number(grace_fraction) <= 1:
            raise make_argument_error("grace_fraction", grace_fraction, "above 0, at most 1", 0.2)
        if not to_number(reduction_factor) >= 2:
            raise make_argument_error("reduction_factor", reduction_factor, "at least 2", 2)
        self.reduction_factor = reduction_factor
        levels = []
        level = env_steps * grace_fraction
        while level < env_steps:
            # A little is subtracted before rounding up, because 0.07 * 100 is slightly more than 7 in floating point.
            levels.append(math.ceil(level - 1e-9 * env_steps))
            level *= reduction_factor
        self.levels = levels
        self._rungs = [_Rung(level) for level in self.levels]

    def decide(self, report: Report) -> Decision:
        """Record a trial's report, and decide whether the trial continues; each rung judges a trial once.

        Args:
            report: A trial's first one at a rung or past it decides whether the rung judges the trial: it does not if
                the report has no score, because no episode has ended yet. Only scores of the same mark are compared.

        Returns:
            `Stop` if the trial is not among the best of a rung, else `GO_ON`.
        """
        number, mark, value = report.number, report.nominal_steps, report.score
        reached = [rung for rung in self._rungs if mark >= rung.level and number not in rung.trials]
        for rung in reached:
            rung.trials.add(number)
        if not math.isfinite(value):
            return GO_ON
        # The score is recorded before the decision, because stopped trials are part of later comparisons.
        for rung in reached:
            bisect.insort(rung.values[mark], value)
        is_best = all(self._goes_on(value, rung.values[mark]) for rung in reached)
        return GO_ON if is_best else Stop(mark)

    def _goes_on(self, value: float, values: Sequence[float]) -> bool:
        if len(values) < self.reduction_factor:
            return True
        better = len(values) - bisect.bisect_right(values, value)
        return better < max(1, math.floor(len(values) / self.reduction_factor))


@dataclass
class _Rung:
    """The trials that have reached a rung, and the sorted scores of those that had one by then, by the mark."""

    level: int
    trials: set[int] = field(default_factory=set)
    values: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
