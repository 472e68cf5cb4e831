"""A sweep as the documentation of Ray Tune, RLlib, Optuna and MLflow writes it: ``benchmarks/sweep.py``'s baseline.

    python benchmarks/plain_ray.py --trials 8 --env-steps 20000

Stock throughout: ``tune.Tuner("PPO", ...)`` with OptunaSearch, ASHAScheduler and MLflowLoggerCallback, their own
defaults wherever conf/ sets nothing. Space, settings, trials, budget and early stopping are those of
``python -m sweeps.run algo=ppo env=cartpole``. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from pathlib import Path
from typing import Any

BEGAN = time.time()
# RLlib leaves the metric out until an episode has ended, and Tune would end the sweep at the first such report.
os.environ.setdefault("TUNE_DISABLE_STRICT_METRIC_CHECKING", "1")

from ray import tune  # noqa: E402
from ray.air.integrations.mlflow import MLflowLoggerCallback  # noqa: E402
from ray.rllib.algorithms.ppo import PPOConfig  # noqa: E402
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig  # noqa: E402
from ray.tune.schedulers import ASHAScheduler  # noqa: E402
from ray.tune.search.optuna import OptunaSearch  # noqa: E402

METRIC = "env_runners/episode_return_mean"
CLOCK = "num_env_steps_sampled_lifetime"


def space(trial: Any) -> dict[str, float]:
    """conf/space/ppo.yaml as OptunaSearch takes it; what is returned is added to what is suggested."""
    trial.suggest_float("lr", 1e-4, 3e-3, log=True)
    trial.suggest_float("lambda_", 0.8, 0.99)
    trial.suggest_float("entropy_coeff", 1e-5, 2e-2, log=True)
    trial.suggest_categorical("num_epochs", [5, 10, 20])
    trial.suggest_categorical("clip_param", [0.1, 0.2, 0.3])
    trial.suggest_categorical("train_batch_size_per_learner", [512, 1024, 2048, 4096])
    trial.suggest_categorical("minibatch_size", [64, 128, 256])
    trial.suggest_float("gamma", 0.95, 0.995)
    return {}


class FirstReport(tune.Callback):
    """Notes when the first report came."""

    at = math.nan

    def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **_: Any) -> None:
        """Keep the first."""
        if math.isnan(self.at):
            self.at = time.time()


def algorithm() -> PPOConfig:
    """conf/algo/ppo.yaml on CartPole."""
    return (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=0, num_envs_per_env_runner=16)
        .learners(num_learners=0)
        .rl_module(
            model_config=DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False)
        )
        .training(
            vf_clip_param=1.0e6,
            vf_loss_coeff=0.5,
            use_kl_loss=False,
            kl_coeff=0.2,
            kl_target=0.01,
            grad_clip=0.5,
        )
    )


def main() -> None:
    """Run the sweep and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--env-steps", type=int, default=20_000)
    parser.add_argument("--folder", type=Path, default=Path("plain_ray"))
    parser.add_argument("--began", type=float, default=BEGAN, help="when the process was started, in epoch seconds")
    arguments = parser.parse_args()
    folder = arguments.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    first = FirstReport()
    tuner = tune.Tuner(
        "PPO",
        param_space=algorithm(),
        tune_config=tune.TuneConfig(
            metric=METRIC,
            mode="max",
            num_samples=arguments.trials,
            search_alg=OptunaSearch(space=space, metric=METRIC, mode="max"),
            scheduler=ASHAScheduler(
                time_attr=CLOCK,
                max_t=arguments.env_steps,
                grace_period=max(1, arguments.env_steps // 10),
                reduction_factor=3,
            ),
        ),
        run_config=tune.RunConfig(
            name="plain",
            storage_path=str(folder),
            stop={CLOCK: arguments.env_steps},
            callbacks=[
                MLflowLoggerCallback(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}", experiment_name="plain"),
                first,
            ],
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=True),
            verbose=1,
        ),
    )
    results = tuner.fit()
    returns = [r.metrics["env_runners"].get("episode_return_mean", math.nan) for r in results if r.metrics]
    answer = {
        "wall_s": time.time() - arguments.began,
        "first_report_s": first.at - arguments.began,
        "env_steps": sum(int(r.metrics.get(CLOCK, 0)) for r in results if r.metrics),
        "best": max((value for value in returns if not math.isnan(value)), default=None),
        "trials": len(results),
        "failed": results.num_errors,
    }
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
