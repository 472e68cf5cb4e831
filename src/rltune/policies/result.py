"""Hold the result of an evaluation, in every process that shows it: unlike playing, this needs no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rltune.formatting import format_interval, format_number
from rltune.records import Direction
from rltune.statistics import mean_interval

MAX_NAMED = 8  # At most this many of the episodes that were cut are named.


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation: returns and lengths of the episodes, and their statistics.

    Attributes:
        returns: Undiscounted, one an episode, in the order of the seeds; several agents' are summed. Scores in their
            place where the sweep had another objective (`rltune.envs.objective`); NaN for an episode without a score.
        lengths: Environment steps, one an episode.
        std: Standard deviation of the returns (n - 1 in the denominator; 0 for one episode).
        iqm: Interquartile mean: of the middle half (Agarwal et al. 2021).
        low: Lower end of the mean's 95% interval (`rltune.statistics.mean_interval`); None if it has none.
        high: Upper end of the interval.
        cut: Environment seeds of the episodes that ended only at the limit of an evaluation, see
            `rltune.policies.evaluation.find_step_limit`.
        deterministic: How the policy acted: deterministically, or by sampling its actions.
        unscored: Places of the episodes without a score, of which the statistics are not.
        metrics: The user's own metrics by their names in reports, one number an episode; None if its infos lack it.
        are_equal: Whether all episodes were this one, as nothing in them is random.
    """

    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    mean: float
    std: float
    iqm: float
    low: float | None
    high: float | None
    min: float
    max: float
    cut: tuple[int, ...] = ()
    deterministic: bool = True
    unscored: tuple[int, ...] = ()
    metrics: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    are_equal: bool = False

    @property
    def scores(self) -> list[float]:
        """The returns, or the scores in their place, of the episodes that have one."""
        return [value for place, value in enumerate(self.returns) if place not in self.unscored]

    def measure(self) -> dict[str, dict[str, float | None]]:
        """Return each metric's ``mean`` over the episodes that have it, its interval, and their number."""
        return {name: measure_metric(values) for name, values in self.metrics.items()}

    def __repr__(self) -> str:
        """Format the statistics in one line, without the returns of single episodes."""
        return (
            f"<Evaluation of {len(self.returns)} episodes: mean {self.mean:.4g}, 95% interval "
            f"{format_interval(self.to_dict())}, IQM {self.iqm:.4g}, {self.min:.4g} to {self.max:.4g}>"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Evaluation:
        """Make the result from what `to_dict` has returned, also after its way through JSON."""
        lists: dict[str, Any] = {key: tuple(values[key]) for key in ("returns", "lengths", "cut", "unscored")}
        lists["metrics"] = {name: tuple(numbers) for name, numbers in values["metrics"].items()}
        return cls(**{**values, **lists})

    def explain_cut(self) -> str:
        """Explain which episodes were cut, and how to give the environment a time limit; empty if none was cut."""
        return explain_cut(self.cut, len(self.returns), max(self.lengths))


def measure_metric(values: Sequence[float | None]) -> dict[str, float | None]:
    """Return ``mean``, ``low`` and ``high`` of one metric over the ``episodes`` that have it.

    The interval is that of `rltune.statistics.mean_interval` on either side, as more may be better or worse.
    """
    present = [value for value in values if value is not None]
    # Of equal values only one side may be known: another episode may fail.
    sides = [side for direction in Direction if (side := mean_interval(present, direction))]
    return {
        "mean": sum(present) / len(present) if present else None,
        "low": min(low for low, _ in sides) if sides else None,
        "high": max(high for _, high in sides) if sides else None,
        "episodes": len(present),
    }


def explain_cut(seeds: Sequence[int], episodes: int, steps: int) -> str:
    """Explain that episodes were cut, and how to give the environment a time limit; empty if none was cut.

    Args:
        seeds: The environment seeds of the episodes that were cut.
        episodes: The number of all episodes.
        steps: The number of steps after which they were cut.
    """
    if not seeds:
        return ""
    named = ", ".join(map(str, seeds[:MAX_NAMED])) + (", ..." if len(seeds) > MAX_NAMED else "")
    return (
        f"{len(seeds)} of {format_number(episodes, 'episode')} did not end and {'was' if len(seeds) == 1 else 'were'} "
        f"cut after {steps:,} steps, which is env.evaluation_steps (environment seeds {named}). If the environment has "
        "no time limit, give it one: +env.kwargs.max_episode_steps=1000 is Gymnasium's TimeLimit (PettingZoo: "
        "max_cycles)"
    )
