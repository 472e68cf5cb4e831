"""The tuned settings, trained and evaluated: the table of published and measured returns in docs/measurements.md.

    python -m benchmarks.tuned                       every task, three seeds each
    python -m benchmarks.tuned ppo_cartpole --seeds 1

Hours in all; ppo_cartpole a minute, a task of a million steps much longer. A task's seeds replace those of its record,
benchmarks/results/tuned.json; with --steps nothing is kept.

Each run is what a sweep's first trial does with the files of conf/: the checkpoint with the best training return of 20
reports is kept, and acts deterministically in 100 episodes of their own seeds. One process, one torch thread.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.records import make_record, read_record, write_record

if TYPE_CHECKING:
    from rltune.config.schema import RunConfig

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
    """Return what ``python -m sweeps.run`` would run."""
    from hydra import compose, initialize_config_dir
    from hydra.core.config_store import ConfigStore

    from rltune.compose.composing import conf_dir
    from rltune.config.schema import RunConfig
    from rltune.config.validation import parse_config

    ConfigStore.instance().store("base_run", RunConfig)
    with initialize_config_dir(version_base="1.3", config_dir=str(conf_dir())):
        return parse_config(compose("run", [f"algo={task.algo}", f"env={task.env}"]))


def run(task: Task, seed: int, env_steps: int) -> Run:
    """Train one seed, keep its best checkpoint, evaluate that."""
    from rltune.driver.plan import make_plan
    from rltune.policies.evaluation import evaluate
    from rltune.policies.policy import load_policy
    from rltune.trial.algorithm_runner import AlgorithmRunner

    made = make_plan(settings(task))
    (first, *_) = made.warm_starts
    runner = AlgorithmRunner(
        made.build, first, made.seeds(seed)[0], "fast", threads=1, scored_steps=env_steps / REPORTS
    )
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


def table(record: dict[str, Any]) -> str:
    """Return the record as Markdown: what was published, the mean over the seeds, and each of them."""
    lines = ["| pair | steps | published | measured | seeds | each | on |", "|---|---|---|---|---|---|---|"]
    for task in TASKS:
        cells = [f"{task.algo} {task.env}", f"{task.env_steps:,}", task.published]
        if found := record["results"].get(task.name):
            returns = found["returns"]
            each = ", ".join(f"{one:.1f}" for one in returns)
            cells += [f"{statistics.fmean(returns):.1f}", str(len(returns)), each, found["date"]]
        else:
            cells += ["not measured", "", "", ""]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Run what was asked for, one after another, and keep each task's returns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", help="names as in conf/tuned, such as ppo_cartpole; none: all")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=0, help="environment steps, no record; 0: those of the table")
    parser.add_argument("--json", type=Path, help="where the record goes; none: benchmarks/results/tuned.json")
    args: Any = parser.parse_args()
    for task in [task for task in TASKS if not args.tasks or task.name in args.tasks]:
        returns = []
        for seed in range(args.seeds):
            done = run(task, seed, args.steps or task.env_steps)
            returns.append(round(done.mean, 1))
            print(done, flush=True)
        reached = "reached" if min(returns) >= task.bar else "not reached by every seed"
        print(f"{task.name}: {returns}, bar {task.bar:g}: {reached}", flush=True)
        if args.json or not args.steps:
            record = make_record("tuned", args.seeds, (read_record("tuned") or {"results": {}})["results"])
            record["results"][task.name] = {"date": record["date"], "commit": record["commit"], "returns": returns}
            write_record(record, args.json)


if __name__ == "__main__":
    main()
