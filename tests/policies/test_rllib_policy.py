"""What playing by RLlib's own parts takes from RLlib."""

from __future__ import annotations

import gymnasium
import numpy as np
from ray.rllib.connectors.env_to_module import MeanStdFilter
from ray.rllib.env.single_agent_episode import SingleAgentEpisode


def test_a_filter_of_rllib_can_be_kept_from_learning():
    space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    connector = MeanStdFilter()
    connector.input_action_space, connector.input_observation_space = space, space
    assert connector._update_stats is True, "the one private name that rltune.restored uses"

    def learned() -> str:
        episode = SingleAgentEpisode(observations=[space.sample()], observation_space=space, action_space=space)
        connector(rl_module=None, batch={}, episodes=[episode])
        return str(connector.get_state())

    assert learned() != learned()
    connector._update_stats = False
    assert learned() == learned()
