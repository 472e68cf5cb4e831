"""Load a trained policy from a URI, act with it, and build the environment that it was trained in.

``load_policy`` neither starts nor imports Ray and unpickles nothing; ``rltune.load_algorithm`` does both, for those who
want to train on. ``uri`` finds the files, ``bundle_reader`` acts with them. Runs anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from rltune.checkpoints.store import is_own_checkpoint
from rltune.envs.actions import split_batch
from rltune.envs.layout import make_space
from rltune.envs.masks import AUTO, MaskReader, MaskSource
from rltune.errors import PolicyError, RltuneError, choices, describe_exception
from rltune.formatting import spell_command
from rltune.ledger.sweep_ref import LATEST, SweepRef
from rltune.policies import bundle_reader
from rltune.policies.rllib_policy import RLlibPolicy
from rltune.policies.uri import (
    NeedsRLlibError,
    Source,
    locate_policy,
    locate_trusted_algorithm,
    read_environment,
    require_own_code,
    require_own_environment,
    spell_uri,
)


class Policy(bundle_reader.BundlePolicy):
    """A trained policy that can build its training environment, and whose errors say what is allowed and what to do."""

    def make_network(self) -> bundle_reader.Network | bundle_reader.GraphNetwork:
        """Make the network, of a policy with an extractor by its class if its author is trusted, else as a graph.

        Raises:
            PolicyError: The class may not be imported, or cannot be, and there is no graph.
        """
        if not self.extractor or (self.graph is not None and not self.is_trusted()):
            return super().make_network()
        from rltune.policies.extractors import ExtractorSpec, FeatureExtractor

        spec = ExtractorSpec.from_dict(self.extractor)
        require_own_code(spec.module, self, f"encoder {spec.target}")
        try:
            extractor = FeatureExtractor(spec, self.observation_space, self.layout)
            return bundle_reader.Network(self._spec, self._weights, extractor)
        except Exception as error:  # The class may be another one than in the training.
            what = error.what if isinstance(error, RltuneError) else describe_exception(error)
            raise PolicyError(
                f"this policy's encoder {spec.target} cannot be made: {what}",
                "the class as it was in the training, and its module on PYTHONPATH",
                "without trust=true it acts by its ONNX graph" if self.graph else f"put {spec.module} on PYTHONPATH",
            ) from error

    def prepare_inputs(self, obs: Any, state: Any, action_mask: Any = None) -> tuple[np.ndarray, np.ndarray, bool]:
        """Encode observations and the hidden state as inputs of the network.

        Raises:
            PolicyError: ``obs`` fits neither one observation nor a batch, or holds what is no observation. Or the
                memory is of another number of episodes, or of another policy.
        """
        try:
            return super().prepare_inputs(obs, state, action_mask)
        except ValueError as error:
            if self.needs_mask and action_mask is None:
                mask = MaskSource.parse((self.info.get("env") or {}).get("action_mask") or AUTO)
                spelled = mask.spelled if mask and mask.spelled else "mask"
                raise PolicyError(
                    str(error), "an observation and its action_mask", f"policy.act(obs, action_mask={spelled})"
                ) from None
            memory = " and one observation of each episode that it remembers" if self.memory_size else ""
            raise PolicyError(
                str(error),
                f"observations of policy.observation_space{memory}",
                f"policy.env().reset()[0] gives one{'; policy.reset() begins other episodes' if memory else ''}",
            ) from None

    def env(self, **kwargs: Any) -> Any:
        """Build the Gymnasium environment in which this policy was trained, with its wrappers.

        Args:
            kwargs: Further arguments of the environment, such as ``render_mode="rgb_array"``.

        Raises:
            PolicyError: The policy's files name no environment, or one whose module somebody else has chosen.
        """
        return _build_env(self, kwargs)


class MultiAgentPolicy:
    """The policies of a multi-agent environment, which act on a mapping from agents to observations.

    Attributes:
        info: Where they came from, as for one agent's policy.
        owners: The name of each agent's policy.
        policies: The policies by name; each acts for one agent or more.
        deterministic: As for one agent's policy; all of them act in the same way.
        has_distribution: As for one agent's policy.
        spaces: ``observation`` and ``action``, by agent.
    """

    is_trusted: Callable[[], bool] = staticmethod(lambda: False)

    def __init__(self, folder: Path) -> None:
        self.owners = bundle_reader.read_owners(folder)
        names = dict.fromkeys(self.owners.values())
        self.policies = {name: Policy.load(folder / bundle_reader.POLICIES / name) for name in names}
        first = next(iter(self.policies.values()))
        self.info: dict[str, Any] = first.info
        self.deterministic, self.has_distribution = first.deterministic, first.has_distribution
        self.network = torch.nn.ModuleDict({name: policy.network for name, policy in self.policies.items()})
        self.spaces = {
            key: {agent: self.policies[owner].spaces[key] for agent, owner in self.owners.items()}
            for key in ("observation", "action")
        }

    def __repr__(self) -> str:
        """Describe the policies in one line: algorithm, environment and the names of the agents."""
        env = (self.info.get("env") or {}).get("id", "an unnamed environment")
        way = "" if self.deterministic else ", sampled"
        return f"<MultiAgentPolicy {self.info.get('algo', '?')} for {env}: {', '.join(self.owners)}{way}>"

    @property
    def observation_space(self) -> Any:
        """The observation spaces of all agents as one Dict space."""
        return self._join_spaces("observation")

    @property
    def action_space(self) -> Any:
        """The action spaces of all agents as one Dict space."""
        return self._join_spaces("action")

    def _join_spaces(self, key: str) -> Any:
        from gymnasium.spaces import Dict

        return Dict({agent: make_space(space) for agent, space in self.spaces[key].items()})

    def act(
        self, obs: Mapping[str, Any], deterministic: bool | None = None, rng: np.random.Generator | int | None = None
    ) -> dict[str, Any]:
        """Choose an action for each agent whose observation is given.

        Args:
            obs: One observation or a batch of them by agent.
            deterministic: As for one agent's ``act``.
            rng: As for one agent's ``act``.

        Returns:
            The actions by agent, as ``env.step`` takes them.

        Raises:
            PolicyError: There is no such agent, or an observation fits neither one nor a batch.
        """
        rng = np.random.default_rng(rng) if isinstance(rng, int) else rng
        unknown = next((agent for agent in obs if agent not in self.owners), None)
        if unknown is not None:
            raise PolicyError(f"there is no agent {unknown!r}", choices(str(unknown), self.owners), "see policy.owners")
        return {agent: self.policies[self.owners[agent]].act(rows, deterministic, rng) for agent, rows in obs.items()}

    def stack(self, observations: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """Return observations of several environments as `predict` takes them."""
        return observations

    def predict(
        self,
        obs: Sequence[Mapping[str, Any]],
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool | None = None,
        rng: bundle_reader.Rng = None,
    ) -> tuple[list[dict[str, Any]], None]:
        """Choose the actions of all agents in several environments, with one forward pass per policy.

        Args:
            obs: For each environment, the observations by agent.
            state: Not used: these policies have no memory.
            episode_start: Not used.
            deterministic: As for `act`.
            rng: As for `act`, or a generator for each environment.

        Returns:
            For each environment, the actions by agent; and no state.
        """
        groups: dict[str, list[tuple[int, str]]] = {}
        for i, agents in enumerate(obs):
            for agent in agents:
                groups.setdefault(self.owners[agent], []).append((i, agent))
        actions: list[dict[str, Any]] = [{} for _ in obs]
        for name, pairs in groups.items():
            batch = self.policies[name].stack([obs[i][agent] for i, agent in pairs])
            draws = [rng[i] for i, _ in pairs] if isinstance(rng, Sequence) else rng
            chosen = self.policies[name].act(batch, deterministic, draws)
            for (i, agent), action in zip(pairs, split_batch(chosen, len(pairs)), strict=True):
                actions[i][agent] = action
        return actions, None

    def env(self, **kwargs: Any) -> Any:
        """Build the PettingZoo environment in which these policies were trained.

        Args:
            kwargs: Further arguments of the environment, such as ``render_mode="rgb_array"``.

        Raises:
            PolicyError: As for one agent's policy.
        """
        return _build_env(self, kwargs)


def _build_env(policy: Policy | MultiAgentPolicy, arguments: Mapping[str, Any]) -> Any:
    from rltune.envs.build import make_env

    spec = read_environment(policy)
    if not spec.get("id"):
        raise PolicyError("this policy does not name its environment", "info['env']", "give evaluate an env=")
    require_own_environment(spec, policy)
    return make_env(spec, **arguments)


def make_mask_reader(policy: AnyPolicy, env: Any) -> MaskReader | None:
    """Make what reads the masks of an environment for a policy that does not act without; None if it needs none.

    Args:
        policy: The policy.
        env: An environment as `rltune.envs.build.make_env` builds it.
    """
    if not getattr(policy, "needs_mask", False):
        return None
    source = MaskSource.parse((policy.info.get("env") or {}).get("action_mask") or AUTO)
    return source and MaskReader(env, source)


AnyPolicy: TypeAlias = bundle_reader.BundlePolicy | MultiAgentPolicy | RLlibPolicy


def require_single_agent(
    policy: bundle_reader.BundlePolicy | MultiAgentPolicy, what: str
) -> bundle_reader.BundlePolicy:
    """Return the policy, and refuse one of a multi-agent environment.

    Args:
        policy: The policy of one agent, or of several.
        what: The use that takes the policy of one agent, for the error.

    Raises:
        PolicyError: It is of several agents.
    """
    if isinstance(policy, MultiAgentPolicy):
        raise PolicyError(
            f"{what} takes the policy of one agent; this one has {', '.join(policy.owners)}",
            "the policy of one agent",
            f"rltune.load_policy gives all of them, {spell_command('evaluate')} plays them",
        )
    return policy


def load_policy(
    uri: str | Path,
    *,
    trust: bool = False,
    output_dir: str | Path = "outputs",
    storage: str | None = None,
    ledger_url: str | None = None,
) -> Policy | MultiAgentPolicy:
    """Load a trained policy from its URI. Starts no Ray, loads no pickle and runs no code of the policy's author.

    Args:
        uri: ``models:/<name>@<alias>``, ``models:/<name>/<version>``, ``runs:/<id>``, ``sweep:<name>`` (its
            winner; ``sweep:latest`` the newest sweep's), ``sweep:<name>/<trial>``, or a checkpoint's folder.
        trust: Take a sweep's checkpoint although its files are not those that the ledger recorded, and let ``env`` and
            `rltune.evaluate` import the modules that a policy names whose author is somebody else.
        output_dir: The folder of all sweeps.
        storage: The setting ``storage`` with which a sweep was run, such as ``s3://bucket/prefix``: a sweep that is not
            in ``output_dir`` is fetched from there.
        ledger_url: The address of a sweep's ledger with its login, where its settings name a database: no file keeps a
            login. None is the address in the settings.

    Returns:
        A `Policy`; where there are several agents a `MultiAgentPolicy`, which acts on dicts.

    Raises:
        PolicyError: There is no such policy, or its files are damaged.
    """
    return load_bundle(Source(spell_uri(uri), SweepRef(LATEST, output_dir, storage, ledger_url), trust))


def load_bundle(source: Source) -> Policy | MultiAgentPolicy:
    """Load a policy's bundle without RLlib, as `load_policy` does for an already parsed URI.

    Raises:
        PolicyError: There is no such policy, or its files are damaged.
    """
    with locate_policy(source) as folder:
        try:
            policy = read_policy(folder)
        except (ValueError, OSError) as error:
            raise PolicyError(
                f": {error}",
                "a bundle as a trial's checkpoint holds it",
                "load another checkpoint of the trial",
                key="policy",
                value=source.uri,
            ) from error
        # Whether the checkpoint is the user's own is only found out if it matters, because this reads all of its files.
        policy.is_trusted = (lambda: True) if source.trust else partial(is_own_checkpoint, folder.parent)
        return policy


def read_policy(folder: Path) -> Policy | MultiAgentPolicy:
    """Read a policy bundle, or the bundles of a multi-agent checkpoint, from a folder.

    Args:
        folder: A bundle, or the policies of several agents.

    Raises:
        ValueError: The files are damaged or of a later format.
    """
    return MultiAgentPolicy(folder) if bundle_reader.read_owners(folder) else Policy.load(folder)


def load_playable(source: Source) -> Policy | MultiAgentPolicy | RLlibPolicy:
    """Load a policy for an evaluation: its bundle, or with RLlib if a bundle cannot express its network.

    RLlib's parts run code when they are loaded. Those of one's own sweeps are taken; others need ``trust``.

    Raises:
        PolicyError: As for `load_policy` and, where RLlib is needed, as for `load_algorithm`.
    """
    try:
        return load_bundle(source)
    except NeedsRLlibError:
        with locate_trusted_algorithm(source) as folder:
            return RLlibPolicy(folder.parent)
