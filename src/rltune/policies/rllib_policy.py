"""Act with RLlib's own module and connectors if a policy bundle cannot express the network, such as DreamerV3's.

They come from the checkpoint as RLlib documents it for inference after training, each by its ``from_checkpoint``,
without Ray and without the algorithm, but with RLlib installed. They hold pickles: `uri.locate_trusted_algorithm` says
whose are taken. Such a policy is evaluated; it is neither registered nor exported. One private name of RLlib is used,
``MeanStdFilter._update_stats``. Runs anywhere.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rltune.cluster.ray_cluster import prepare_environment
from rltune.compat.rllib_internals import freeze_filters
from rltune.config.capabilities import network_of
from rltune.errors import PolicyError

if TYPE_CHECKING:
    from rltune.policies.bundle_reader import Rng

REASON_FILE, INFO_FILE = "policy-missing.txt", "policy-missing.json"
BEFORE, AFTER = "algorithm/env_runner/env_to_module_connector", "algorithm/env_runner/module_to_env_connector"
MODULE = "algorithm/learner_group/learner/rl_module/default_policy"
KEPT_STEPS = 64  # Of each episode so far, this many steps are kept, because RLlib's connectors look back over fewer.


def leave_reason(folder: Path, reason: str, info: Mapping[str, Any]) -> None:
    """Write into a checkpoint why it has no policy bundle, with the policy's metadata."""
    (folder / REASON_FILE).write_text(f"{reason}\n")
    (folder / INFO_FILE).write_text(json.dumps(dict(info)))


def is_rllib_policy(folder: Path) -> bool:
    """Return whether a checkpoint without a bundle contains the RLlib module and connectors that can act."""
    return (folder / INFO_FILE).is_file() and all((folder / part).is_dir() for part in (BEFORE, AFTER, MODULE))


class RLlibPolicy:
    """A policy that acts by RLlib's module and connectors, with the methods that an evaluation needs.

    It takes what networks take, as `rltune.envs.build.make_flat_env` gives it.

    DreamerV3's world model draws its latent state even where the action is its distribution's mode: the same seed
    gives the same episodes, deterministic or not.
    """

    # Its pickled files have been loaded already, so nothing is left to protect.
    is_trusted: Callable[[], bool] = staticmethod(lambda: True)

    def __init__(self, folder: Path) -> None:
        """Load RLlib's module and connectors from a checkpoint.

        Args:
            folder: The checkpoint, whose files run code when they are loaded.

        Raises:
            PolicyError: It lacks a part.
        """
        if not is_rllib_policy(folder):
            raise PolicyError(
                f"{folder} cannot act with RLlib either",
                f"{INFO_FILE} and algorithm/ with a module and connectors of one agent",
                "rltune.load_algorithm takes every checkpoint",
            )
        prepare_environment()
        from ray.rllib.connectors.env_to_module import EnvToModulePipeline
        from ray.rllib.connectors.module_to_env import ModuleToEnvPipeline
        from ray.rllib.core.rl_module import RLModule

        from rltune.policies.bundle_reader import HEADS  # The import of torch is slow, and others do not need it.

        for name in ("ray.rllib", "ray._common.deprecation"):
            logging.getLogger(name).setLevel(logging.ERROR)
        whole = folder.absolute()
        # RLlib's connectors use deprecated classes of RLlib and warn about it (ray 2.60).
        with warnings.catch_warnings(action="ignore"):
            self.network = RLModule.from_checkpoint(str(whole / MODULE))
            self._before = EnvToModulePipeline.from_checkpoint(str(whole / BEFORE))
            self._after = ModuleToEnvPipeline.from_checkpoint(str(whole / AFTER))
        self.network.eval()
        freeze_filters(self._before)
        self.info: dict[str, Any] = json.loads((folder / INFO_FILE).read_text())
        self.deterministic = self.info.pop("acting", None) is None
        known = network_of(type(self.network))
        self.has_distribution = known is None or HEADS[known.kind].is_distribution
        # The connectors have kept the spaces of the environment that they were built for.
        self.observation_space = self._before.input_observation_space
        self.action_space = self._before.input_action_space

    def stack(self, observations: Sequence[Any]) -> Sequence[Any]:
        """Return observations of several environments as `predict` takes them."""
        return observations

    def predict(
        self,
        obs: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool | None = None,
        rng: Rng = None,
    ) -> tuple[Any, Any]:
        """Choose the actions in several episodes at once, as `rltune.policies.policy.Policy.predict` does.

        Args:
            state: As the last call returned it, to be used once; None where all episodes begin.
            episode_start: Which episodes begin with their observation.
            deterministic: Take the mode of the distribution of actions; None: as the policy acts.
            rng: Seeds the draws; of several generators, the first one does.

        Returns:
            The actions, and the state for the next call: one object an episode.
        """
        import torch  # The import of torch is slow, and `is_rllib_policy` does not need it.

        begins = np.ones(len(obs), dtype=bool) if state is None else np.asarray(episode_start, dtype=bool)
        episodes = [
            self._begin(row) if begin else _continue(state[i], row)
            for i, (row, begin) in enumerate(zip(obs, begins, strict=True))
        ]
        deterministic = self.deterministic if deterministic is None else deterministic
        common = {"episodes": episodes, "rl_module": self.network, "explore": not deterministic, "shared_data": {}}
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            generator = np.random.default_rng(rng[0] if isinstance(rng, Sequence) else rng)
            torch.manual_seed(int(generator.integers(2**31)))
            forward = self.network.forward_inference if deterministic else self.network.forward_exploration
            decided = self._after(batch=forward(self._before(batch={}, **common)), **common)
        actions = decided.pop("actions")
        env_actions = decided.pop("actions_for_env", actions)
        memory = np.empty(len(obs), dtype=object)
        for i, episode in enumerate(episodes):
            memory[i] = (episode, actions[i], {name: values[i] for name, values in decided.items()})
        # Actions of choices and numbers are tuples.
        return list(env_actions) if isinstance(env_actions[0], tuple) else np.asarray(env_actions), memory

    def _begin(self, obs: Any) -> Any:
        from ray.rllib.env.single_agent_episode import SingleAgentEpisode

        return SingleAgentEpisode(
            observations=[obs], observation_space=self.observation_space, action_space=self.action_space
        )


def _continue(last: Any, obs: Any) -> Any:
    """Append the last action and its observation to an RLlib episode; a policy does not read the reward, so it is 0."""
    episode, action, outputs = last
    episode.add_env_step(obs, action, 0.0, extra_model_outputs=outputs)
    return episode.cut(len_lookback_buffer=KEPT_STEPS) if len(episode) >= KEPT_STEPS else episode
