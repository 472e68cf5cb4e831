"""The policies of several agents as one: written, acting on dicts, evaluated. Runs anywhere.

A team is a folder with ``policy.json`` (who acts by which policy) and one bundle for each policy under ``policies/``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from rltune import agents, bundle, bundle_reader, environment
from rltune.errors import PolicyError, choices

if TYPE_CHECKING:
    from mlflow.types import Schema

MARK, MEMBERS = "policy.json", "policies"
NUM_ENVS = 8  # at once in an evaluation
Pair = tuple[int, str]


class Team:
    """The policies of several agents, acting on observations by agent.

    Attributes:
        info: Where they came from, as for one agent's policy.
        owners: The name of each agent's policy.
        policies: By name; each acts for one agent, or for a batch of them.
        network: All of their networks.
        spaces: ``observation`` and ``action``, by agent.
    """

    def __init__(self, folder: Path) -> None:
        about = json.loads((folder / MARK).read_text(encoding="utf-8"))
        if about.get("format") != bundle_reader.FORMAT:
            raise ValueError(f"{folder} has format {about.get('format')}, this rltune reads {bundle_reader.FORMAT}")
        self.owners: dict[str, str] = about["owners"]
        names = dict.fromkeys(self.owners.values())
        self.policies = {name: bundle_reader.load(folder / MEMBERS / name) for name in names}
        self.info: dict[str, Any] = next(iter(self.policies.values())).info
        self.network = torch.nn.ModuleDict({name: policy.network for name, policy in self.policies.items()})
        self.spaces = {
            key: {agent: self.policies[owner].spaces[key] for agent, owner in self.owners.items()}
            for key in ("observation", "action")
        }

    def act(
        self, obs: Mapping[str, Any], deterministic: bool = True, rng: np.random.Generator | int | None = None
    ) -> dict[str, Any]:
        """The actions of the agents whose observations are given.

        Args:
            obs: By agent, one observation or a batch of them each.
            deterministic: As for one agent's ``act``.
            rng: As for one agent's ``act``.

        Returns:
            By agent, what ``env.step`` takes.

        Raises:
            PolicyError: There is no such agent, or an observation fits neither one nor a batch.
        """
        rng = np.random.default_rng(rng) if isinstance(rng, int) else rng
        unknown = next((agent for agent in obs if agent not in self.owners), None)
        if unknown is not None:
            raise PolicyError(f"there is no agent {unknown!r}", choices(str(unknown), self.owners), "see policy.owners")
        try:
            return {agent: self.policies[self.owners[agent]].act(one, deterministic, rng) for agent, one in obs.items()}
        except ValueError as error:
            raise PolicyError(
                str(error), "observations as the environment gives them", "policy.env().reset() gives some"
            ) from None

    def env(self, **kwargs: Any) -> Any:
        """The PettingZoo environment that they were trained in.

        Args:
            kwargs: Further arguments of the environment, such as ``render_mode="rgb_array"``.
        """
        return environment.make(self.info["env"], **kwargs)


def is_team(folder: Path) -> bool:
    """Whether a policy's folder holds those of several agents."""
    return (folder / MEMBERS).is_dir()


def write(
    modules: Mapping[str, Any],
    folder: Path,
    *,
    info: dict[str, Any],
    actions: Literal["normalize", "clip", "raw"] = "normalize",
) -> None:
    """Write RLlib's modules as a team.

    Args:
        modules: A live RLModule for each policy.
        folder: Where to; made if missing.
        info: Where they came from; ``info["env"]`` says who acts by which.
        actions: As for `rltune.bundle.write`.

    Raises:
        ValueError: A module cannot be expressed.
    """
    spec = environment.spec_of(info["env"])
    env = agents.make(spec)
    spaces, owners = agents.policy_spaces(spec, env), agents.owners(spec.policies or "", env.possible_agents)
    env.close()
    for name, module in modules.items():
        place = folder / MEMBERS / name
        bundle.write(module, place, info=info, observation_space=spaces[name][0], actions=actions)
    about = {"format": bundle_reader.FORMAT, "owners": owners}
    # Last, so that a folder with a policy.json is a whole one.
    (folder / MARK).write_text(json.dumps(about, indent=1, allow_nan=False), encoding="utf-8")


def one_agent(policy: Any, what: str) -> bundle_reader.Policy:
    """The policy, where what is done with it takes that of one agent.

    Args:
        policy: One agent's, or a team.
        what: What is done with it.

    Raises:
        PolicyError: It is a team.
    """
    if isinstance(policy, Team):
        raise PolicyError(
            f"{what} takes the policy of one agent; this one has {', '.join(policy.owners)}",
            "the policy of one agent",
            "rltune.load_policy gives all of them, python -m sweeps.evaluate plays them",
        )
    found: bundle_reader.Policy = policy
    return found


@dataclass(frozen=True)
class Wanted:
    """Which episodes to play; see `rltune.policy.evaluate`."""

    episodes: int
    seed: int
    deterministic: bool
    progress: Callable[[int, int], None] | None


def play(team: Team, spec: Mapping[str, Any], wanted: Wanted) -> tuple[np.ndarray, np.ndarray]:
    """Returns, summed over the agents, and lengths of episodes, in the order of the environment's seeds.

    Raises:
        PolicyError: The environment has other agents or spaces.
    """
    envs = [environment.make(spec) for _ in range(min(wanted.episodes, NUM_ENVS))]
    try:
        _check(team, envs[0], str(spec["id"]))
        return _played(team, envs, wanted)
    finally:
        for env in envs:
            env.close()


def _check(team: Team, env: Any, env_id: str) -> None:
    for agent, spaces in agents.spaces_of(env).items():
        known = agent in team.owners
        trained = tuple(team.spaces[key][agent] for key in ("observation", "action")) if known else ()
        if tuple(map(bundle.describe_space, spaces)) != trained:
            raise PolicyError(
                f"env={env_id}: {agent} observes {spaces[0]} and acts in {spaces[1]}",
                "the spaces that it was trained with" if known else f"these agents: {', '.join(team.owners)}",
                "leave env out to use the one that it was trained in",
            )


def _played(team: Team, envs: list[Any], wanted: Wanted) -> tuple[np.ndarray, np.ndarray]:
    returns, lengths = np.zeros(wanted.episodes), np.zeros(wanted.episodes, dtype=np.int64)
    current = dict(enumerate(range(len(envs))))  # the episode of each environment
    seen = {place: env.reset(seed=wanted.seed + place)[0] for place, env in enumerate(envs)}
    waiting, done, rng = len(envs), 0, np.random.default_rng(wanted.seed)
    while current:
        actions = _actions(team, {place: seen[place] for place in current}, wanted.deterministic, rng)
        for place, episode in list(current.items()):
            env = envs[place]
            seen[place], rewards, *_ = env.step(actions[place])
            returns[episode] += sum(map(float, rewards.values()))
            lengths[episode] += 1
            if env.agents:
                continue
            done += 1
            if wanted.progress:
                wanted.progress(done, wanted.episodes)
            del current[place]
            if waiting < wanted.episodes:
                current[place], waiting = waiting, waiting + 1
                seen[place] = env.reset(seed=wanted.seed + current[place])[0]
    return returns, lengths


def _actions(
    team: Team, seen: Mapping[int, Mapping[str, Any]], deterministic: bool, rng: np.random.Generator
) -> dict[int, dict[str, Any]]:
    """One forward pass for each policy, over all environments and agents that it acts for."""
    groups: dict[str, list[Pair]] = {}
    for place, obs in seen.items():
        for agent in obs:
            groups.setdefault(team.owners[agent], []).append((place, agent))
    actions: dict[int, dict[str, Any]] = {place: {} for place in seen}
    for name, pairs in groups.items():
        chosen = team.policies[name].act(np.stack([seen[place][agent] for place, agent in pairs]), deterministic, rng)
        for (place, agent), action in zip(pairs, chosen, strict=True):
            actions[place][agent] = action
    return actions


def model_arguments(folder: str | Path, carried: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What makes a team a model without rltune; see `rltune.policy.model_arguments`.

    Args:
        folder: The team's.
        carried: JSON-able facts for ``metadata``.
    """
    from mlflow.types import Schema, TensorSpec

    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")  # the console shows the progress
    team = Team(Path(folder))
    example = {}
    for agent, owner in team.owners.items():
        space = team.policies[owner].observation_space
        space.seed(0)
        example[agent] = np.stack([space.sample() for _ in range(2)])
    actions = team.act(example)
    outputs = [TensorSpec(action.dtype, (-1, *action.shape[1:]), agent) for agent, action in actions.items()]
    return as_model(folder, Schema(outputs), example, {"info": team.info, "spaces": team.spaces, **(carried or {})})


def as_model(folder: str | Path, outputs: Schema, example: Any, about: Mapping[str, Any]) -> dict[str, Any]:
    """What MLflow's ``log_model`` and ``save_model`` take for a policy or a team.

    Args:
        folder: Its files.
        outputs: What comes out of the model.
        example: Of what goes in.
        about: JSON-able, for ``metadata``.
    """
    from mlflow.models import ModelSignature

    here = Path(__file__).parent
    return {
        "python_model": str(here / "served.py"),
        "artifacts": {"policy": str(folder)},
        "code_paths": [str(here / "bundle_reader.py")],
        "signature": ModelSignature(outputs=outputs),
        "input_example": example,
        # Without the local tag of a CPU build ("+cpu"), which no package index has.
        "pip_requirements": [f"{name}=={version(name).split('+')[0]}" for name in ("mlflow", "numpy", "torch")],
        "metadata": {"rltune": dict(about)},
    }
