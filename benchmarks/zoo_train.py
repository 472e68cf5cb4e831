"""``python -m rl_zoo3.train`` with the shared PPO space and first trial, and its environment steps counted.

Runs in the peers' environment. The last line that it prints is JSON: the steps of this process's trials and of their
evaluations.
"""

from __future__ import annotations

import json
from typing import Any

import optuna
import rl_zoo3.train as zoo
from rl_zoo3 import exp_manager
from torch import nn

from benchmarks.shared_settings import ALGO, first_trial, suggest

NUM_ENVS = ALGO["env_runners"]["num_envs_per_env_runner"]
NETS = ALGO["rl_module"]["model_config"]
COUNTERS: dict[str, list[list[int]]] = {"env_steps": [], "evaluation_steps": []}
"""One counter for each vector environment."""

create_study = optuna.create_study


def sample_ppo(trial: Any, num_actions: int, num_envs: int, additional: dict[str, Any]) -> dict[str, Any]:
    """Draw from the shared space, and return it in Stable-Baselines3's names."""
    drawn, layers = suggest(trial), NETS["fcnet_hiddens"]
    return {
        "n_steps": drawn["train_batch_size_per_learner"] // NUM_ENVS,
        "batch_size": drawn["minibatch_size"],
        "gamma": drawn["gamma"],
        "gae_lambda": drawn["lambda_"],
        "learning_rate": drawn["lr"],
        "ent_coef": drawn["entropy_coeff"],
        "n_epochs": drawn["num_epochs"],
        "clip_range": drawn["clip_param"],
        "policy_kwargs": {"net_arch": {"pi": layers, "vf": layers}, "activation_fn": nn.Tanh},
    }


def create_warm_study(**options: Any) -> optuna.Study:
    """Create rl_zoo3's study or join it, and have it begin with the first trial of the others."""
    study = create_study(**options)
    study.enqueue_trial(first_trial(), skip_if_exists=True)
    return study


class CountingManager(exp_manager.ExperimentManager):  # type: ignore[misc]
    """rl_zoo3's experiment, whose vector environments count their steps."""

    def create_envs(self, n_envs: int, eval_env: bool = False, no_log: bool = False) -> Any:
        """Create them as it does."""
        envs, counter = super().create_envs(n_envs, eval_env, no_log), [0]
        COUNTERS["evaluation_steps" if eval_env else "env_steps"].append(counter)
        step_wait = envs.step_wait

        def count_and_step() -> Any:
            counter[0] += n_envs
            return step_wait()

        envs.step_wait = count_and_step
        return envs


def main() -> None:
    """Put the space, the first trial and the counters in, and let it train."""
    exp_manager.HYPERPARAMS_SAMPLER["ppo"] = sample_ppo
    exp_manager.HYPERPARAMS_CONVERTER["ppo"] = dict  # ours are values already
    exp_manager.optuna.create_study = create_warm_study
    zoo.ExperimentManager = CountingManager
    zoo.train()
    print(json.dumps({name: sum(one for (one,) in counters) for name, counters in COUNTERS.items()}), flush=True)


if __name__ == "__main__":
    main()
