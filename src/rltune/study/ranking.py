"""Rank trials. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterable

from rltune.records import TrialRecord


def rank_records(records: Iterable[TrialRecord]) -> list[TrialRecord]:
    """Sort the trials that can win, best first.

    A trial with its whole budget comes before one that was stopped: its policy is the one that the sweep was to find.
    The higher objective comes first among them, and the lower number among equals.

    Returns:
        The trials with a finite report that neither failed nor diverged.
    """
    able = [one for one in records if one.state != "FAIL" and not one.diverged and one.best is not None]
    return sorted(able, key=lambda record: (record.state != "COMPLETE", -(record.best or 0.0), record.number))


def order_records(records: Iterable[TrialRecord]) -> list[TrialRecord]:
    """Sort all trials for a person: those that can win as `rank_records` has them, then the others by number."""
    able = rank_records(records := list(records))
    numbers = {record.number for record in able}
    return able + sorted((one for one in records if one.number not in numbers), key=lambda one: one.number)
