"""Give a trial that outgrew its share of a GPU a larger one. Runs in the driver."""

from __future__ import annotations

from rltune.cluster.resources import Share
from rltune.records import TrialRecord


class Shares:
    """Each trial's share of the machine: the sweep's, or a larger one.

    Args:
        common: The sweep's.
    """

    def __init__(self, common: Share) -> None:
        self._common = common
        self._larger: dict[tuple[str, int], Share] = {}

    def of(self, record: TrialRecord) -> Share:
        """Return a trial's share."""
        return self._larger.get((record.kind, record.number), self._common)

    def enlarge(self, record: TrialRecord) -> Share | None:
        """Give a trial twice the part of a GPU from now on, once; None where it has had that, or a whole GPU."""
        key = record.kind, record.number
        larger = None if key in self._larger else self._common.larger
        if larger:
            self._larger[key] = larger
        return larger
