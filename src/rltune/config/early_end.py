"""End a trial before its budget is spent: once its score has held a target, or no longer becomes better.

Unlike a stopping rule this compares a trial with nothing but itself, so that it ends as complete. The certification's
runs end so, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from rltune.records import PLATEAU, TARGET_HELD, Direction

HELD_REPORTS = 2  # One report above the target may be chance.


@dataclass(frozen=True)
class EarlyEnd:
    """When trials end early.

    Attributes:
        target: The score that a trial has to reach at `HELD_REPORTS` reports in a row; None without one.
        plateau: After how many reports without a better score a trial ends; None: after any.
        direction: Which scores are better.
    """

    target: float | None = None
    plateau: int | None = None
    direction: Direction = Direction.MAX

    def reaches(self, score: float) -> bool:
        """Return whether a score is the target, or better."""
        return self.target is not None and (score == self.target or self.direction.is_better(score, self.target))

    def explain(self, curve: Iterable[tuple[int, float]]) -> str | None:
        """Return why a trial has ended after its last report; None if it goes on.

        Args:
            curve: The environment steps that were sampled at each report, and its score; NaN where no episode has one.
                Reports of the same steps, as an iteration gives them that passes several marks, count as one.
        """
        scores = list(dict(curve).values())
        last = scores[-HELD_REPORTS:]
        if len(last) == HELD_REPORTS and all(math.isfinite(score) and self.reaches(score) for score in last):
            return TARGET_HELD
        finite = [index for index, score in enumerate(scores) if math.isfinite(score)]
        best = max(finite, key=lambda index: (self.direction.sign * scores[index], -index), default=len(scores))
        if self.plateau is not None and len(scores) - 1 - best >= self.plateau:
            return PLATEAU
        return None


NEVER = EarlyEnd()
