"""Distinguish the search's trials from the certification's runs, which one Tune run proposes and records.

A Tune run of its own would start its own worker processes, whereas those of the search are warm. Runs in the driver.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rltune.ledger.trial_table import TrialTable
from rltune.records import TRIALS

if TYPE_CHECKING:
    from rltune.driver.tune.proposals import Proposer


@dataclass(frozen=True)
class Stage:
    """One kind of trials.

    Attributes:
        trials: The trials of this kind in the ledger.
        proposer: Proposes the next trial.
    """

    trials: TrialTable
    proposer: Proposer

    @property
    def kind(self) -> str:
        """`rltune.records.TRIALS` or CERTIFY, which is also the name of the folder of these trials."""
        return self.trials.kind

    @property
    def is_search(self) -> bool:
        """Whether these trials are the search's: they spend the sweep's budgets, and the rule stops them."""
        return self.kind == TRIALS
