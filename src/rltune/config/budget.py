"""Say what the budget of a search still lets begin."""

from __future__ import annotations

from dataclasses import dataclass

from rltune.config.schema import RunConfig

STEPS_SPENT = "budget.total_env_steps is spent"


def has_spent_steps(config: RunConfig, env_steps: int) -> bool:
    """Whether a search has had its environment steps, those of all trials and all their seeds."""
    total = config.budget.total_env_steps
    return total is not None and env_steps >= total


@dataclass(frozen=True)
class SpentBudget:
    """What a search has had.

    Attributes:
        config: The request, with its budget.
        num_trials: Trials that have begun.
        env_steps: Of all trials and all their seeds.
    """

    config: RunConfig
    num_trials: int
    env_steps: int

    def explain(self, num_waiting: int) -> str | None:
        """Say why no trial begins beyond so many that wait to be begun; None where one may."""
        if self.num_trials + num_waiting >= self.config.budget.trials:
            return f"no trial of budget.trials={self.config.budget.trials} is left to begin"
        return STEPS_SPENT if has_spent_steps(self.config, self.env_steps) else None

    def spell_larger(self, wanted: int) -> str:
        """Return the overrides with which so many more trials begin; empty where the next one begins without.

        Steps that are not spent yet may be before the last one begins.
        """
        budget, words = self.config.budget, []
        if self.num_trials + wanted > budget.trials:
            words.append(f"budget.trials={self.num_trials + wanted}")
        if has_spent_steps(self.config, self.env_steps):
            whole = budget.env_steps * self.config.replicates
            words.append(f"budget.total_env_steps={self.env_steps + wanted * whole}")
        return " ".join(words)
