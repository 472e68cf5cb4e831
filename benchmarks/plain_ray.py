"""A sweep as the documentation of Ray Tune, RLlib, Optuna and MLflow writes it: ``benchmarks/sweep.py``'s baseline.

    python -m benchmarks.plain_ray --trials 8 --env-steps 20000

About three minutes on two quiet cores; prints one JSON line. Stock throughout: ``tune.Tuner("PPO", ...)`` with
OptunaSearch, ASHAScheduler and MLflowLoggerCallback, their own defaults wherever conf/ sets nothing. Space, settings,
first trial, trials, budget and the rungs of early stopping are those of ``python -m sweeps.run algo=ppo env=cartpole
'~tuned' searcher=tpe`` (shared_settings.py). What is Tune's own and differs: a trial reports after each iteration,
not 20 times, and its mean return is that of the iteration's episodes.
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

from optuna.samplers import TPESampler  # noqa: E402
from ray import tune  # noqa: E402
from ray.air.integrations.mlflow import MLflowLoggerCallback  # noqa: E402
from ray.rllib.algorithms.ppo import PPOConfig  # noqa: E402
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig  # noqa: E402
from ray.tune.schedulers import ASHAScheduler  # noqa: E402
from ray.tune.search.optuna import OptunaSearch  # noqa: E402

from benchmarks.shared_settings import ALGO, RULE, STARTUP, first_trial, suggest  # noqa: E402

METRIC = "env_runners/episode_return_mean"
CLOCK = "num_env_steps_sampled_lifetime"


class FirstReport(tune.Callback):
    """Notes when the first report came."""

    at = math.nan

    def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **_: Any) -> None:
        """Keep the first."""
        if math.isnan(self.at):
            self.at = time.time()


def algorithm() -> PPOConfig:
    """Return conf/algo/ppo.yaml on CartPole."""
    return (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(**ALGO["env_runners"])
        .learners(**ALGO["learners"])
        .rl_module(model_config=DefaultModelConfig(**ALGO["rl_module"]["model_config"]))
        .training(**ALGO["training"])
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
            search_alg=OptunaSearch(
                space=suggest,  # the names that it draws by go into the config as well; RLlib leaves them alone
                metric=METRIC,
                mode="max",
                sampler=TPESampler(n_startup_trials=STARTUP),
                points_to_evaluate=[first_trial()],
            ),
            scheduler=ASHAScheduler(
                time_attr=CLOCK,
                max_t=arguments.env_steps,
                grace_period=max(1, int(arguments.env_steps * RULE["grace_fraction"])),
                reduction_factor=RULE["reduction_factor"],
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
        "stopped": sum(int(r.metrics.get(CLOCK, 0)) < arguments.env_steps for r in results if r.metrics),
        "failed": results.num_errors,
    }
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
