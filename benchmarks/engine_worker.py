"""One contender of ``benchmarks/engine.py``: waits for a line on stdin, trains for a moment, prints steps and seconds.

Runs in this project's environment (``ours``, ``rllib``) or in the peers' own one (``sb3``, ``rltools``); the contenders
stay alive between rounds and only one works at a time, so that imports are not measured and noise is shared.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import spaces

Round = tuple[Callable[[float], tuple[int, float]], str]
"""Trains for some seconds and returns steps and seconds; and the name of the class that steps the environments."""

warnings.filterwarnings("ignore")
TANH64 = {"fcnet_hiddens": [64, 64], "fcnet_activation": "tanh", "vf_share_layers": False}
RELU_CASE = "ppo_pendulum_4"  # PPO with the activation of RLtools' defaults, which is also its fastest
PPO_CASES: dict[str, tuple[str, int, int, int, int]] = {
    "ppo_cartpole_32": ("CartPole-v1", 32, 2048, 256, 10),
    "ppo_cartpole_32_native": ("CartPole-v1", 32, 2048, 256, 10),
    "ppo_cartpole_1": ("CartPole-v1", 1, 2048, 256, 10),
    "ppo_cartpole_1_64": ("CartPole-v1", 1, 2048, 64, 10),
    "ppo_cartpole_8_64": ("CartPole-v1", 8, 2048, 64, 10),
    "ppo_cartpole_16_64": ("CartPole-v1", 16, 512, 64, 20),
    "ppo_cartpole_16_128": ("CartPole-v1", 16, 1024, 128, 10),
    "ppo_halfcheetah_norm": ("HalfCheetah-v5", 4, 2048, 256, 10),
    RELU_CASE: ("Pendulum-v1", 4, 1024, 256, 2),
}
"""Environment, number of environments, batch, minibatch and epochs."""
DQN_CASES = {"dqn_cartpole": 1, "dqn_cartpole_4": 4}
"""Number of environments."""
SAC_CASES = {"sac_pendulum": (256, 256), "sac_pendulum_64": (64, 100)}
"""Width of both hidden layers, and batch."""
# As Stable-Baselines3's; those of the tuned settings are padded.
FILTERS = "algo.rl_module.model_config.conv_filters=[[32,8,4,valid],[64,4,2,valid],[64,3,1,valid]]"
SINGLE = ("SyncEnvs", "SyncVectorEnv", "DummyVecEnv")  # these step one environment after another
EPSILON = 0.05  # of DQN, constant: a schedule would let the fastest contender act greedily first


def relu_nets(width: int) -> dict[str, Any]:
    """Two hidden layers and nothing more, as Stable-Baselines3 builds them."""
    return {"fcnet_hiddens": [width, width], "fcnet_activation": "relu", "head_fcnet_hiddens": []}


def breakout_config(algo: str) -> Any:
    """An algorithm on Breakout, with its tuned settings, as a trial builds it."""
    from rltune.algorithms.build import build_config
    from rltune.compose.composing import compose_settings, read_request
    from rltune.config.schema import RunConfig
    from rltune.driver.plan import make_plan

    words = [f"algo={algo}", "env=breakout", FILTERS]
    plan = make_plan(read_request(compose_settings("run", RunConfig, words), words))
    return build_config(plan.build, {}, seed=0)


def rllib_config(case: str, device: str) -> Any:
    """The case as an RLlib config, for ours and for stock RLlib."""
    if case == "ppo_breakout":
        return breakout_config("ppo").learners(num_gpus_per_learner=int(device == "cuda"))
    from ray.rllib.algorithms.dqn import DQNConfig
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.algorithms.sac import SACConfig

    from rltune.algorithms.sac import use_plain_critics
    from rltune.engine.sampling.observation_filter import normalise_observations

    if case in PPO_CASES:
        env, envs, batch, minibatch, epochs = PPO_CASES[case]
        config = PPOConfig().training(
            train_batch_size_per_learner=batch, minibatch_size=minibatch, num_epochs=epochs, lr=3e-4, gamma=0.99,
            lambda_=0.95, clip_param=0.2, grad_clip=0.5, use_kl_loss=False, vf_loss_coeff=0.5,
        ).rl_module(model_config={**TANH64, "fcnet_activation": "relu" if case == RELU_CASE else "tanh"})  # fmt: skip
        if case.endswith("norm"):
            normalise_observations(config)
        if case.endswith("native"):
            config.env_runners(gym_env_vectorize_mode="vector_entry_point")
    elif case in DQN_CASES:
        env, envs = "CartPole-v1", DQN_CASES[case]
        config = DQNConfig().training(
            train_batch_size_per_learner=64, training_intensity=16, lr=1e-3, gamma=0.99, double_q=False,
            dueling=False, epsilon=EPSILON, num_steps_sampled_before_learning_starts=1000,
            target_network_update_freq=500,
            replay_buffer_config={"type": "EpisodeReplayBuffer", "capacity": 50_000}, grad_clip=10.0,
        ).rl_module(model_config=relu_nets(64))  # fmt: skip
        config.env_runners(rollout_fragment_length=4 // envs)
    else:
        env, envs, (width, batch) = "Pendulum-v1", 1, SAC_CASES[case]
        config = SACConfig().training(
            train_batch_size_per_learner=batch, actor_lr=3e-4, critic_lr=3e-4, alpha_lr=3e-4, tau=0.005,
            num_steps_sampled_before_learning_starts=300, training_intensity=batch,
            replay_buffer_config={"type": "EpisodeReplayBuffer", "capacity": 50_000},
        ).rl_module(model_config=relu_nets(width))  # fmt: skip
        use_plain_critics(config)
        config.env_runners(rollout_fragment_length=1).reporting(min_time_s_per_iteration=0)
    config.environment(env).env_runners(num_env_runners=0, num_envs_per_env_runner=envs)
    return config.learners(num_learners=0, num_gpus_per_learner=int(device == "cuda")).debugging(seed=0)


def rllib_round(kind: str, case: str, device: str) -> Round:
    """Build ours or stock RLlib."""
    logging.disable(logging.WARNING)
    import gymnasium as gym
    from ray.tune import register_env

    from rltune.engine import build_algorithm

    config = spaces.make_config(case, kind) if case in spaces.TASKS else rllib_config(case, device)
    if kind != "rllib" and case == "ppo_cartpole_32":
        # From an id the engine would take Gymnasium's native vector environment; from a function it cannot.
        register_env("single", lambda _: gym.make("CartPole-v1"))
        config.environment("single")
    if kind == "compiled":
        config.framework(torch_compile_learner=True)
    if not case.startswith("ppo"):
        # Ours is as shipped. Stock RLlib spends about 0.1 s a step here, so that its iterations are timed shorter.
        config.reporting(min_sample_timesteps_per_iteration=50 if kind == "rllib" else 200)
    algorithm = build_algorithm(config, "rllib" if kind == "rllib" else "fast")
    done = 0

    def train() -> int:
        nonlocal done
        before, done = done, int(algorithm.train()["num_env_steps_sampled_lifetime"])
        return done - before

    while not case.startswith("ppo_") and done < (1100 if "dqn" in case else 400):
        train()
    train()

    def run(seconds: float) -> tuple[int, float]:
        start, steps = time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            steps += train()
        return steps, time.perf_counter() - start

    envs = algorithm.env_runner.env
    return run, type(envs.env if type(envs).__name__ == "VectorEnvs" else envs.unwrapped).__name__


def build_sb3_breakout(device: str) -> Any:
    """PPO as in ``rltune``'s conf/tuned/ppo_breakout.yaml, with the same frames, rewards and ends of episodes."""
    import ale_py
    import gymnasium as gym
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.vec_env import VecFrameStack

    gym.register_envs(ale_py)
    game = {"frameskip": 1, "repeat_action_probability": 0.0}
    envs = make_atari_env(
        "ALE/Breakout-v5", n_envs=8, seed=0, env_kwargs=game, wrapper_kwargs={"terminal_on_life_loss": False}
    )
    return PPO(
        "CnnPolicy", VecFrameStack(envs, 4), n_steps=128, batch_size=256, n_epochs=4, learning_rate=2.5e-4,
        clip_range=0.1, ent_coef=0.01, vf_coef=0.5, max_grad_norm=0.5, device=device,
    )  # fmt: skip


def sb3_round(case: str, device: str) -> Round:
    """Build the same with Stable-Baselines3, which has no native vector environments."""
    import gymnasium as gym
    from stable_baselines3 import DQN, PPO, SAC
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
    from torch import nn

    if case in PPO_CASES:
        env, envs, batch, minibatch, epochs = PPO_CASES[case]
        vec: Any = DummyVecEnv([lambda: gym.make(env)] * envs)
        if case.endswith("norm"):
            vec = VecNormalize(vec, norm_reward=False)
        activation = nn.ReLU if case == RELU_CASE else nn.Tanh
        nets = {"net_arch": {"pi": [64, 64], "vf": [64, 64]}, "activation_fn": activation}
        model: Any = PPO(
            "MlpPolicy", vec, n_steps=batch // envs, batch_size=minibatch, n_epochs=epochs, policy_kwargs=nets,
            device=device,
        )  # fmt: skip
        chunk = batch
    elif case in spaces.TASKS:
        model = spaces.build_sb3(case, device=device)
        chunk = model.n_steps * model.n_envs
    elif case == "ppo_breakout":
        model, chunk = build_sb3_breakout(device), 1024
    elif case in DQN_CASES:
        envs = DQN_CASES[case]
        model = DQN(
            "MlpPolicy", DummyVecEnv([lambda: gym.make("CartPole-v1")] * envs), batch_size=64, train_freq=4 // envs,
            gradient_steps=1, buffer_size=50_000,
            learning_starts=1000, target_update_interval=500, policy_kwargs={"net_arch": [64, 64]}, learning_rate=1e-3,
            exploration_initial_eps=EPSILON, exploration_final_eps=EPSILON, device=device,
        )  # fmt: skip
        chunk = 1000
    else:
        width, batch = SAC_CASES[case]
        model = SAC(
            "MlpPolicy", gym.make("Pendulum-v1"), batch_size=batch, train_freq=1, gradient_steps=1, buffer_size=50_000,
            learning_starts=300, policy_kwargs={"net_arch": [width, width]}, device=device,
        )  # fmt: skip
        chunk = 20

    is_on_policy = case.startswith("ppo_")

    class Stop(BaseCallback):  # type: ignore[misc]
        """Ends learn() at a deadline, so that one call covers a round."""

        deadline = 0.0

        def _on_step(self) -> bool:
            return is_on_policy or time.perf_counter() < self.deadline

    def run(seconds: float) -> tuple[int, float]:
        start, before = time.perf_counter(), model.num_timesteps
        while time.perf_counter() - start < seconds:
            stop = Stop()
            stop.deadline = start + seconds
            model.learn(chunk if is_on_policy else 10**9, reset_num_timesteps=False, callback=stop)
        return model.num_timesteps - before, time.perf_counter() - start

    model.learn(chunk if is_on_policy else 1100 if chunk == 1000 else 400)
    return run, type(model.get_env().unwrapped).__name__


PENDULUM = """
#include <rl_tools/rl/environments/pendulum/operations_cpu.h>
namespace environments = rl_tools::rl::environments;
template <typename T, typename TI>
using ENVIRONMENT_FACTORY = environments::Pendulum<environments::pendulum::Specification<T, TI>>;
"""
"""RLtools' own Pendulum, in C++."""


def rltools_round(kind: str, case: str) -> Round:
    """Compile the same with RLtools, whose default is two hidden layers; return what it steps instead of a class."""
    import gymnasium as gym
    import rltools

    # RLtools does not rescale actions, and refuses Gymnasium's limits of -2 and 2.
    environment: Any = lambda: gym.wrappers.RescaleAction(gym.make("Pendulum-v1"), -1.0, 1.0)  # noqa: E731
    # Without BLAS, SAC is 20 times slower: then nothing is compiled.
    common = {"force_blas": True, "enable_evaluation": False, "STEP_LIMIT": 10**8, "OPTIMIZER_ALPHA": 3e-4}
    with tempfile.TemporaryDirectory() as folder:
        if kind == "rltools":
            (Path(folder) / "environment.h").write_text(PENDULUM)
            environment = {"path": folder, "action_dim": 1, "observation_dim": 3}
        if case in PPO_CASES:
            _, envs, batch, minibatch, epochs = PPO_CASES[case]
            module = rltools.PPO(
                environment, N_ENVIRONMENTS=envs, ON_POLICY_RUNNER_STEPS_PER_ENV=batch // envs, BATCH_SIZE=minibatch,
                N_EPOCHS=epochs, ACTION_ENTROPY_COEFFICIENT=0.0, interface_name=kind, **common,
            )  # fmt: skip
        else:
            width, batch = SAC_CASES[case]
            module = rltools.SAC(
                environment, ACTOR_BATCH_SIZE=batch, CRITIC_BATCH_SIZE=batch, ACTOR_HIDDEN_DIM=width,
                CRITIC_HIDDEN_DIM=width, N_WARMUP_STEPS=300, REPLAY_BUFFER_CAP=50_000, interface_name=kind, **common,
            )  # fmt: skip
    state = module.State(0)
    steps_per_call = batch if case in PPO_CASES else 1  # an iteration of PPO, a step of SAC

    def run(seconds: float) -> tuple[int, float]:
        start, calls = time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            state.step()
            calls += 1
        return calls * steps_per_call, time.perf_counter() - start

    for _ in range(400 // steps_per_call + 1):
        state.step()
    return run, "C++" if kind == "rltools" else "single"


def main() -> None:
    """Build the contender, then one round per line on stdin (the seconds)."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = ["ours", "rllib", "sb3", "compiled", "rltools", "rltools_gym"]
    parser.add_argument("kind", choices=kinds, help="compiled: ours with torch.compile")
    parser.add_argument("case")
    parser.add_argument("--device", default="cpu", help="of the learner: cpu or cuda")
    parser.add_argument("--site", help="another environment's packages, for MuJoCo")
    arguments = parser.parse_args()
    if arguments.site:
        sys.path.append(arguments.site)
    kind, case, device = arguments.kind, arguments.case, arguments.device
    if kind.startswith("rltools"):  # It refuses to load MKL beside torch.
        run, environments = rltools_round(kind, case)
    else:
        import torch

        torch.set_num_threads(1)
        run, steps_by = sb3_round(case, device) if kind == "sb3" else rllib_round(kind, case, device)
        environments = "single" if steps_by in SINGLE else "native"
    print(json.dumps({"environments": environments}), flush=True)
    for line in sys.stdin:
        before = time.process_time()
        steps, seconds = run(float(line))
        cpu_s = time.process_time() - before
        print(json.dumps({"steps": steps, "seconds": round(seconds, 3), "cpu_s": round(cpu_s, 3)}), flush=True)


if __name__ == "__main__":
    main()
