"""Register a sweep's winner in MLflow; it becomes the champion only if it beats the present one on the same episodes.

Runs in the driver, at the end of the sweep.
"""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rltune.certification.description import define_columns, explain_table, make_table
from rltune.certification.finalists import EVALUATION_SEED, Finalist
from rltune.certification.result import Certification, Configuration
from rltune.certification.selection import Player
from rltune.envs.objective import Objective
from rltune.envs.searched import SEARCHED, set_env_arguments
from rltune.envs.spec import EnvSpec, spec_of
from rltune.errors import RltuneError
from rltune.formatting import format_interval, format_objective
from rltune.records import Direction, RunKey
from rltune.tracking.model_registry import ModelRegistry, RegisteredModel, RegistryError

if TYPE_CHECKING:
    from rltune.policies.result import Evaluation

ALIAS = "champion"
ENV_TAG = "rltune.env_digest"


@dataclass(frozen=True)
class Candidate:
    """A sweep's winner, before it is registered as a model version in MLflow.

    Attributes:
        winner: The policy, with its score on the episodes that are the same in every sweep.
        certification: The certification that it won; None if it was not certified.
        sweep: The sweep's name.
        env_name: The environment's name, with which the model's name begins.
        algorithm: The algorithm's name, with which it ends.
        env: The environment in which the winner is compared with the champion: that of ``certify.env``.
        num_episodes: The number of episodes on which the winner was scored.
        settings: The sweep's settings as YAML, which are stored with the model.
        copies: How many copies of the environment the sweep has in a process; the sweep of the champion may have had
            more. None: as many as that one.
    """

    winner: Finalist
    certification: Certification | None
    sweep: str
    env_name: str
    algorithm: str
    env: EnvSpec
    num_episodes: int
    settings: str
    copies: int | None = None

    @property
    def name(self) -> str:
        """The name under which the winner is registered in MLflow, such as ``cartpole-ppo``."""
        return f"{self.env_name}-{self.algorithm}"

    @property
    def episodes(self) -> str:
        """The episodes on which the winner was scored, in words; only scores on the same episodes are comparable."""
        return f"{self.num_episodes} episodes of {self.env.id}, environment seeds from {EVALUATION_SEED}"

    @property
    def objective(self) -> Objective:
        """The objective that the winner's score measures."""
        return Objective.from_settings(self.env.objective)


def register_champion(
    candidate: Candidate,
    registry: ModelRegistry,
    find_run: Callable[[RunKey], str],
    notify: Callable[[str], None],
    player: Player,
) -> dict[str, Any] | None:
    """Register the winner as a model version; it becomes the champion if it beats the present one or is the first.

    Args:
        candidate: The winner.
        registry: MLflow's.
        find_run: Returns the id of a trial's MLflow run.
        notify: Shows the user a line.
        player: Plays the candidate's episodes with the present champion.

    Returns:
        The version for the summary; None for a policy that cannot be registered.

    Raises:
        RegistryError: MLflow has not answered in time, or it refuses.
        CallGivenUpError: The sweep has to end.
    """
    bundle = candidate.winner.folder / "policy"
    if not bundle.is_dir():
        notify("the winner is not registered, because its network runs only with RLlib")
        return None
    from rltune.policies.mlflow_model import make_model_arguments  # Imported here because torch and MLflow load slowly.

    run_id = find_run(candidate.winner.run)
    before, newest = registry.look_up(candidate.name, ALIAS)
    better, why = _compare(candidate, before, registry, player)
    with _open_model(bundle, player) as files:
        registered = registry.register(
            name=candidate.name,
            run_id=run_id,
            model=make_model_arguments(files, _describe_training(candidate)),
            tags=_make_tags(candidate),
            description=_make_description(candidate, why),
            alias=ALIAS if better else None,
            about=(
                f"Policies of {candidate.algorithm} for {candidate.env.id}: each version is the winner of "
                f"a sweep, and `{ALIAS}` the best of them on the same episodes. "
                f"`rltune.load_policy('models:/{candidate.name}@{ALIAS}')` loads it."
            ),
            newest=newest,
            rank=partial(_rank, candidate),
        )
    # Resuming a finished sweep registers the winner again, and MLflow's registry then returns the existing version.
    is_same = before is not None and registered.version == before.version
    is_champion = is_same or registered.alias == ALIAS
    if is_same:
        why = "as before"
    elif better and not is_champion:
        why = "a sweep that ended at the same time has registered a better one"
    return {
        "name": candidate.name,
        "version": registered.version,
        "uri": registered.uri,  # The alias may move to another version later, so the URI has the number.
        "champion": is_champion,
        "why": why,
    }


@contextlib.contextmanager
def _open_model(bundle: Path, player: Player) -> Iterator[Path]:
    """Yield the files of the model: the bundle and, if an extractor of the user's is in it, a graph of its network.

    The graph is made in a process of its own, because that runs the extractor.
    """
    description = bundle / "policy.json"
    if not (description.is_file() and "extractor" in json.loads(description.read_text(encoding="utf-8"))):
        yield bundle  # The policies of several agents have no extractors.
        return
    with tempfile.TemporaryDirectory(prefix="rltune-model-") as scratch:
        files = Path(scratch) / "policy"
        shutil.copytree(bundle, files)
        with player.open(0):
            future = player.start("rltune.policies.extractors:write_graph", folder=str(files))
            failure = "the registered policy has no ONNX graph, and acts with trust=true alone"
            player.finish(future, "exporting the policy to ONNX", failure)
        yield files


def _compare(
    candidate: Candidate,
    before: RegisteredModel | None,
    registry: ModelRegistry,
    player: Player,
) -> tuple[bool, str]:
    """Decide whether the winner becomes the champion, and return the decision and its reason in words."""
    objective, score = candidate.objective, candidate.winner.score
    ours = f"a mean {objective.name} of {format_objective(score)}"
    is_scored = candidate.winner.evaluation is not None
    if before is None and not is_scored:
        return True, "it is the first champion; its policy was not evaluated"
    if before is None:
        return True, f"it is the first champion, with {ours} on {candidate.episodes}"
    sweep = before.tags.get("rltune.sweep")
    who = f"version {before.version}" + (f" (sweep {sweep})" if sweep else "")
    if before.tags.get(ENV_TAG, candidate.env.digest) != candidate.env.digest:
        return False, (
            f"{who} was measured in another environment ({before.tags.get('rltune.env')}; env.id, env.kwargs, "
            "env.wrappers, certify.env or the objective differ), so that their scores cannot be compared; "
            f"env.name={candidate.env_name}-2 gives this policy a champion of its own"
        )
    if candidate.certification is None and before.tags.get("rltune.certified") == "true":
        return False, f"{who} is certified and this policy is not"
    if not is_scored:  # The search's score is no mean of these episodes.
        return False, f"this policy was not evaluated on {candidate.episodes}"
    theirs = _find_score(before, candidate, registry, player)
    if theirs is None:
        return False, f"{who} could not be evaluated on {candidate.episodes}"
    is_better = objective.direction.is_better(score, theirs)
    comparison = ("" if is_better else "not ") + ("higher" if objective.direction is Direction.MAX else "lower")
    return is_better, f"{ours} is {comparison} than the {format_objective(theirs)} of {who} on {candidate.episodes}"


def _rank(candidate: Candidate, version: RegisteredModel) -> tuple[bool, float, int]:
    """Return the sort key by which sweeps that end at the same time choose their champion; incomparable is lowest."""
    tags = version.tags
    if (tags.get(ENV_TAG), tags.get("rltune.episodes")) != (candidate.env.digest, candidate.episodes):
        return False, -math.inf, 0
    score = candidate.objective.direction.sign * float(tags["rltune.score"]) if "rltune.score" in tags else -math.inf
    return tags.get("rltune.certified") == "true", score, -int(version.version)


def _find_score(before: RegisteredModel, candidate: Candidate, registry: ModelRegistry, player: Player) -> float | None:
    """Return the champion's score on the candidate's episodes: read from tags or evaluated; None if neither works."""
    has_score = before.tags.get("rltune.episodes") == candidate.episodes and "rltune.score" in before.tags
    # Without the environment's tag, the score may come from another environment with the same id.
    if has_score and ENV_TAG in before.tags:
        return float(before.tags["rltune.score"])
    with tempfile.TemporaryDirectory(prefix="rltune-champion-") as folder:
        from rltune.policies.policy import load_policy

        try:
            files = registry.fetch(before, Path(folder))
            policy = load_policy(files)
        except (RegistryError, RltuneError):  # Its files are gone, or come from an incompatible version of rltune.
            return None
        # With the tag, its sweep has compared champions in this environment, whichever it was trained in.
        if ENV_TAG not in before.tags and spec_of(policy.info["env"]).digest != candidate.env.digest:
            return None
        if (env := _set_searched(candidate.env, policy.info.get(SEARCHED) or {})) is None:
            return None
        with player.open(candidate.num_episodes):
            future = player.start_evaluation(
                Path(files), candidate.num_episodes, env=env.to_dict(), copies=candidate.copies, trust=False
            )
            task, who = "evaluating the present champion for comparison", f"version {before.version}"
            theirs = player.finish_evaluation(future, task, who)
    return theirs.mean if theirs else None


def _set_searched(env: EnvSpec, values: Any) -> EnvSpec | None:
    """Return the environment of the comparison with the arguments that the champion's sweep has found for its policy.

    What is imported and called stays what this sweep's own settings name; None if the values are no such arguments.
    """
    try:
        spec = set_env_arguments(env, values)
    except (AttributeError, KeyError, TypeError):
        return None
    return None if spec.has_variables and not env.has_variables else spec


def _make_tags(candidate: Candidate) -> dict[str, str]:
    tags = {
        "rltune.sweep": candidate.sweep,
        "rltune.env": candidate.env.id,
        ENV_TAG: candidate.env.digest,
        "rltune.configuration": candidate.winner.name,
        "rltune.certified": "false",
    }
    if candidate.winner.evaluation:
        tags |= {"rltune.score": repr(candidate.winner.score), "rltune.episodes": candidate.episodes}
    if measured := candidate.winner.measured:
        tags["rltune.mean"] = repr(measured.mean)
        tags["rltune.policy_interval"] = _format_interval(measured)
    if candidate.certification and candidate.certification.policy:
        best = candidate.certification.best()
        tags |= {
            "rltune.certified": "true",
            "rltune.median": f"{best.median:.6g}",
            "rltune.interval": _format_interval(best),
            "rltune.failed_seeds": f"{len(best.failed_seeds)} of {best.num_seeds}",
        }
    return tags


def _format_interval(bounded: Evaluation | Configuration) -> str:
    return f"{bounded.low:.6g} to {bounded.high:.6g}" if bounded.low is not None else "-"


def _make_description(candidate: Candidate, why: str) -> str:
    """Write a model version's Markdown description: its origin, why it is the champion or not, and its scores."""
    winner, certification, measured = candidate.winner, candidate.certification, candidate.winner.measured
    lines = [f"{winner.name.capitalize()} of sweep {candidate.sweep}. As {ALIAS}: {why}.", ""]
    if certification and certification.policy:
        lines += [make_table(certification).to_markdown(), ""]
        lines += [
            f"- {note}" for note in (*explain_table(certification, candidate.objective), *define_columns(certification))
        ]
    elif measured:
        lines.append(
            f"On {len(measured.returns)} episodes that did not choose it, its mean {candidate.objective.name} is "
            f"{format_objective(measured.mean)}; its 95% interval: {format_interval(vars(measured))}."
        )
    return "\n".join(lines)


def _describe_training(candidate: Candidate) -> dict[str, Any]:
    """Return the model's metadata about its training: configuration, settings and certification."""
    return {
        "configuration": candidate.winner.name,
        "training_config": candidate.settings,
        "certification": candidate.certification.summary() if candidate.certification else None,
    }
