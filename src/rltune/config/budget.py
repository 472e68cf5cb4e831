"""Compute whether a search's budget allows another trial, and the size of the certification."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rltune.config.schema import BudgetConfig, RunConfig, ScoreConfig

STEPS_SPENT = "budget.total_env_steps is spent"
SCORE_EPISODES = 10  # The episodes of a report if `score.env` is set and `score.episodes` is not.
FIVE_SEEDS_FROM = 40  # The number of trials from which certification uses 5 seeds; for smaller sweeps 3 are cheaper.
THREE_FINALISTS_FROM = 50  # The number of trials from which three configurations are certified, and not just one.


def size_certification(trials: int) -> tuple[int, int]:
    """Return the number of configurations to certify besides the baseline, and the number of seeds of each.

    Without it, a small search would spend most of its trainings on certification (docs/certification.md).

    Args:
        trials: The number of trials of the search.
    """
    return (3 if trials >= THREE_FINALISTS_FROM else 1), (5 if trials >= FIVE_SEEDS_FROM else 3)


def size_score(score: ScoreConfig) -> int:
    """Return the number of episodes that a trial plays at each report for its score; 0 takes those of the training."""
    if score.episodes is not None:
        return score.episodes
    return SCORE_EPISODES if score.env else 0


def fit_sizes(config: RunConfig, num_points: int | None = None) -> tuple[RunConfig, tuple[str, ...]]:
    """Fill in the settings that follow from others: the number of trials of a grid, the size of the certification.

    Args:
        config: The settings.
        num_points: The number of points of the grid that is searched; None if the search is no grid.

    Returns:
        The settings, and notes on the difference to ``budget.trials``.
    """
    wanted, certify, notes = config.budget.trials, config.certify, tuple[str, ...]()
    trials = wanted if num_points is None else min(wanted, num_points)
    if num_points is not None and wanted < num_points:
        notes = (
            f"the grid has {num_points} points, of which {wanted} are tried; budget.trials={num_points} tries all",
        )
    elif num_points is not None and wanted > num_points:
        notes = (f"the grid has {num_points} points, after which the search ends, before budget.trials={wanted}",)
    top, seeds = size_certification(trials)
    top = top if certify.top is None else certify.top
    seeds = seeds if certify.seeds is None else certify.seeds
    fitted = replace(
        config, budget=replace(config.budget, trials=trials), certify=replace(certify, top=top, seeds=seeds)
    )
    return fitted, notes


def has_spent_steps(budget: BudgetConfig, env_steps: int) -> bool:
    """Return whether a search has used up ``budget.total_env_steps``, which counts all trials and all their seeds."""
    return budget.total_env_steps is not None and env_steps >= budget.total_env_steps


@dataclass(frozen=True)
class SpentBudget:
    """How much of its budget a search has used.

    Attributes:
        budget: The whole budget.
        replicates: The number of seeds of a trial.
        num_trials: How many trials have started.
        env_steps: The environment steps of all trials and all their seeds.
    """

    budget: BudgetConfig
    replicates: int
    num_trials: int
    env_steps: int

    def explain(self, num_waiting: int) -> str | None:
        """Explain why the budget allows no more trials than ``num_waiting`` waiting ones; None if it allows another."""
        if self.num_trials + num_waiting >= self.budget.trials:
            return f"no trial of budget.trials={self.budget.trials} is left to begin"
        return STEPS_SPENT if has_spent_steps(self.budget, self.env_steps) else None

    def spell_larger(self, wanted: int) -> str:
        """Return the overrides that a resume needs for ``wanted`` more trials; empty if the budget allows them now.

        Steps that are left now may be spent before the last of these trials starts.
        """
        words: list[str] = []
        if self.num_trials + wanted > self.budget.trials:
            words.append(f"budget.trials={self.num_trials + wanted}")
        if has_spent_steps(self.budget, self.env_steps):
            whole = self.budget.env_steps * self.replicates
            words.append(f"budget.total_env_steps={self.env_steps + wanted * whole}")
        return " ".join(words)
