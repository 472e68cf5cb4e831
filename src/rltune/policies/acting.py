"""Decide whether a trained policy acts deterministically or by sampling, and store the decision with the policy.

A deterministic policy takes the most likely action or the mean. That is usually better than training, in which actions
are sampled. But where observations do not tell states apart, only a stochastic policy may reach the goal (Sutton &
Barto 2018, example 13.1). Runs wherever episodes are played.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rltune.checkpoints.store import MANIFEST, REPLAY, Store
from rltune.envs.objective import Objective
from rltune.envs.searched import TRAIN_ENV
from rltune.errors import PolicyError
from rltune.formatting import format_objective
from rltune.records import CheckpointRecord
from rltune.statistics import is_mean_better

if TYPE_CHECKING:
    from rltune.policies.evaluation import Copies

NUM_EPISODES = 20  # How many episodes a policy plays in each way of acting to compare them.
# The first of their environment seeds. No other evaluation plays these episodes, see `rltune.certification.finalists`.
FIRST_SEED = 2_100_000_003


def choose_acting(
    folder: str | Path,
    training_scores: Sequence[float],
    progress: Callable[[int, int], None] | None = None,
    copies: Copies | None = None,
    env: Mapping[str, Any] | None = None,
) -> dict[str, Any] | None:
    """Compare a checkpoint's deterministic policy with its training score, and where it is worse, with sampling.

    Both comparisons ask whether the 95% interval of a difference of two means excludes zero (Welch's t-test, see
    `rltune.statistics.is_mean_better`), so they are about standard errors of means. Deviations of single episodes
    would not do: a policy that fails in half of its episodes has a large one, and sampling that never fails would not
    count as better. The first comparison saves time, as most deterministic policies are not worse. The second one
    decides, because the training score is of slightly older weights. Chance alone passes both in about one of 100
    policies, and then the two ways are worth about the same.

    Args:
        folder: A checkpoint of the user's own sweep.
        training_scores: The scores of the training's last episodes, whose actions were sampled; below two of them
            nothing is compared.
        progress: As for `rltune.policies.evaluation.evaluate`.
        copies: The copies to play in; None makes some and closes them.
        env: What is changed of the environment for the episodes by which the sweep chooses. Scores of the training are
            not of these, and are compared with nothing. None: they are.

    Returns:
        The entry ``acting`` of the policy's files, if sampling is better: ``deterministic``, which is False,
        ``episodes``, the means ``deterministic_mean`` and ``sampled_mean``, and ``cut``, the number of deterministic
        episodes that did not end; mean and number are None if an episode that did not end has no score. None if the
        policy acts deterministically.
    """
    if len(training_scores) < 2:
        return None
    from rltune.policies.evaluation import evaluate, open_copies  # Imported here, because torch loads slowly.
    from rltune.policies.policy import load_playable
    from rltune.policies.uri import Source

    policy = load_playable(Source(str(folder), trust=True))
    if not policy.has_distribution:
        return None
    if env is None and TRAIN_ENV in policy.info:  # Training scores are of another environment, too.
        env = {}
    direction = Objective.from_settings((policy.info.get("env") or {}).get("objective")).direction
    with open_copies(copies) as shared:
        play = partial(evaluate, policy, NUM_EPISODES, FIRST_SEED, env, progress=progress, copies=shared)
        greedy = None
        # Episodes may have no score: those that are cut, or all that lack what the objective reads.
        with contextlib.suppress(PolicyError):
            greedy = play(deterministic=True)
        if greedy and env is None and not is_mean_better(training_scores, _repeat(greedy.scores), direction):
            return None
        sampled = play(deterministic=False)
        if greedy and not is_mean_better(_repeat(sampled.scores), _repeat(greedy.scores), direction):
            return None
    means = {"deterministic_mean": greedy and greedy.mean, "sampled_mean": sampled.mean}
    num_cut = greedy and len(greedy.cut) * (NUM_EPISODES // len(greedy.returns))
    return {"deterministic": False, "episodes": NUM_EPISODES, **means, "cut": num_cut}


def _repeat(scores: list[float]) -> list[float]:
    """Return the scores of all episodes that were to be played; if they are all equal, an evaluation has one."""
    return scores * NUM_EPISODES if len(scores) == 1 else scores


def describe_acting(acting: Mapping[str, Any]) -> str:
    """Describe the decision of `choose_acting` for sampling, as the end of a sentence about the policy."""
    sampled, greedy = (format_objective(acting[f"{way}_mean"]) for way in ("sampled", "deterministic"))
    limit = "at env.evaluation_steps for want of a time limit (+env.kwargs.max_episode_steps=1000)"
    other = f"the deterministic policy one of {greedy}"
    if acting["cut"] is None:
        other = f"episodes of the deterministic policy were cut {limit}"
    elif acting["cut"]:
        other += f", with {acting['cut']} episodes cut {limit}"
    start = f"acts by sampling its actions: on {acting['episodes']} episodes each"
    return f"{start}, that had a mean of {sampled}, and {other}"


def read_acting(folder: Path) -> dict[str, Any] | None:
    """Read from a checkpoint what `choose_acting` has decided; None if its policy acts deterministically."""
    described = [json.loads(path.read_text(encoding="utf-8")) for path in _find_descriptions(folder)]
    return next((about["acting"] for about in described if "acting" in about), None)


def save_acting(store: Store, record: CheckpointRecord, acting: Mapping[str, Any]) -> CheckpointRecord:
    """Save a copy of a checkpoint whose policy acts as `choose_acting` decided, and return the copy's record.

    It is a copy, because the ledger has recorded a digest of the checkpoint's files.

    Args:
        store: The sweep's.
        record: The checkpoint, whose files are complete.
        acting: What `choose_acting` returned.
    """
    path = f"{record.path}-{secrets.token_hex(4)}"
    folder = store.open(record)
    assert folder is not None  # The policy has just been played from it.
    with store.make_draft(path) as draft:
        shutil.copytree(folder, draft, dirs_exist_ok=True, ignore=shutil.ignore_patterns(MANIFEST, REPLAY))
        for description in _find_descriptions(draft):
            about = json.loads(description.read_text(encoding="utf-8"))
            description.write_text(json.dumps({**about, "acting": dict(acting)}, indent=1), encoding="utf-8")
        digest = store.save(draft, path)
    return replace(record, path=path, digest=digest, sequence=record.sequence + 1, replay=False)


def _find_descriptions(folder: Path) -> list[Path]:
    """List the files that describe a checkpoint's policy: a bundle's, those of several agents, or that for RLlib."""
    from rltune.policies.rllib_policy import INFO_FILE  # Imported here, because Gymnasium loads slowly.

    return [*(folder / "policy").rglob("policy.json"), *filter(Path.is_file, [folder / INFO_FILE])]
