"""Say which part of a sweep's budget is left for further trials."""

from __future__ import annotations

from dataclasses import dataclass

from rltune.config.schema import RunConfig

STEPS_SPENT = "budget.total_env_steps is spent"


def has_spent_steps(config: RunConfig, env_steps: int) -> bool:
    """Return whether a sweep has spent ``budget.total_env_steps``.

    Args:
        config: The sweep's settings.
        env_steps: The environment steps of all trials and all their seeds.
    """
    total = config.budget.total_env_steps
    return total is not None and env_steps >= total


@dataclass(frozen=True)
class SpentBudget:
    """The part of its budget that a sweep has spent.

    Attributes:
        config: The sweep's settings.
        num_trials: The number of trials that have started.
        env_steps: The environment steps of all trials and all their seeds.
    """

    config: RunConfig
    num_trials: int
    env_steps: int

    def explain(self, num_waiting: int) -> str | None:
        """Explain why no trial starts after the ``num_waiting`` ones that wait already; None if one may start."""
        if self.num_trials + num_waiting >= self.config.budget.trials:
            return f"no trial of budget.trials={self.config.budget.trials} is left to begin"
        return STEPS_SPENT if has_spent_steps(self.config, self.env_steps) else None

    def spell_larger(self, num_more: int) -> str:
        """Return the overrides with which ``num_more`` trials start; empty if at least the next one starts without."""
        budget, overrides = self.config.budget, []
        if self.num_trials + num_more > budget.trials:
            overrides.append(f"budget.trials={self.num_trials + num_more}")
        if has_spent_steps(self.config, self.env_steps):
            steps_per_trial = budget.env_steps * self.config.replicates
            overrides.append(f"budget.total_env_steps={self.env_steps + num_more * steps_per_trial}")
        return " ".join(overrides)
