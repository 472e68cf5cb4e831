"""Register a sweep's winner, which becomes the champion only if it is better on the same episodes.

Runs in the driver; `rltune.tracking` talks to MLflow.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rltune.certification.finalists import EVALUATION_SEED, Finalist
from rltune.certification.result import Certification
from rltune.config.schema import RunConfig
from rltune.config.settings_file import format_settings
from rltune.errors import PolicyError
from rltune.formatting import format_objective
from rltune.tracking.model_registry import RegisteredModel
from rltune.tracking.tracker import Tracker

ALIAS = "champion"


@dataclass(frozen=True)
class Candidate:
    """What is to be registered.

    Attributes:
        winner: The policy.
        certification: What speaks for it; None when it was not certified.
        config: The sweep's settings, which the model carries.
        sweep: The sweep's name.
    """

    winner: Finalist
    certification: Certification | None
    config: RunConfig
    sweep: str

    @property
    def name(self) -> str:
        """The registered model's."""
        return f"{self.config.env.name}-{self.config.algo['name']}"

    @property
    def episodes(self) -> str:
        """What the score was measured on; scores on other episodes cannot be compared with it."""
        config = self.config
        count, first = config.certify.champion_episodes, EVALUATION_SEED
        return f"{count} episodes of {config.env.id}, environment seeds from {first}"


def register_champion(candidate: Candidate, tracker: Tracker, notify: Callable[[str], None]) -> dict[str, Any] | None:
    """Register the winner; the alias moves to it when nothing better has it.

    Args:
        candidate: The winner.
        tracker: MLflow.
        notify: Shows a person a line.

    Returns:
        The version as the summary has it; None when it was not registered.
    """
    bundle = candidate.winner.folder / "policy"
    if not bundle.is_dir():
        notify("the winner's network cannot be expressed without RLlib, so it is not registered")
        return None
    from rltune.policies.mlflow_model import make_model_arguments  # brings torch and MLflow

    before = tracker.champion(candidate.name, ALIAS)
    better, why = _compare(candidate, before, tracker)
    registered = tracker.register(
        name=candidate.name,
        key=candidate.winner.run,
        model=make_model_arguments(bundle, _describe_training(candidate)),
        tags=_make_tags(candidate),
        description=_make_description(candidate, why),
        alias=ALIAS if better else None,
    )
    if registered is None:
        return None
    again = before is not None and registered.version == before.version  # by a resume of a sweep that has ended
    if not better and before and not again:
        notify(f"{candidate.name}: version {before.version} stays {ALIAS}; {why}")
    champion = again or registered.alias == ALIAS
    uri = f"models:/{candidate.name}@{ALIAS}" if champion else registered.uri
    return {"name": candidate.name, "version": registered.version, "uri": uri, "champion": champion}


def _compare(candidate: Candidate, before: RegisteredModel | None, tracker: Tracker) -> tuple[bool, str]:
    """Say whether the winner becomes the champion, and why."""
    ours = format_objective(candidate.winner.score)
    if before is None:
        return True, f"it is the first champion, with a mean return of {ours} on {candidate.episodes}"
    who = f"version {before.version}"
    if candidate.certification is None and before.tags.get("rltune.certified") == "true":
        return False, f"{who} is certified and this one is not"
    theirs = _score_of(before, candidate, tracker)
    if theirs is None:
        return False, f"{who} could not be evaluated on {candidate.episodes}"
    word = "better than" if candidate.winner.score > theirs else "not better than"
    why = f"a mean return of {ours} is {word} the {format_objective(theirs)} of {who} on {candidate.episodes}"
    return candidate.winner.score > theirs, why


def _score_of(before: RegisteredModel, candidate: Candidate, tracker: Tracker) -> float | None:
    """Return the champion's score on the candidate's episodes: noted, else played now; None if it cannot play."""
    if before.tags.get("rltune.episodes") == candidate.episodes and "rltune.score" in before.tags:
        return float(before.tags["rltune.score"])
    with tempfile.TemporaryDirectory(prefix="rltune-champion-") as folder:
        files = tracker.fetch(before, Path(folder))
        if files is None:
            return None
        from rltune.policies.evaluation import evaluate
        from rltune.policies.policy import load_policy

        try:
            policy = load_policy(files)
            episodes = candidate.config.certify.champion_episodes
            return evaluate(policy, episodes, EVALUATION_SEED, env=None).mean
        except PolicyError:  # of other spaces, or by an rltune that wrote other files
            return None


def _make_tags(candidate: Candidate) -> dict[str, str]:
    tags = {
        "rltune.score": repr(candidate.winner.score),
        "rltune.episodes": candidate.episodes,
        "rltune.sweep": candidate.sweep,
        "rltune.env": candidate.config.env.id,
        "rltune.configuration": candidate.winner.name,
        "rltune.certified": "false",
    }
    found = candidate.certification
    if found and found.policy:
        best, policy = found.best(), found.policy
        tags |= {
            "rltune.certified": "true",
            "rltune.iqm": f"{best.iqm:.6g}",
            "rltune.interval": f"{best.low:.6g} to {best.high:.6g}" if best.has_interval else "-",
            "rltune.failed_seeds": f"{len(best.failed_seeds)} of {best.num_seeds}",
            "rltune.policy_interval": f"{policy.low:.6g} to {policy.high:.6g}",
        }
    return tags


def _make_description(candidate: Candidate, why: str) -> str:
    """Describe in Markdown where it comes from, why it is the champion or not, and the certification's table."""
    winner, found = candidate.winner, candidate.certification
    lines = [f"{winner.name.capitalize()} of sweep {candidate.sweep}. As {ALIAS}: {why}."]
    if found and found.policy:
        policy = found.policy
        lines += [
            "",
            f"Retrained on seed {policy.seed}; the mean of {policy.episodes} fresh episodes lies between "
            f"{format_objective(policy.low)} and {format_objective(policy.high)}, 95 times in a hundred.",
            "",
            "| configuration | IQM over seeds | 95% interval | better than control | failed seeds | |",
            "|---|---|---|---|---|---|",
        ]
        for one in found.configurations:
            odds = "" if one.improvement is None else f"{one.improvement:.0%}"
            span = f"{format_objective(one.low)} to {format_objective(one.high)}" if one.has_interval else "-"
            score, failed = format_objective(one.iqm if one.per_seed else None), len(one.failed_seeds)
            lines.append(f"| {one.label} | {score} | {span} | {odds} | {failed} | {found.verdict(one)} |")
    return "\n".join(lines)


def _describe_training(candidate: Candidate) -> dict[str, Any]:
    """Describe what the model carries besides its policy."""
    found = candidate.certification
    return {
        "configuration": candidate.winner.name,
        "training_config": format_settings(candidate.config),
        "certification": found.summary() if found else None,
    }
