"""RLlib's own runner and what it would do, for tests of bundles."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from ray.rllib.core.columns import Columns
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

NUM_OBSERVATIONS = 1000


SMALL = {"fcnet_hiddens": [32, 32]}


def runner_of(config: Any, env: str, **model: Any) -> SingleAgentEnvRunner:
    """RLlib's own runner: module and both connector pipelines, without an algorithm and without Ray."""
    config = config.environment(env).env_runners(num_env_runners=0).rl_module(model_config={**SMALL, **model})
    return SingleAgentEnvRunner(config=config)


def runner_actions(runner: SingleAgentEnvRunner, observations: Any) -> np.ndarray:
    """What RLlib would send to the environment with explore=False."""
    episodes = []
    for obs in observations:
        episode = SingleAgentEpisode(
            observation_space=runner.env.single_observation_space,
            action_space=runner.env.single_action_space,
        )
        episode.add_env_reset(obs)
        episodes.append(episode)
    arguments = {"rl_module": runner.module, "episodes": episodes, "explore": False, "shared_data": {}}
    batch = runner._env_to_module(batch={}, **arguments)
    out = runner._module_to_env(batch=runner.module.forward_inference(batch), **arguments)
    return np.asarray(out.get(Columns.ACTIONS_FOR_ENV, out[Columns.ACTIONS]))


def some_observations(space: Any, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    if isinstance(space, gymnasium.spaces.Discrete):
        return rng.integers(space.n, size=NUM_OBSERVATIONS)
    return rng.normal(scale=2.0, size=(NUM_OBSERVATIONS, *space.shape)).astype(space.dtype)


def recurrent_runner(kind: Any, env: str, **model: Any) -> SingleAgentEnvRunner:
    """As runner_of, with an LSTM whose memory decides what it does: untrained ones hardly look at theirs."""
    torch.manual_seed(0)
    runner = runner_of(kind(), env, use_lstm=True, lstm_cell_size=8, **model)
    with torch.no_grad():
        for name, weights in runner.module.named_parameters():
            if "lstm.weight" in name:
                weights *= 6
            elif name.startswith(("pi.", "af.")) and name.endswith("bias"):
                weights *= 0
    return runner
