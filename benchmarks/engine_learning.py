"""Does the engine learn what stock RLlib learns? Final returns over seeds, same configs, same budgets.

The difference of the means comes with a 95% bootstrap interval; zero inside it is the result hoped for. A
wide interval says that there were too few seeds, not that the two agree.
"""

from __future__ import annotations

import logging
import time
from typing import Any

import numpy as np
import torch

RELU = {"fcnet_hiddens": [64, 64], "fcnet_activation": "relu"}
BUDGETS = {"ppo": 20_000, "dqn": 12_000, "sac": 4_000}
"""Environment steps: enough to be well above a random policy, short enough for stock RLlib."""


def learning_config(task: str, seed: int) -> Any:
    """Small settings that learn within the budget."""
    from ray.rllib.algorithms.dqn import DQNConfig
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.algorithms.sac import SACConfig

    if task == "ppo":
        config: Any = PPOConfig().environment("CartPole-v1").env_runners(num_envs_per_env_runner=8)
        config.training(
            train_batch_size_per_learner=1024, minibatch_size=128, num_epochs=10, lr=5e-4, lambda_=0.95,
            vf_loss_coeff=0.5, vf_clip_param=100.0, clip_param=0.2,
        ).rl_module(model_config={"fcnet_hiddens": [64, 64], "vf_share_layers": False})  # fmt: skip
    elif task == "dqn":
        config = DQNConfig().environment("CartPole-v1").env_runners(rollout_fragment_length=4)
        config.training(
            lr=1e-3, train_batch_size_per_learner=64, epsilon=[[0, 1.0], [4000, 0.05]],
            num_steps_sampled_before_learning_starts=500, target_network_update_freq=200,
        ).rl_module(model_config=RELU | {"head_fcnet_hiddens": []})  # fmt: skip
    else:
        config = SACConfig().environment("Pendulum-v1").env_runners(rollout_fragment_length=1)
        config.training(
            train_batch_size_per_learner=64, actor_lr=1e-3, critic_lr=1e-3, alpha_lr=1e-3,
            num_steps_sampled_before_learning_starts=300,
            replay_buffer_config={"type": "EpisodeReplayBuffer", "capacity": 20_000},
        ).rl_module(model_config=RELU | {"fusionnet_hiddens": []})  # fmt: skip
        config.reporting(min_time_s_per_iteration=0)
    config.reporting(metrics_num_episodes_for_smoothing=10 if task == "sac" else 20)
    return config.env_runners(num_env_runners=0).debugging(seed=seed)


def evaluate(module: Any, env_id: str, episodes: int = 20) -> float:
    """Mean return of the greedy policy on fresh episodes: the same code for both, whatever they log."""
    import gymnasium as gym

    env, returns = gym.make(env_id), []
    for episode in range(episodes):
        obs, total, over = env.reset(seed=10_000 + episode)[0], 0.0, False
        while not over:
            with torch.no_grad():
                out = module.forward_inference({"obs": torch.as_tensor(obs, dtype=torch.float32)[None]})
            if "actions" in out:
                action: Any = int(out["actions"][0])
            elif isinstance(env.action_space, gym.spaces.Discrete):
                action = int(out["action_dist_inputs"][0].argmax())
            else:
                mean = torch.tanh(out["action_dist_inputs"][0].chunk(2)[0]).numpy()
                action = env.action_space.low + (mean + 1.0) / 2.0 * (env.action_space.high - env.action_space.low)
            obs, reward, terminated, truncated, _ = env.step(action)
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    return float(np.mean(returns))


def final_return(kind: str, task: str, seed: int) -> float:
    """Train for the budget; the greedy policy's mean return on fresh episodes."""
    from rltune.engine import build_algorithm

    config, result = learning_config(task, seed), {}
    algorithm = build_algorithm(config, kind)
    while result.get("num_env_steps_sampled_lifetime", 0) < BUDGETS[task]:
        result = algorithm.train()
    found = evaluate(algorithm.get_module(), config.env)
    algorithm.stop()
    return found


def interval(left: np.ndarray, right: np.ndarray) -> tuple[float, float]:
    """95% bootstrap interval of the difference of the means."""
    rng = np.random.default_rng(0)
    means = [rng.choice(side, (10_000, len(side))).mean(1) for side in (left, right)]
    low, high = np.percentile(means[0] - means[1], [2.5, 97.5])
    return float(low), float(high)


def compare(seeds: int, tasks: list[str]) -> dict[str, Any]:
    """Train both kinds on every task and seed, print a table."""
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    print("| task | steps | engine: mean (sd) | stock RLlib: mean (sd) | difference, 95% interval |")
    print("|---|---|---|---|---|")
    results: dict[str, Any] = {}
    for task in tasks:
        start, returns = time.time(), {}
        for kind in ("fast", "rllib"):
            returns[kind] = np.array([final_return(kind, task, seed) for seed in range(seeds)])
        ours, stock = returns["fast"], returns["rllib"]
        low, high = interval(ours, stock)
        results[task] = {kind: list(values) for kind, values in returns.items()} | {"interval": [low, high]}
        spread = [f"{x.mean():.1f} ({x.std(ddof=1):.1f})" for x in (ours, stock)]
        difference = f"{ours.mean() - stock.mean():+.1f} [{low:.1f}, {high:.1f}]"
        print(f"| {task} | {BUDGETS[task]:,} | {spread[0]} | {spread[1]} | {difference} |", flush=True)
        results[task]["seconds"] = time.time() - start
    return results
