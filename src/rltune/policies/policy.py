"""Load a trained policy from any URI, to act with it and to build its environment.

``load_policy`` neither starts nor imports Ray and unpickles nothing; ``rltune.load_algorithm`` does both, for those who
want to train on. ``uri`` finds the files, ``bundle_reader`` acts with them. Runs anywhere.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rltune.checkpoints.store import is_own_checkpoint
from rltune.errors import PolicyError
from rltune.ledger.sweep_ref import LATEST, SweepRef
from rltune.policies import bundle_reader
from rltune.policies.multi_agent import MultiAgentPolicy, is_multi_agent
from rltune.policies.rllib_policy import RLlibPolicy
from rltune.policies.uri import (
    NeedsRLlibError,
    Source,
    locate_policy,
    locate_trusted_algorithm,
    require_own_environment,
)


class Policy(bundle_reader.Policy):
    """A trained policy that knows the environment it was trained in, and raises errors in three parts."""

    def encode_observations(self, obs: Any) -> tuple[np.ndarray, bool]:
        """Turn observations into the network's input.

        Raises:
            PolicyError: ``obs`` fits neither one observation nor a batch, or holds what is no observation.
        """
        try:
            return super().encode_observations(obs)
        except ValueError as error:
            raise PolicyError(
                str(error), "observations of policy.observation_space", "policy.env().reset() gives one"
            ) from None

    def check_memory(self, state: Any, num_episodes: int) -> np.ndarray:
        """Give a memory as an array, zeros for None.

        Raises:
            PolicyError: It is the memory of another number of episodes, or of another policy.
        """
        try:
            return super().check_memory(state, num_episodes)
        except ValueError as error:
            raise PolicyError(
                f"this policy remembers its episodes: {error}",
                "one observation of each episode, as many as in the call before, and a state as it was returned",
                "policy.reset() where episodes begin, or policy.predict(obs, state, episode_start)",
            ) from None

    def env(self, **kwargs: Any) -> Any:
        """Build the Gymnasium environment that it was trained in, with its wrappers.

        Args:
            kwargs: Further arguments of the environment, such as ``render_mode="rgb_array"``.

        Raises:
            PolicyError: The policy's files name no environment, or one whose module somebody else has chosen.
        """
        from rltune.envs.build import make_env

        if not self.info.get("env"):
            raise PolicyError("this policy does not name its environment", "info['env']", "give evaluate an env=")
        require_own_environment(self.info["env"], self)
        return make_env(self.info["env"], **kwargs)


def load_policy(
    uri: str | Path,
    *,
    trust: bool = False,
    output_dir: str | Path = "outputs",
    storage: str | None = None,
    ledger_url: str | None = None,
) -> Policy | MultiAgentPolicy:
    """Load a trained policy. Starts no Ray, unpickles nothing and runs no code of its author.

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
    return load_bundle(Source(str(uri), SweepRef(LATEST, output_dir, storage, ledger_url), trust))


def load_bundle(source: Source) -> Policy | MultiAgentPolicy:
    """Load a policy as `load_policy` does.

    Raises:
        PolicyError: There is no such policy, or its files are damaged.
    """
    with locate_policy(source) as folder:
        try:
            policy = MultiAgentPolicy(folder) if is_multi_agent(folder) else Policy.load(folder)
        except (ValueError, OSError) as error:
            raise PolicyError(
                f"policy={source.uri}: {error}",
                "a bundle as a trial's checkpoint holds it",
                "load another checkpoint of the trial",
            ) from error
        # Asked only when it matters: the files of a checkpoint may be large.
        policy.is_trusted = (lambda: True) if source.trust else partial(is_own_checkpoint, folder.parent)
        return policy


def load_playable(source: Source) -> Policy | MultiAgentPolicy | RLlibPolicy:
    """Load a policy to evaluate: as `load_policy` does, or by RLlib's own parts where its network needs them.

    RLlib's parts run code when they are loaded. Those of one's own sweeps are taken; others need ``trust``.

    Raises:
        PolicyError: As for `load_policy` and, where RLlib is needed, as for `load_algorithm`.
    """
    try:
        return load_bundle(source)
    except NeedsRLlibError:
        with locate_trusted_algorithm(source) as folder:
            return RLlibPolicy(folder.parent)
