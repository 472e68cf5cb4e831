"""Does the engine learn what stock RLlib learns? Final returns over seeds, same configs, same budgets, same updates.

    python -m benchmarks.learning [--tasks ppo,dqn,sac] [--kinds engine,rllib] [--json FILE]

Each row of the record is one training: its greedy return on fresh episodes, its environment steps and its
gradient steps. Rows that the file has are kept, so that an interrupted run goes on; ``--again engine`` trains one side
anew. The difference of the means comes with a 95% interval (`benchmarks/intervals.py`). Zero inside a narrow interval
is the result hoped for; a wide one says that there were too few seeds, not that the two agree. On one core stock RLlib
takes about 25 minutes for PPO, 30 for DQN and 30 for SAC; the engine five for all three.
"""

from __future__ import annotations

import argparse
import logging
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.intervals import bound_mean
from benchmarks.records import RESULTS, describe_commit, make_record, read_record, write_record

RELU = {"fcnet_hiddens": [64, 64], "fcnet_activation": "relu"}
BUDGETS = {"ppo": 40_000, "dqn": 12_000, "sac": 4_000}
"""Environment steps: enough to be well above a random policy, short enough for stock RLlib."""
SEEDS = {"ppo": 40, "dqn": 20, "sac": 10}
NAMES = {"ppo": "PPO CartPole", "dqn": "DQN CartPole", "sac": "SAC Pendulum"}
COMMAND = "python -m benchmarks.learning"
KINDS = {"engine": "fast", "rllib": "rllib"}
"""The two sides, as `build_algorithm` names them."""


def learning_config(task: str, seed: int) -> Any:
    """Small settings that learn within the budget."""
    from ray.rllib.algorithms.dqn import DQNConfig
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.algorithms.sac import SACConfig

    from rltune.algorithms.sac import use_plain_critics

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
        ).rl_module(model_config=dict(RELU))  # fmt: skip
        use_plain_critics(config)
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


def count_updates(algorithm: Any) -> int:
    """Count the gradient steps, as the optimizers themselves do; the most of any, where there are several."""
    from ray.rllib.core import DEFAULT_MODULE_ID

    learner = algorithm.learner_group._learner
    optimizers = [optimizer for _, optimizer in learner.get_optimizers_for_module(DEFAULT_MODULE_ID)]
    states = [state for optimizer in optimizers for state in optimizer.state.values()]
    return int(max(float(state["step"]) for state in states))


def train(task: str, kind: str, seed: int) -> dict[str, Any]:
    """Train for the budget, and return the row of the record."""
    from rltune.engine import build_algorithm

    config, result, began = learning_config(task, seed), {}, time.process_time()
    algorithm = build_algorithm(config, KINDS[kind])
    while result.get("num_env_steps_sampled_lifetime", 0) < BUDGETS[task]:
        result = algorithm.train()
    row = {
        "task": task,
        "kind": kind,
        "seed": seed,
        "final": evaluate(algorithm.get_module(), config.env),
        "env_steps": int(result["num_env_steps_sampled_lifetime"]),
        "updates": count_updates(algorithm),
        "cpu_s": time.process_time() - began,
        "commit": describe_commit(),
    }
    algorithm.stop()
    return row


def table(record: dict[str, Any]) -> str:
    """Return the comparison of both sides, a line a task, in Markdown."""
    rows = record["results"]
    head = ["task", "env steps", "seeds", "engine: mean (sd)", "stock RLlib: mean (sd)", "difference, 95% interval"]
    lines = [f"| {' | '.join([*head, 'gradient steps, engine / RLlib'])} |", "|---" * 7 + "|"]
    for task in BUDGETS:
        sides = [[row for row in rows if row["task"] == task and row["kind"] == kind] for kind in KINDS]
        if min(map(len, sides)) < 2:
            continue
        ours, stock = (np.array([row["final"] for row in side]) for side in sides)
        updates = [np.mean([row["updates"] for row in side]) for side in sides]
        cells = [
            NAMES[task],
            f"{BUDGETS[task]:,}",
            " and ".join(str(len(side)) for side in sides),
            *(f"{side.mean():.1f} ({side.std(ddof=1):.1f})" for side in (ours, stock)),
            bound_mean(ours, stock).show("+.1f"),
            f"{updates[0]:,.0f} / {updates[1]:,.0f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Parse, train what is missing, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default=",".join(BUDGETS), help="comma-separated")
    parser.add_argument("--kinds", default=",".join(KINDS), help="comma-separated")
    parser.add_argument("--seeds", type=int, help="instead of 40, 20 and 10")
    parser.add_argument("--again", choices=list(KINDS), action="append", default=[], help="drop this side's rows first")
    parser.add_argument(
        "--json", type=Path, default=RESULTS / "learning.json", help="a file of this name in any folder"
    )
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    tasks, kinds = arguments.tasks.split(","), arguments.kinds.split(",")
    record = read_record("learning", arguments.json.parent) or make_record("learning", 1, [])
    rows = [row for row in record["results"] if not (row["kind"] in arguments.again and row["task"] in tasks)]
    known = {(row["task"], row["kind"], row["seed"]) for row in rows}
    for task in tasks:
        wanted = [(task, kind, seed) for seed in range(arguments.seeds or SEEDS[task]) for kind in kinds]
        for row in (train(*each) for each in wanted if each not in known):
            rows.append(row)
            write_record({**make_record("learning", 1, rows), "command": COMMAND}, arguments.json)
            print(f"{task} {row['kind']} seed {row['seed']}: {row['final']:.1f}, {row['cpu_s']:.0f} s", flush=True)
    print(table({"results": rows}))


if __name__ == "__main__":
    main()
