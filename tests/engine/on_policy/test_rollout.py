"""The batch that PPO learns from is the one that RLlib's learner connectors make of the same episodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from engine_toy import CountEnv, make_count_env, ppo_config
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.tune import register_env

from rltune.engine import build_algorithm
from rltune.engine.on_policy.rollout import Rollout


def episodes_of(rollout: Rollout) -> list[SingleAgentEpisode]:
    """Chunks in the order of RLlib's env runner: ended episodes by time, then the running ones."""
    space = CountEnv()
    done, running = [], []
    steps, envs = rollout.valid.shape
    for env in range(envs):
        start = 0 if rollout.valid[0, env] else 1
        for step in range(steps):
            over = rollout.terminated[step, env] or rollout.truncated[step, env]
            if step < start or not (over or step == steps - 1):
                continue
            span = slice(start, step + 1)
            episode = SingleAgentEpisode(
                observations=list(rollout.obs[start : step + 2, env]),
                actions=list(rollout.actions[span, env]),
                rewards=[float(x) for x in rollout.rewards[span, env]],
                terminated=bool(rollout.terminated[step, env]),
                truncated=bool(rollout.truncated[step, env]),
                extra_model_outputs={"action_dist_inputs": list(rollout.dist[span, env])},
                observation_space=space.observation_space,
                action_space=space.action_space,
                len_lookback_buffer=0,
            )
            (done if over else running).append((step if over else 0, env, episode.to_numpy()))
            start = step + 2
    return [episode for _, _, episode in sorted(done, key=lambda x: x[:2]) + running]


@pytest.mark.parametrize("truncate", [False, True])
def test_standardised_advantages_and_targets_equal_rllibs(truncate: bool) -> None:
    register_env("count", make_count_env)
    config = ppo_config("count", envs=3).environment(env_config={"length": 7, "truncate": truncate})
    algorithm: Any = build_algorithm(config)
    for _ in range(2):  # the second rollout begins inside episodes
        rollout = algorithm.collect_rollouts(50)[0]
        batch = algorithm.learner._learner_connector(
            rl_module=algorithm.learner.module, batch={}, episodes=episodes_of(rollout), shared_data={}
        )["default_policy"]
        kept = batch["loss_mask"]
        with torch.no_grad():
            ours, artificial = algorithm.loop.prepare(rollout)
        everything = torch.cat([ours.advantages, artificial])
        standardised = (ours.advantages - everything.mean()) / everything.std(correction=0)
        order = np.lexsort(ours.obs.numpy().T)
        their_order = np.lexsort(batch["obs"][kept].numpy().T)
        for found, expected in ((standardised, "advantages"), (ours.targets, "value_targets")):
            np.testing.assert_allclose(found[order], batch[expected][kept][their_order].detach(), atol=1e-4)
    algorithm.stop()
