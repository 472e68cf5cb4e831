"""Asynchronous successive halving as plain arithmetic: which trials go on, rebuilt from their reports at any time.

Runs in the driver.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rltune.study.record import TrialRecord


class SuccessiveHalving:
    """The rungs of asynchronous successive halving (Li et al. 2020, algorithm 2, its stopping variant).

    A trial that reaches a rung goes on if it is among the best ``1/reduction_factor`` of all that were seen there;
    the first ``reduction_factor - 1`` always do, since there is nothing to compare them with.

    Args:
        env_steps: A trial's whole budget.
        grace_fraction: The first rung, as a fraction of it.
        reduction_factor: How many times further the next rung lies, and how few go on.
    """

    def __init__(self, env_steps: int, grace_fraction: float, reduction_factor: float) -> None:
        self.reduction_factor = reduction_factor
        self.levels: list[int] = []
        level = env_steps * grace_fraction
        while level < env_steps:
            self.levels.append(math.ceil(level - 1e-9 * env_steps))  # 0.07 * 100 is a little more than 7
            level *= reduction_factor
        self._seen: list[dict[int, float]] = [{} for _ in self.levels]

    def report(self, number: int, env_steps: int, objective: float) -> int | None:
        """Take note of a report.

        Args:
            number: The trial.
            env_steps: Its environment steps.
            objective: Its objective; NaN (no episode has ended yet) ranks below every number.

        Returns:
            The rung, in environment steps, at which the trial is to stop; None when it goes on.
        """
        reached = [
            (level, seen)
            for level, seen in zip(self.levels, self._seen, strict=True)
            if env_steps >= level and number not in seen
        ]
        for _, seen in reached:  # all of them first: a replay must find what a live sweep saw
            seen[number] = -math.inf if math.isnan(objective) else objective
        return next((level for level, seen in reached if not self._goes_on(number, seen)), None)

    def _goes_on(self, number: int, seen: Mapping[int, float]) -> bool:
        if len(seen) < self.reduction_factor:
            return True
        better = sum(value > seen[number] for value in seen.values())
        return better < max(1, math.floor(len(seen) / self.reduction_factor))

    def replay(self, entries: Iterable[TrialRecord]) -> None:
        """Fill the rungs from the ledger; which trials stood there does not depend on the order."""
        for entry in entries:
            for env_steps, objective in entry.reports.items():
                self.report(entry.number, env_steps, objective)
