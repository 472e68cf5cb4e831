"""Rank trials by their scores. Imports nothing heavy."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterable

from rltune.records import SCORED_REPORTS, TrialRecord, compute_score


def rank_records(records: Iterable[TrialRecord]) -> list[TrialRecord]:
    """Sort the trials that can win, best first.

    A trial with its whole budget comes before one that was stopped: its policy is the one that the sweep was to find.
    The higher score comes first among them, and the lower number among equals.

    Returns:
        The trials with a finite report that neither failed nor diverged nor break a constraint.
    """
    scored = [(record, record.score) for record in records if _can_be_scored(record) and not record.broken]
    ranked = [
        (record.state != "COMPLETE", -score, record.number, record) for record, score in scored if score is not None
    ]
    return [record for *_, record in sorted(ranked)]  # Numbers differ, so that records are not compared.


def find_nearest(records: Iterable[TrialRecord]) -> TrialRecord | None:
    """Find, of the trials that could win but for the constraints, the one that breaks them by least.

    Returns:
        The one with the fewest broken constraints, and of those with the least sum of what each is broken by; None
        where a trial can win, or none breaks a constraint.
    """
    scored = list(_list_scored(records))
    if not all(one.broken for one in scored):
        return None
    return min(scored, key=lambda one: (len(one.broken), _sum_excess(one), one.number), default=None)


def _sum_excess(record: TrialRecord) -> float:
    return sum(math.inf if math.isnan(check.excess) else check.excess for check in record.broken)


def find_front(records: Iterable[TrialRecord], direction: str) -> list[TrialRecord]:
    """Find the Pareto front: the whole trials that no other one beats in one objective without losing in the other.

    Args:
        records: Trials, with their second objective. Those that cannot win, were stopped or lack it are left out: a
            stopped one's score is not that of the whole budget.
        direction: ``min`` or ``max``: how the second objective is to be.

    Returns:
        The highest score first; of trials that are equal in both all.
    """
    sign = 1.0 if direction == "min" else -1.0
    whole = [
        (-(one.score or 0.0), sign * one.second, one.number, one)
        for one in rank_records(records)
        if one.state == "COMPLETE" and one.second is not None
    ]
    front: list[tuple[float, float, int, TrialRecord]] = []
    for point in sorted(whole):  # numbers differ, so that records are not compared
        if not front or point[1] < front[-1][1] or point[:2] == front[-1][:2]:
            front.append(point)
    return [one for *_, one in front]


def _list_scored(records: Iterable[TrialRecord]) -> Iterable[TrialRecord]:
    return (record for record in records if _can_be_scored(record) and record.score is not None)


def _can_be_scored(record: TrialRecord) -> bool:
    return record.state != "FAIL" and not record.diverged


class BestSoFar:
    """Follow the highest score while reports come in.

    It is that of the moment: where the trial that has it becomes worse, it falls.

    Args:
        last: As for `compute_score`.
    """

    def __init__(self, last: int | None = SCORED_REPORTS) -> None:
        self._last = last
        self._recent: defaultdict[int, deque[float]] = defaultdict(lambda: deque(maxlen=last))
        self._scores: dict[int, float] = {}
        self._best: int | None = None

    def add(self, number: int, objective: float) -> float | None:
        """Take in a trial's next report, and return the highest score by then; None before there is one.

        Args:
            number: The trial.
            objective: The report's; NaN before the first episode has ended.
        """
        if math.isfinite(objective):
            self._recent[number].append(objective)
            self._scores[number] = compute_score(self._recent[number], self._last) or 0.0
            if self._best == number:  # it may have fallen behind another one
                self._best = max(self._scores, key=self._scores.__getitem__)
            elif self._best is None or self._scores[number] > self._scores[self._best]:
                self._best = number
        return None if self._best is None else self._scores[self._best]
