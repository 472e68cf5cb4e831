"""``python -m rl_zoo3.train`` with conf/space/ppo.yaml as its PPO space; runs in the peers' environment."""

from __future__ import annotations

from typing import Any

from rl_zoo3 import exp_manager
from rl_zoo3.train import train
from torch import nn

NUM_ENVS = 16


def sample_ppo(trial: Any, num_actions: int, num_envs: int, additional: dict[str, Any]) -> dict[str, Any]:
    """One sample of conf/space/ppo.yaml in Stable-Baselines3's names; nets as in conf/algo/ppo.yaml."""
    batch = 2 ** trial.suggest_int("train_batch_pow", 9, 12)
    return {
        "n_steps": batch // NUM_ENVS,
        "batch_size": 2 ** trial.suggest_int("minibatch_pow", 6, 8),
        "gamma": 1 - trial.suggest_float("one_minus_gamma", 5e-3, 5e-2, log=True),
        "gae_lambda": trial.suggest_float("gae_lambda", 0.8, 0.99),
        "learning_rate": trial.suggest_float("learning_rate", 1e-4, 3e-3, log=True),
        "ent_coef": trial.suggest_float("ent_coef", 1e-5, 2e-2, log=True),
        "n_epochs": trial.suggest_categorical("n_epochs", [5, 10, 20]),
        "clip_range": trial.suggest_categorical("clip_range", [0.1, 0.2, 0.3]),
        "policy_kwargs": {"net_arch": {"pi": [64, 64], "vf": [64, 64]}, "activation_fn": nn.Tanh},
    }


exp_manager.HYPERPARAMS_SAMPLER["ppo"] = sample_ppo  # ours are values already: nothing to convert afterwards
exp_manager.HYPERPARAMS_CONVERTER["ppo"] = dict

if __name__ == "__main__":
    train()
