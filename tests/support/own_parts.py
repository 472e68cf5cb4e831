"""An env runner, a learner and connectors of a user's own, as settings name them by ``own_parts:Name``."""

from __future__ import annotations

from typing import Any

from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner


class OwnRunner(SingleAgentEnvRunner):
    """RLlib's under another name."""


class OwnLearner(PPOTorchLearner):
    """RLlib's under another name."""


class Mirror(ConnectorV2):
    """Shows the module the other side of each observation."""

    def __call__(self, *, batch: Any, episodes: Any, **kwargs: Any) -> Any:
        """Replace each episode's last observation."""
        for episode in episodes:
            episode.set_observations(at_indices=-1, new_data=-episode.get_observations(-1))
        return batch


def make_mirror(env: Any = None, spaces: Any = None, device: Any = None) -> ConnectorV2:
    """As RLlib asks for it."""
    return Mirror()


def make_learner_connector(observation_space: Any, action_space: Any) -> list[ConnectorV2]:
    """As RLlib asks for it; it adds nothing."""
    return []
