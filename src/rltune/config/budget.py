"""Compute whether the budget of a search allows another trial, and how much certification fits it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rltune.config.schema import RunConfig

STEPS_SPENT = "budget.total_env_steps is spent"
FIVE_SEEDS_FROM = 40  # From so many trials on, five seeds certify; before, three cost less and tell less.
THREE_FINALISTS_FROM = 50  # A sweep of fewer trials retrains only its best configuration and the baseline.


def size_certification(trials: int) -> tuple[int, int]:
    """Return how many configurations are certified besides the baseline, and with how many seeds each.

    Without it, a small search would spend most of its trainings on certification (docs/certification.md).

    Args:
        trials: The number of trials of the search.
    """
    return (3 if trials >= THREE_FINALISTS_FROM else 1), (5 if trials >= FIVE_SEEDS_FROM else 3)


def fit_certification(config: RunConfig) -> RunConfig:
    """Replace the sizes of the certification that are None by those that follow from the number of trials."""
    certify, (top, seeds) = config.certify, size_certification(config.budget.trials)
    top = top if certify.top is None else certify.top
    seeds = seeds if certify.seeds is None else certify.seeds
    return replace(config, certify=replace(certify, top=top, seeds=seeds))


def has_spent_steps(config: RunConfig, env_steps: int) -> bool:
    """Return whether a search has spent its environment steps, those of all trials and all their seeds."""
    total = config.budget.total_env_steps
    return total is not None and env_steps >= total


@dataclass(frozen=True)
class SpentBudget:
    """The part of a search's budget that is spent.

    Attributes:
        config: The settings with the budget.
        num_trials: How many trials have started.
        env_steps: The environment steps of all trials and all their seeds.
    """

    config: RunConfig
    num_trials: int
    env_steps: int

    def explain(self, num_waiting: int) -> str | None:
        """Explain why no trial can start after ``num_waiting`` others have started; return None if one can."""
        if self.num_trials + num_waiting >= self.config.budget.trials:
            return f"no trial of budget.trials={self.config.budget.trials} is left to begin"
        return STEPS_SPENT if has_spent_steps(self.config, self.env_steps) else None

    def spell_larger(self, wanted: int) -> str:
        """Return the overrides that allow ``wanted`` more trials; empty if the budget allows the next one.

        Steps that are left now may be spent before the last of these trials starts.
        """
        budget, words = self.config.budget, []
        if self.num_trials + wanted > budget.trials:
            words.append(f"budget.trials={self.num_trials + wanted}")
        if has_spent_steps(self.config, self.env_steps):
            whole = budget.env_steps * self.config.replicates
            words.append(f"budget.total_env_steps={self.env_steps + wanted * whole}")
        return " ".join(words)
