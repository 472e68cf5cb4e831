"""Give a trial that outgrew its share of a GPU a larger one. Runs in the driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rltune.cluster.resources import Share
from rltune.ledger.ledger import Ledger
from rltune.records import ENLARGE, TrialRecord


class Shares:
    """Holds the share of the machine of each trial whose values need a larger one than the sweep's common share.

    The ledger keeps the larger shares, so that a trial does not run out of memory again after a resume.

    Args:
        common: The share of a trial of the sweep.
        ledger: The sweep's ledger.
    """

    def __init__(self, common: Share, ledger: Ledger) -> None:
        self._common, self._ledger = common, ledger
        self._larger: dict[str, Share] = {}  # By values, because the certification's runs have the values of trials.
        self._given: dict[tuple[str, int], Share] = {}
        for request in ledger.read_requests(ENLARGE, waiting=False):
            if 0 < common.gpus < request.payload["gpus"]:  # The sweep may have been resumed on another machine.
                self._larger[_spell_values(request.payload["values"])] = replace(common, gpus=request.payload["gpus"])

    def of(self, record: TrialRecord) -> Share:
        """Return the share with which a trial begins or goes on."""
        share = self._given[record.kind, record.number] = self._larger.get(_spell_values(record.params), self._common)
        return share

    def enlarge(self, record: TrialRecord) -> Share | None:
        """Double the part of a GPU for a trial's values, once; None if that was done before or it had a whole GPU."""
        had = self._given.get((record.kind, record.number), self._common)
        larger = self._common.larger if had == self._common else None
        if larger and self._larger.get(values := _spell_values(record.params)) != larger:
            self._larger[values] = larger
            self._ledger.ask(ENLARGE, {"values": record.params, "gpus": larger.gpus}, record.name, is_taken=True)
        return larger


def _spell_values(params: Mapping[str, Any]) -> str:
    return repr(sorted(params.items()))
