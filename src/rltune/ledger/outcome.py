"""Describe how a sweep ended: its counts and cost, written to ``summary.json``.

Writing runs in the driver; reading runs anywhere.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rltune.config.criteria import Criteria
from rltune.formatting import classify_failure, first_line, to_plain
from rltune.ledger.ranking import find_front, find_nearest
from rltune.records import TrialRecord

EXIT_WINNER, EXIT_NONE = 0, 1
# Of the description of a sweep for programs, see docs/automation.md. It is raised when a key is renamed or removed, or
# when its values change their meaning, and not when a key is added.
DESCRIPTION_VERSION = 1


@dataclass(frozen=True)
class Outcome:
    """How a sweep ended, as ``summary.json`` stores it.

    Attributes:
        name: The sweep.
        status: complete, stopped (its wall time is over, or its disk full), interrupted or failed.
        trials: total, complete, pruned, failed, interrupted.
        winner: name, trial (None for a baseline that the search did not try), params, origin, objective, checkpoint
            (relative to the folder), evaluation, and acting (`rltune.policies.acting.choose_acting`) if its policy
            acts by sampling; None without.
        model: name, version, uri, champion, why; None when nothing was registered.
        unregistered: Why MLflow has not registered the winner, which the next driver tries again; None otherwise.
        cost: env_steps, env_steps_saved, train_s, wall_s, slots, efficiency; certify_env_steps, certify_train_s.
        certified: `Certification.summary`; None when nothing was certified.
        front: The whole trials that no other one beats in both objectives, the best objective first: trial, params,
            objective, and the second objective by its name. None without a second objective.
        reason: Why it ended early; None at its natural end.
        exit_code: What the command ends with.
        algorithm: The algorithm's name.
        environment: The environment's id.
        seed: The sweep's seed.
        began: When the sweep began, ISO 8601 in UTC. These four are None for a crash, which writes no summary.
    """

    name: str
    status: str
    trials: Mapping[str, int]
    winner: Mapping[str, Any] | None
    model: Mapping[str, Any] | None
    cost: Mapping[str, float]
    certified: Mapping[str, Any] | None = None
    reason: str | None = None
    front: Sequence[Mapping[str, Any]] | None = None
    exit_code: int = EXIT_WINNER
    folder: Path = field(default_factory=Path)
    algorithm: str | None = None
    environment: str | None = None
    seed: int | None = None
    began: str | None = None
    unregistered: str | None = None

    def __repr__(self) -> str:
        """Describe in one line how the sweep ended."""
        best = f", winner trial {self.winner['trial']}" if self.winner and self.winner["trial"] is not None else ""
        return f"<Outcome of {self.name}: {self.status}, {self.trials['total']} trials{best}; {self.folder}>"

    def to_dict(self) -> dict[str, Any]:
        """Return the content of ``summary.json``: plain values, None for a number that is not finite."""
        content = {key: value for key, value in asdict(self).items() if key not in ("folder", "exit_code")}
        plain: dict[str, Any] = to_plain({"version": DESCRIPTION_VERSION, **content})
        return plain

    def save(self) -> None:
        """Write ``summary.json`` atomically."""
        draft = self.folder / ".summary.json"
        draft.write_text(json.dumps(self.to_dict(), indent=2) + "\n")
        draft.rename(self.folder / "summary.json")


def load_outcome(folder: Path) -> Outcome | None:
    """Load the outcome of a sweep from its ``summary.json``; None if the file is missing or unreadable."""
    try:
        content = json.loads((folder / "summary.json").read_text())
        content.pop("version", None)
        exit_code = EXIT_WINNER if content["winner"] and content["status"] != "failed" else EXIT_NONE
        return Outcome(**content, folder=folder, exit_code=exit_code)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def count_states(records: Sequence[TrialRecord]) -> dict[str, int]:
    """Count trials by their state at the end: complete, pruned, failed, interrupted."""
    states = Counter(record.state for record in records)
    return {
        "total": len(records),
        "complete": states["COMPLETE"],
        "pruned": states["PRUNED"],
        "failed": states["FAIL"],
        "interrupted": states["RUNNING"],
    }


def describe_front(records: Sequence[TrialRecord], criteria: Criteria) -> list[dict[str, Any]] | None:
    """List the trials of the Pareto front for ``summary.json``; None without a second objective."""
    if criteria.second is None:
        return None
    return [
        {
            "trial": record.number,
            "objective": record.score,
            criteria.second: record.second,
            "params": dict(record.params),
        }
        for record in find_front(records, criteria.direction, criteria.second_direction)
    ]


def explain_no_winner(records: Sequence[TrialRecord], *, is_running: bool = False) -> str:
    """Explain why a sweep has no winner.

    Args:
        records: All trials.
        is_running: Whether the sweep still runs, so that there may be a winner later.
    """
    verdict = " yet" if is_running else ", so there is no winner"
    if (nearest := find_nearest(records)) is None:
        if not records or any(record.state != "FAIL" for record in records):
            return f"no trial has reported a return{verdict}"
        reasons = [first_line(record.stop_reason) for record in records]
        ((kind, number),) = Counter(map(classify_failure, reasons)).most_common(1)
        often = next(reason for reason in reasons if classify_failure(reason) == kind)
        verdict = " so far" if is_running else verdict
        return f"every trial has failed{verdict}; {number} of {len(records)}: {often}"
    bounds = " and ".join(f"{check.name} {check.bound}" for check in nearest.checks)
    why = ", ".join(map(str, nearest.broken))
    return f"no trial keeps {bounds}{verdict}; the nearest is trial {nearest.number}: {why}"


def compute_cost(
    records: Sequence[TrialRecord],
    env_steps: int,
    replicates: int,
    slots: float,
    wall_s: float,
    runs: Sequence[TrialRecord] = (),
) -> dict[str, float]:
    """Compute a sweep's environment steps and seconds, and the steps that early stopping saved.

    Args:
        records: All trials.
        env_steps: The budget of a trial and seed.
        replicates: The number of seeds of a trial.
        slots: Trials at once; on a cluster their mean over the time.
        wall_s: Seconds from the command's start, all drivers.
        runs: Those of the certification, which are counted apart.

    Returns:
        ``efficiency`` is the training seconds of trials and runs over slots x wall seconds.
    """
    stopped = [record for record in records if record.state == "PRUNED"]
    train_s, certify_s = (sum(record.train_s for record in group) for group in (records, runs))
    return {
        "env_steps": replicates * sum(record.env_steps for record in records),
        "env_steps_saved": replicates * sum(max(0, env_steps - record.env_steps) for record in stopped),
        "train_s": round(train_s, 3),
        "wall_s": round(wall_s, 3),
        "slots": round(slots, 2),
        "efficiency": round((train_s + certify_s) / (slots * wall_s), 4) if wall_s else 0.0,
        "certify_env_steps": sum(record.env_steps for record in runs),
        "certify_train_s": round(certify_s, 3),
    }
