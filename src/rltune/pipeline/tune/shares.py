"""Give a trial that outgrew its share of a GPU a larger one. Runs in the driver."""

from __future__ import annotations

from rltune.cluster.resources import Share
from rltune.records import TrialRecord


class Shares:
    """Each trial's share of the machine: the sweep's, or a larger one where its values were seen to need it.

    Args:
        common: The sweep's.
    """

    def __init__(self, common: Share) -> None:
        self._common = common
        self._larger: dict[str, Share] = {}  # by values: those of a trial are tried again by the certification's runs
        self._given: dict[tuple[str, int], Share] = {}

    def of(self, record: TrialRecord) -> Share:
        """Return the share with which a trial begins or goes on."""
        share = self._given[record.kind, record.number] = self._larger.get(_spell_values(record), self._common)
        return share

    def enlarge(self, record: TrialRecord) -> Share | None:
        """Give a trial's values twice the part of a GPU from now on; None where it has had that, or a whole GPU."""
        had = self._given.get((record.kind, record.number), self._common)
        larger = self._common.larger if had == self._common else None
        if larger:
            self._larger[_spell_values(record)] = larger
        return larger


def _spell_values(record: TrialRecord) -> str:
    return repr(sorted(record.params.items()))
