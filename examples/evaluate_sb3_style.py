"""Evaluate a policy with code written for Stable-Baselines3: its ``predict`` takes and gives what theirs does.

    python examples/evaluate_sb3_style.py [policy] [episodes]

The loop is that of ``evaluate_policy``: several environments at once, a state that is handed on, episode starts.
"""

import sys

import gymnasium
import numpy as np

import rltune


def main(uri: str = "models:/cartpole-ppo@champion", episodes: str = "8", num_envs: int = 4) -> None:
    """Play the episodes and print their mean return."""
    model = rltune.load_policy(uri)
    env = gymnasium.vector.SyncVectorEnv(
        [model.env] * num_envs, autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP
    )
    observations, _ = env.reset(seed=0)
    states, starts, running, returns = None, np.ones(num_envs, dtype=bool), np.zeros(num_envs), []
    while len(returns) < int(episodes):
        actions, states = model.predict(observations, state=states, episode_start=starts, deterministic=True)
        observations, rewards, terminated, truncated, _ = env.step(actions)
        running += rewards
        starts = terminated | truncated  # the observations after an end are the next episode's first
        returns += list(running[starts])
        running[starts] = 0
    env.close()
    print(f"{uri}: mean return {np.mean(returns[: int(episodes)]):.1f} over {episodes} episodes")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:3])
    except rltune.RltuneError as error:
        sys.exit(error.pretty())
