"""Asynchronous Hyperband: several brackets of successive halving, each with a longer grace period than the one before.

The rule is plain arithmetic over reports.
"""

from __future__ import annotations

from rltune.records import Report
from rltune.search.schedulers import Decision, StoppingRule, make_argument_error, to_number
from rltune.search.successive_halving import SuccessiveHalving


class Hyperband(StoppingRule):
    """Stop trials by asynchronous Hyperband (Li et al. 2018; asynchronous as in Li et al. 2020).

    Trials are assigned to the brackets in turn, by their numbers. Each bracket halves among its own trials. Its first
    rung comes ``reduction_factor`` times as late as that of the bracket before, so that slow starters can win in the
    later brackets.

    Args:
        env_steps: A trial's whole budget, in environment steps.
        grace_fraction: Where the first bracket's first rung lies, as a fraction of the budget.
        reduction_factor: The factor by which the steps grow and the trials become fewer from one rung to the next.
        num_brackets: The number of brackets.

    Attributes:
        brackets: The halvings, the most eager first.

    Raises:
        ConfigError: An argument is out of range.
    """

    def __init__(self, env_steps: int, grace_fraction: float, reduction_factor: float, num_brackets: int) -> None:
        if not (to_number(num_brackets) >= 1 and int(num_brackets) == num_brackets):
            raise make_argument_error("num_brackets", num_brackets, "a whole number, at least 1", 3)
        self.brackets = [SuccessiveHalving(env_steps, grace_fraction, reduction_factor)]
        for later in range(1, int(num_brackets)):
            # A grace period of 1 is the whole budget, so such a bracket stops no trial.
            grace = min(1.0, grace_fraction * reduction_factor**later)
            self.brackets.append(SuccessiveHalving(env_steps, grace, reduction_factor))

    def decide(self, report: Report) -> Decision:
        """Let the bracket to which the trial is assigned decide."""
        return self.brackets[report.number % len(self.brackets)].decide(report)
