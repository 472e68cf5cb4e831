"""Which of the best trials is the winner: their policies on fresh episodes that the search has not seen.

A search's best score is the luckiest of many and so too high; a deterministic evaluation on episodes of their own
tells the finalists apart. Runs in the driver.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rltune import checkpoint
from rltune.policy import Evaluation, evaluate, load_policy
from rltune.study import Entry

EVALUATION_SEED = 1_000_003  # the same episodes for all sweeps, so that a champion and its challenger are comparable


@dataclass(frozen=True)
class Finalist:
    """A trial that may win.

    Attributes:
        entry: The trial.
        folder: Its best checkpoint.
        evaluation: On fresh episodes; None when it was not evaluated.
    """

    entry: Entry
    folder: Path
    evaluation: Evaluation | None = None

    @property
    def score(self) -> float:
        """What finalists are ranked by: the evaluation's mean, else the search's own objective."""
        if self.evaluation is not None:
            return self.evaluation.mean
        return self.entry.best if self.entry.best is not None else -math.inf


def finalists(sweep: Path, entries: Sequence[Entry]) -> list[Finalist]:
    """Trials with a whole checkpoint, best first; those that ran their whole budget come before the others."""
    found = []
    for entry in entries:
        folder = checkpoint.valid(sweep, entry.attributes.get("checkpoint")) if entry.state != "FAIL" else None
        if folder is not None and entry.best is not None:
            found.append(Finalist(entry, folder))
    return sorted(found, key=lambda one: (one.entry.state != "COMPLETE", -(one.entry.best or 0.0), one.entry.number))


def confirm(candidates: Sequence[Finalist], top: int, episodes: int, tell: Callable[[str], None]) -> Finalist | None:
    """The winner.

    Args:
        candidates: Best first.
        top: How many to evaluate; 0 trusts the search.
        episodes: Fresh episodes for each.
        tell: Told what is going on.

    Returns:
        The best by the evaluation's mean; the search's first when none can be evaluated; None without candidates.
    """
    judged = []
    for finalist in candidates[:top]:
        if not (finalist.folder / "policy").is_dir():
            tell(f"trial {finalist.entry.number} cannot be evaluated: its network needs RLlib")
            continue
        evaluation = evaluate(load_policy(finalist.folder / "policy"), episodes=episodes, seed=EVALUATION_SEED)
        tell(f"trial {finalist.entry.number} on {episodes} fresh episodes: {evaluation.mean:.1f}")
        judged.append(Finalist(finalist.entry, finalist.folder, evaluation))
    if judged:
        return max(judged, key=lambda one: one.score)
    return candidates[0] if candidates else None
