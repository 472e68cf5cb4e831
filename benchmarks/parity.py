"""Does the engine learn as well as Stable-Baselines3? Learning curves and final returns at equal settings and steps.

    python -m benchmarks.parity [--tasks ppo_cartpole,...] [--seeds 10] [--sides ours,sb3]
    python -m benchmarks.parity --again ours       train one side anew

Each row of the record is one training: the mean return of the episodes that ended in each tenth of the budget, while
the policy explores, and the mean return of 20 fresh episodes of the greedy policy at the end. Rows that the record has
are kept, so that an interrupted run goes on. The table compares the means over the seeds and bounds their difference by
a 95% interval (`benchmarks/intervals.py`). PPO's networks begin with orthogonal weights on both sides, and its policy
with a small last layer. What a library fixes differs: the value's last layer begins as torch has it in RLlib, Adam's
epsilon is 1e-5 in Stable-Baselines3 and 1e-8 in RLlib, and RLlib standardizes advantages over the batch,
Stable-Baselines3 over each minibatch. SAC's critics have Huber losses in RLlib and squared errors in Stable-Baselines3.
One process a side, one torch thread each; about two hours on two quiet cores.
Stable-Baselines3 lives in an environment of its own (peers.py).
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.records import RESULTS, ROOT, describe_commit, make_record, read_record, write_record

SIDES = {"ours": "rltune", "sb3": "Stable-Baselines3"}
SEEDS = 10
EPISODES = 20
TENTHS = 10
Act = Callable[[np.ndarray], Any]
Episodes = list[tuple[int, float]]
"""Environment steps of the training at an episode's end, and the episode's return."""


@dataclass(frozen=True)
class Task:
    """One row of the table.

    Attributes:
        words: What is trained, for the table.
        algo: ``ppo``, ``dqn`` or ``sac``.
        env: The Gymnasium id.
        steps: Environment steps of a training.
        settings: The settings that both sides share, by Stable-Baselines3's names.
        num_envs: Environments that step together.
        units: The width of both hidden layers.
        normalise: Whether observations are normalised by their running mean and variance.
    """

    words: str
    algo: str
    env: str
    steps: int
    settings: dict[str, Any] = field(default_factory=dict)
    num_envs: int = 1
    units: int = 64
    normalise: bool = False


PPO = {"learning_rate": 3e-4, "n_epochs": 10, "gamma": 0.99, "gae_lambda": 0.95, "clip_range": 0.2, "ent_coef": 0.0}
DQN = {
    "learning_rate": 1e-3, "buffer_size": 50_000, "learning_starts": 1000, "batch_size": 64, "train_freq": 4,
    "gradient_steps": 1, "target_update_interval": 500, "exploration_final_eps": 0.05, "gamma": 0.99, "n_steps": 1,
}  # fmt: skip
SAC = {"learning_rate": 1e-3, "buffer_size": 50_000, "learning_starts": 500, "tau": 0.005, "gamma": 0.99}
TASKS = {
    "ppo_cartpole": Task(
        "PPO CartPole, 8 environments", "ppo", "CartPole-v1", 50_000,
        PPO | {"n_steps": 128, "batch_size": 256}, num_envs=8,
    ),
    "ppo_pendulum": Task(
        "PPO Pendulum, 4 environments", "ppo", "Pendulum-v1", 100_000,
        PPO | {"n_steps": 512, "batch_size": 64, "gamma": 0.9, "learning_rate": 1e-3}, num_envs=4,
    ),
    "ppo_lunarlander": Task(
        "PPO LunarLander, 16 environments", "ppo", "LunarLander-v3", 200_000,
        PPO | {"n_steps": 128, "batch_size": 64, "n_epochs": 4, "gamma": 0.999, "gae_lambda": 0.98, "ent_coef": 0.01},
        num_envs=16,
    ),
    "ppo_halfcheetah": Task(
        "PPO HalfCheetah, 4 environments, normalised observations", "ppo", "HalfCheetah-v5", 200_000,
        PPO | {"n_steps": 512, "batch_size": 64}, num_envs=4, normalise=True,
    ),
    "dqn_cartpole": Task("DQN CartPole", "dqn", "CartPole-v1", 50_000, DQN),
    "dqn_acrobot_n3": Task("DQN Acrobot, three-step returns", "dqn", "Acrobot-v1", 50_000, DQN | {"n_steps": 3}),
    "sac_pendulum": Task("SAC Pendulum, 256x256", "sac", "Pendulum-v1", 8_000, SAC | {"batch_size": 256}, units=256),
    "sac_hopper": Task("SAC Hopper, 64x64, batch 100", "sac", "Hopper-v5", 30_000, SAC | {"batch_size": 100}),
}  # fmt: skip
EXPLORATION = 0.2  # DQN's epsilon falls over this share of the budget.


def train_ours(task: Task, seed: int) -> tuple[Act, Episodes]:
    """Train with the engine; return the greedy policy and the episodes of the training."""
    import torch

    from rltune.engine import build_algorithm

    algorithm = build_algorithm(make_config(task, seed))
    steps, count, episodes = 0, 0, []
    while steps < task.steps:
        steps = int(algorithm.train()["num_env_steps_sampled_lifetime"])
        ended = list(algorithm.episodes)  # type: ignore[attr-defined]
        episodes += [(steps, float(total)) for total, _ in ended[count:]]
        count = len(ended)
    stats = algorithm.observation_stats()  # type: ignore[attr-defined]
    module: Any = algorithm.get_module()

    def act(obs: np.ndarray) -> Any:
        if stats is not None:
            obs = np.clip((obs - stats["mean"]) / (np.sqrt(stats["var"]) + 1e-6), -10.0, 10.0)
        with torch.no_grad():
            out = module.forward_inference({"obs": torch.as_tensor(obs, dtype=torch.float32)[None]})
        if "actions" in out:
            return int(out["actions"][0])
        inputs = out["action_dist_inputs"][0]
        if task.algo == "sac":
            return torch.tanh(inputs.chunk(2)[0]).numpy()
        return inputs.chunk(2)[0].numpy() if is_continuous(task.env) else int(inputs.argmax())

    return act, episodes


def make_config(task: Task, seed: int) -> Any:
    """Return a task's settings as RLlib names them."""
    from ray.rllib.algorithms.dqn import DQNConfig
    from ray.rllib.algorithms.ppo import PPOConfig

    from rltune.algorithms.ppo import begin_with_small_policy
    from rltune.algorithms.sac import PlainSACConfig
    from rltune.engine.sampling.observation_filter import normalise_observations

    s = task.settings
    layers: dict[str, Any] = {"fcnet_hiddens": [task.units] * 2, "head_fcnet_hiddens": []}
    replay = {"type": "EpisodeReplayBuffer", "capacity": s.get("buffer_size")}
    if task.algo == "ppo":
        config: Any = PPOConfig().training(
            train_batch_size_per_learner=s["n_steps"] * task.num_envs, minibatch_size=s["batch_size"],
            num_epochs=s["n_epochs"], lr=s["learning_rate"], gamma=s["gamma"], lambda_=s["gae_lambda"],
            clip_param=s["clip_range"], entropy_coeff=s["ent_coef"], vf_loss_coeff=0.5, vf_clip_param=1e9,
            use_kl_loss=False, grad_clip=0.5,
        )  # fmt: skip
        layers |= {"fcnet_activation": "tanh", "vf_share_layers": False, "free_log_std": is_continuous(task.env)}
    elif task.algo == "dqn":
        config = DQNConfig().training(
            lr=s["learning_rate"], train_batch_size_per_learner=s["batch_size"], gamma=s["gamma"], n_step=s["n_steps"],
            training_intensity=s["batch_size"] * s["gradient_steps"] / s["train_freq"], double_q=False, dueling=False,
            num_steps_sampled_before_learning_starts=s["learning_starts"], grad_clip=10.0,
            target_network_update_freq=s["target_update_interval"], replay_buffer_config=replay,
            epsilon=[[0, 1.0], [int(EXPLORATION * task.steps), s["exploration_final_eps"]]],
        )  # fmt: skip
        config.env_runners(rollout_fragment_length=s["train_freq"])
        layers |= {"fcnet_activation": "relu"}
    else:
        config = PlainSACConfig().training(
            train_batch_size_per_learner=s["batch_size"], training_intensity=s["batch_size"], gamma=s["gamma"],
            actor_lr=s["learning_rate"], critic_lr=s["learning_rate"], alpha_lr=s["learning_rate"], tau=s["tau"],
            num_steps_sampled_before_learning_starts=s["learning_starts"], replay_buffer_config=replay,
            td_error_loss_fn=s.get("critic_loss", "huber"),
        )  # fmt: skip
        config.env_runners(rollout_fragment_length=1)
        layers |= {"fcnet_activation": "relu"}
    if task.algo == "ppo":
        begin_with_small_policy(config)
        layers |= {"fcnet_kernel_initializer": "orthogonal_", "fcnet_kernel_initializer_kwargs": {"gain": 2**0.5}}
        layers |= {"fcnet_bias_initializer": "zeros_"}
    config.rl_module(model_config=layers)
    # As in Stable-Baselines3, PPO's actions are the environment's, and clipped to its bounds.
    config.environment(task.env, normalize_actions=task.algo == "sac", clip_actions=task.algo == "ppo")
    if task.normalise:
        normalise_observations(config)
    config.env_runners(num_env_runners=0, num_envs_per_env_runner=task.num_envs)
    config.reporting(
        min_time_s_per_iteration=0,
        min_sample_timesteps_per_iteration=task.steps // 100,
        metrics_num_episodes_for_smoothing=task.steps,  # all of them
    )
    return config.debugging(seed=seed)


def train_sb3(task: Task, seed: int) -> tuple[Act, Episodes]:
    """Train with Stable-Baselines3; return the greedy policy and the episodes of the training."""
    import gymnasium as gym
    import stable_baselines3
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    envs: Any = DummyVecEnv([lambda: Monitor(gym.make(task.env))] * task.num_envs)
    if task.normalise:
        envs = VecNormalize(envs, norm_reward=False)
    settings = dict(task.settings)
    if task.algo == "dqn":
        settings["exploration_fraction"] = EXPLORATION
    model = getattr(stable_baselines3, task.algo.upper())(
        "MlpPolicy", envs, seed=seed, device="cpu", policy_kwargs={"net_arch": [task.units] * 2}, **settings
    )
    episodes: Episodes = []

    class Record(BaseCallback):  # type: ignore[misc]
        def _on_step(self) -> bool:
            ended = [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
            episodes.extend((self.num_timesteps, float(total)) for total in ended)
            return True

    model.learn(task.steps, callback=Record())

    def act(obs: np.ndarray) -> Any:
        return model.predict(envs.normalize_obs(obs) if task.normalise else obs, deterministic=True)[0]

    if task.algo != "sac":
        return act, episodes
    # SAC's predictions are scaled to the environment's bounds, which `evaluate` does for both sides.
    space = envs.action_space
    return lambda obs: 2.0 * (act(obs) - space.low) / (space.high - space.low) - 1.0, episodes


def is_continuous(env_id: str) -> bool:
    """Return whether an environment's actions are continuous."""
    import gymnasium as gym

    return isinstance(gym.make(env_id).action_space, gym.spaces.Box)


def evaluate(task: Task, act: Act) -> float:
    """Return the mean return of the greedy policy over fresh episodes: the same code for both sides."""
    import gymnasium as gym

    env, returns = gym.make(task.env), []
    for episode in range(EPISODES):
        obs, total, over = env.reset(seed=1_000_000 + episode)[0], 0.0, False
        while not over:
            action = act(obs)
            if isinstance(env.action_space, gym.spaces.Box):
                low, high = env.action_space.low, env.action_space.high
                action = low + (action + 1.0) / 2.0 * (high - low) if task.algo == "sac" else np.clip(action, low, high)
            obs, reward, terminated, truncated, _ = env.step(action)
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    return float(np.mean(returns))


def make_curve(episodes: Episodes, steps: int) -> list[float | None]:
    """Return the mean return of the episodes that ended in each tenth of the budget; None if none has."""
    tenths: list[list[float]] = [[] for _ in range(TENTHS)]
    for step, total in episodes:
        tenths[min(TENTHS - 1, (step - 1) * TENTHS // steps)].append(total)
    return [float(np.mean(returns)) if returns else None for returns in tenths]


def work(side: str) -> None:
    """Train what each line of stdin names (task and seed), and print a row of the record."""
    import torch

    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore")
    for line in sys.stdin:
        name, seed = line.split()
        task = TASKS[name]
        act, episodes = {"ours": train_ours, "sb3": train_sb3}[side](task, int(seed))
        curve = make_curve(episodes, task.steps)
        print(json.dumps({"curve": curve, "final": evaluate(task, act)}), flush=True)


class Side:
    """The process in which one side trains, one task and seed after another.

    Args:
        name: ``ours`` or ``sb3``.
    """

    def __init__(self, name: str) -> None:
        from benchmarks import peers

        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "src"))),
        }
        python = str(peers.PYTHON) if name == "sb3" else sys.executable
        command = [python, "-m", "benchmarks.parity", "--work", name]
        self.name = name
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def train(self, task: str, seed: int) -> dict[str, Any]:
        """Train, and return the row of the record."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(task, seed, file=self._process.stdin, flush=True)
        for line in self._process.stdout:
            if line.startswith("{"):
                commit = {"commit": describe_commit()} if self.name == "ours" else {}
                return {"task": task, "side": self.name, "seed": seed, **json.loads(line), **commit}
        raise RuntimeError(f"the process of {SIDES[self.name]} ended with {self._process.wait()}")

    def stop(self) -> None:
        """End the process."""
        self._process.communicate()


def area(row: dict[str, Any]) -> float:
    """Return the mean of a training's curve."""
    return float(np.mean([value for value in row["curve"] if value is not None]))


def table(record: dict[str, Any]) -> str:
    """Return the comparison, a line a task, in Markdown."""
    from benchmarks.intervals import bound_mean  # Stable-Baselines3's environment may lack SciPy.

    head = ["task", "steps", "seeds", "rltune, final", "Stable-Baselines3, final", "difference", "of the whole curve"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name, task in TASKS.items():
        sides = [[row for row in record["results"] if (row["task"], row["side"]) == (name, side)] for side in SIDES]
        if min(map(len, sides)) < 2:
            continue
        cells = [task.words, f"{task.steps:,}", " and ".join(str(len(side)) for side in sides)]
        finals = [[row["final"] for row in side] for side in sides]
        cells += [f"{np.mean(values):.1f}" for values in finals]
        curves = [[area(row) for row in side] for side in sides]
        cells += [bound_mean(ours, theirs).show("+.1f") for ours, theirs in (finals, curves)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Train what the record lacks, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default=",".join(TASKS), help="comma-separated")
    parser.add_argument("--sides", default=",".join(SIDES), help="comma-separated")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--again", choices=list(SIDES), action="append", default=[], help="drop this side's rows first")
    parser.add_argument("--json", type=Path, default=RESULTS / "parity.json", help="a file of this name in any folder")
    parser.add_argument("--work", choices=list(SIDES), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        return work(arguments.work)
    from benchmarks import peers

    tasks, sides = arguments.tasks.split(","), arguments.sides.split(",")
    if "sb3" in sides:
        peers.make_venv()
    record = read_record("parity", arguments.json.parent)
    rows = record["results"] if record else []
    rows = [row for row in rows if not (row["side"] in arguments.again and row["task"] in tasks)]
    done = {(row["task"], row["side"], row["seed"]) for row in rows}
    lock = threading.Lock()

    def train_all(name: str) -> None:
        side = Side(name)
        for task in tasks:
            for seed in range(arguments.seeds):
                if (task, name, seed) in done:
                    continue
                row = side.train(task, seed)
                with lock:
                    rows.append(row)
                    new = make_record("parity", 1, rows, peers.versions())
                    write_record({**new, "command": "python -m benchmarks.parity"}, arguments.json)
                    print(f"{task} {name} seed {seed}: {row['final']:.1f}", flush=True)
        side.stop()

    threads = [threading.Thread(target=train_all, args=(name,)) for name in sides]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(table({"results": rows}))


if __name__ == "__main__":
    main()
