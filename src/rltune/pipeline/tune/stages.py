"""Tell the search's trials and the certification's runs apart, for whoever proposes and records both.

Certification runs inside the search's Tune run, where the processes are warm: a second one would start its own. Runs in
the driver.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rltune.records import TRIALS
from rltune.study.trial_table import TrialTable

if TYPE_CHECKING:
    from rltune.pipeline.tune.proposals import Proposer


@dataclass(frozen=True)
class Stage:
    """One kind of trials.

    Attributes:
        trials: Theirs in the ledger.
        proposer: Says what is run next.
    """

    trials: TrialTable
    proposer: Proposer

    @property
    def kind(self) -> str:
        """`rltune.records.TRIALS` or CERTIFY; also the folder of their own folders."""
        return self.trials.kind

    @property
    def is_search(self) -> bool:
        """Whether these trials are the search's: they spend the sweep's budgets, and the rule stops them."""
        return self.kind == TRIALS
