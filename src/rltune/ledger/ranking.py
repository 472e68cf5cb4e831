"""Rank trials by their scores. Imports nothing heavy."""

from __future__ import annotations

import math
from collections.abc import Iterable

from rltune.records import Direction, TrialRecord


def rank_records(records: Iterable[TrialRecord], direction: Direction) -> list[TrialRecord]:
    """Sort the trials that are allowed to win, best score first.

    A trial with its whole budget comes before one that was stopped, because only its policy is fully trained. Those
    that have held ``budget.target`` come before all others, with fewer environment steps first. Then the better score
    comes first, and among equal scores the lower number.

    Args:
        records: All trials.
        direction: Which scores are better.

    Returns:
        The trials with a finite report that neither failed nor diverged nor break a constraint.
    """
    ranked = [
        (record.state != "COMPLETE", record.target_steps or math.inf, -direction.sign * score, record.number, record)
        for record, score in _list_scored(records)
        if not record.broken
    ]
    # Trial numbers are unique, so sorting never has to compare the records themselves.
    return [record for *_, record in sorted(ranked)]


def find_nearest(records: Iterable[TrialRecord]) -> TrialRecord | None:
    """Find the trial that came closest to keeping all constraints, if no trial kept them.

    Returns:
        The trial with the fewest broken constraints, and of those with the least sum of what each is broken by; None if
        a trial can win, or if none breaks a constraint.
    """
    scored = [record for record, _ in _list_scored(records)]
    if not all(record.broken for record in scored):
        return None
    return min(scored, key=lambda record: (len(record.broken), _sum_excess(record), record.number), default=None)


def _sum_excess(record: TrialRecord) -> float:
    return sum(math.inf if math.isnan(check.excess) else check.excess for check in record.broken)


def find_front(records: Iterable[TrialRecord], direction: Direction, second_direction: Direction) -> list[TrialRecord]:
    """Find the Pareto front: the complete trials that no other one beats in one objective without losing in the other.

    Args:
        records: Trials with their second objective. Those that cannot win or lack it are left out, and so are stopped
            trials, whose scores are not those of the whole budget.
        direction: Which scores are better.
        second_direction: Which values of the second objective are better.

    Returns:
        The best score first. Trials that are equal in both objectives are all in it.
    """
    points = [
        (-direction.sign * score, -second_direction.sign * record.second, record.number, record)
        for record, score in _list_scored(rank_records(records, direction))
        if record.state == "COMPLETE" and record.second is not None
    ]
    front: list[tuple[float, float, int, TrialRecord]] = []
    for point in sorted(points):  # Trial numbers are unique, so sorting never has to compare the records themselves.
        if not front or point[1] < front[-1][1] or point[:2] == front[-1][:2]:
            front.append(point)
    return [record for *_, record in front]


def _list_scored(records: Iterable[TrialRecord]) -> list[tuple[TrialRecord, float]]:
    """List the trials that neither failed nor diverged and have a score, paired with their scores."""
    able = ((record, record.score) for record in records if record.state != "FAIL" and not record.diverged)
    return [(record, score) for record, score in able if score is not None]


class BestSoFar:
    """Track the best score of a sweep as reports arrive.

    The best score may become worse: if the reports of the trial that has it become worse, its score does, too.

    Args:
        direction: Which scores are better.
    """

    def __init__(self, direction: Direction) -> None:
        self._direction = direction
        self._scores: dict[int, float] = {}
        self._best: int | None = None

    def add(self, number: int, objective: float) -> float | None:
        """Record a trial's next report, and return the best score of the sweep so far; None before the first score.

        Args:
            number: The trial.
            objective: The report's; NaN before the first episode has ended.
        """
        if math.isfinite(objective):
            self._scores[number] = objective
            # If the new score belongs to the leading trial, it may have become worse than another trial's.
            if self._best == number:
                self._best = max(self._scores, key=lambda trial: self._direction.sign * self._scores[trial])
            elif self._best is None or self._direction.is_better(self._scores[number], self._scores[self._best]):
                self._best = number
        return None if self._best is None else self._scores[self._best]
