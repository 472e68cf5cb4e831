"""The tuned settings, trained and evaluated: the table of published and measured returns in docs/measurements.md.

    python benchmarks/tuned.py                       every task, three seeds each
    python benchmarks/tuned.py ppo_cartpole --seeds 1

Each run is what a sweep's first trial does with the files of conf/: the checkpoint with the best training return of 20
reports is kept, and acts deterministically in 100 episodes of their own seeds. One process, one torch thread.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore

from rltune.config.schema import RunConfig
from rltune.config.validation import parse_config
from rltune.policies.evaluation import evaluate
from rltune.policies.policy import load_policy
from rltune.sweep.plan import make_plan
from rltune.trial.algorithm_runner import AlgorithmRunner
from sweeps._command import conf_dir

REPORTS, EPISODES, FIRST_EPISODE = 20, 100, 10_000


@dataclass(frozen=True)
class Task:
    """One pair: its steps, the return that rl_zoo3's benchmark.md gives, and the return that counts as reached."""

    algo: str
    env: str
    env_steps: int
    published: str
    bar: float

    @property
    def name(self) -> str:
        """As its file in conf/tuned."""
        return f"{self.algo}_{self.env}"


TASKS = (
    Task("ppo", "cartpole", 100_000, "500", 475),
    Task("dqn", "cartpole", 50_000, "500", 475),
    Task("sac", "pendulum", 20_000, "-157", -170),
    Task("ppo", "lunarlander", 1_000_000, "242", 200),
    Task("ppo", "acrobot", 1_000_000, "-73.5", -85),
    Task("ppo", "pendulum", 100_000, "-172", -200),
    Task("dqn", "acrobot", 100_000, "-76.6", -100),
    Task("dqn", "mountaincar", 120_000, "-101", -110),
    Task("ppo", "mountaincar", 1_000_000, "-110", -115),
    Task("dqn", "lunarlander", 100_000, "154", 150),
)


@dataclass(frozen=True)
class Run:
    """What one seed came to."""

    task: str
    seed: int
    mean: float
    low: float
    high: float
    best_at: int
    env_steps: int
    seconds: float


def settings(task: Task) -> RunConfig:
    """What ``python -m sweeps.run`` would run."""
    ConfigStore.instance().store("base_run", RunConfig)
    with initialize_config_dir(version_base="1.3", config_dir=str(conf_dir())):
        return parse_config(compose("run", [f"algo={task.algo}", f"env={task.env}"]))


def run(task: Task, seed: int, env_steps: int) -> Run:
    """Train one seed, keep its best checkpoint, evaluate that."""
    made = make_plan(settings(task))
    (first, *_) = made.warm_starts
    runner = AlgorithmRunner(made.build, first, made.seeds(seed)[0], "fast", threads=1)
    began, best, best_at, steps = time.perf_counter(), -math.inf, 0, 0
    with tempfile.TemporaryDirectory() as scratch:
        for report in range(1, REPORTS + 1):
            while steps < env_steps * report / REPORTS:
                progress = runner.train()
                steps = progress.env_steps
            if progress.return_mean > best or report == 1:
                best, best_at = progress.return_mean, steps
                runner.save(Path(scratch), {"env": made.build.env.to_dict()})
        seconds = time.perf_counter() - began
        result = evaluate(load_policy(scratch), EPISODES, FIRST_EPISODE)
    runner.stop()
    return Run(task.name, seed, result.mean, result.low, result.high, best_at, steps, seconds)


def row(task: Task, runs: list[Run]) -> str:
    """Return one line of the table in docs/measurements.md."""
    means = ", ".join(f"{one.mean:.1f}" for one in runs)
    steps = f"{task.env_steps:,}"
    mean = statistics.fmean(one.mean for one in runs)
    return f"| {task.algo} {task.env} | {steps} | {task.published} | {mean:.1f} ({means}) |"


def main() -> None:
    """Run what was asked for, one after another."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("tasks", nargs="*", help="names as in conf/tuned, such as ppo_cartpole; none: all")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=0, help="environment steps; 0: those of the table")
    parser.add_argument("--json", type=Path, help="append each run to this file as a line")
    args: Any = parser.parse_args()
    for task in [task for task in TASKS if not args.tasks or task.name in args.tasks]:
        runs = []
        for seed in range(args.seeds):
            runs.append(run(task, seed, args.steps or task.env_steps))
            print(runs[-1], flush=True)
            if args.json:
                with args.json.open("a") as file:
                    file.write(json.dumps(asdict(runs[-1])) + "\n")
        reached = "reached" if min(one.mean for one in runs) >= task.bar else "not reached by every seed"
        print(row(task, runs), f" bar {task.bar:g}: {reached}", flush=True)


if __name__ == "__main__":
    main()
