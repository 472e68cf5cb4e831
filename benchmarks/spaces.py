"""Masks, several choices, a camera beside a vector, and discrete observations: speed and returns beside the peers.

    python -m benchmarks.spaces [--only speed,returns] [--tasks ppo_jobshop,...] [--seeds 10]

Trains PPO with equal networks, batches, epochs and initial weights in rltune and in Stable-Baselines3, whose masks are
those of sb3-contrib's MaskablePPO, and FrozenLake in stock RLlib as well. Speed: rounds in turns, as in
`benchmarks.engine`, for 10 minutes on two quiet cores. Returns: ten seeds a side, one training at a time, which takes
two hours; trainings that the record has are kept, so that an interrupted run goes on. What a library fixes differs as
in `benchmarks.parity`. The peers live in an environment of their own (peers.py).
"""

from __future__ import annotations

import argparse
import functools
import json
import logging
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import engine, peers
from benchmarks.records import (
    ROOT,
    compare_rounds,
    describe_commit,
    describe_load,
    make_record,
    read_cpu_times,
    read_record,
    write_record,
)

SIDES = {"ours": "rltune", "sb3": "SB3", "rllib": "stock RLlib"}
SEEDS = 10
ROUNDS = 5
WINDOW = 100  # The last episodes of a training whose mean return is its training return.
Act = Callable[[Any, Any], Any]
"""Chooses an action for an observation and a mask, or None without masks."""


@dataclass(frozen=True)
class Task:
    """One row of both tables, whose words `benchmarks.engine.ELSEWHERE` has.

    Attributes:
        env: The environment's id.
        num_envs: Environments that step together.
        settings: PPO's settings that differ from `PPO`, by Stable-Baselines3's names.
        steps: Environment steps of a training whose return is compared; 0 if its return is not.
        episodes: Fresh episodes of the greedy policy.
        is_masked: Whether the environment has masks, in a method ``action_masks``.
        policy: Stable-Baselines3's name of the policy.
        layers: What rltune's networks need beside `LAYERS` to equal those of ``policy``, by RLlib's names.
        sides: Who trains it, of `SIDES`.
    """

    env: str
    num_envs: int = 8
    settings: dict[str, Any] = field(default_factory=dict)
    steps: int = 0
    episodes: int = 20
    is_masked: bool = False
    policy: str = "MlpPolicy"
    layers: dict[str, Any] = field(default_factory=dict)
    sides: tuple[str, ...] = ("ours", "sb3")


PPO = {
    "n_steps": 256, "batch_size": 64, "learning_rate": 3e-4, "n_epochs": 10, "gamma": 0.99, "gae_lambda": 0.95,
    "clip_range": 0.2, "ent_coef": 0.0,
}  # fmt: skip
LAYERS = {
    "fcnet_hiddens": [64, 64], "fcnet_activation": "tanh", "vf_share_layers": False, "head_fcnet_hiddens": [],
    "fcnet_kernel_initializer": "orthogonal_", "fcnet_kernel_initializer_kwargs": {"gain": 2**0.5},
    "fcnet_bias_initializer": "zeros_",
}  # fmt: skip
# MultiInputPolicy shares the convolutions of Mnih et al. (2015) and a layer of 256, and has two layers for each head.
CAMERA_LAYERS = {
    "conv_filters": [[32, 8, 4, "valid"], [64, 4, 2, "valid"], [64, 3, 1, "valid"]], "conv_activation": "relu",
    "fcnet_hiddens": [256], "fcnet_activation": "relu", "vf_share_layers": True, "head_fcnet_hiddens": [64, 64],
    "head_fcnet_activation": "tanh",
}  # fmt: skip
FEW_UPDATES = {"n_steps": 128, "n_epochs": 4}
MODULE = "benchmarks.space_envs"
TASKS = {
    "ppo_invalid_actions": Task(f"{MODULE}:InvalidActions-v0", 1, {"n_steps": 2048, "gamma": 0.4}, 10_240, 20, True),
    "ppo_switches": Task(
        f"{MODULE}:Switches-v0", 16,
        {**FEW_UPDATES, "n_steps": 64, "batch_size": 512, "gamma": 0.4, "learning_rate": 1e-3}, 4_096, 1, True,
    ),
    "ppo_jobshop": Task(f"{MODULE}:JobShop-v0", 8, {}, 16_384, 1, True),
    "ppo_jobshop_1": Task(f"{MODULE}:JobShop-v0", 1, {"n_steps": 2048}, is_masked=True),
    "ppo_camera": Task(
        f"{MODULE}:Camera-v0", 8, {**FEW_UPDATES, "batch_size": 256},
        policy="MultiInputPolicy", layers=CAMERA_LAYERS,
    ),
    "ppo_frozenlake": Task("FrozenLake-v1", 8, {}, 20_480, 200, sides=("ours", "sb3", "rllib")),
}  # fmt: skip


@functools.cache
def make_build(name: str) -> Any:
    """Return a task as a sweep would build it from its settings, without hyperparameters that are sampled."""
    from rltune.compose.composing import compose_settings, read_request
    from rltune.config.schema import RunConfig
    from rltune.driver.plan import make_plan

    task = TASKS[name]
    s = PPO | task.settings
    training = {
        "train_batch_size_per_learner": s["n_steps"] * task.num_envs, "minibatch_size": s["batch_size"],
        "num_epochs": s["n_epochs"], "lr": s["learning_rate"], "gamma": s["gamma"], "lambda_": s["gae_lambda"],
        "clip_param": s["clip_range"], "entropy_coeff": s["ent_coef"], "vf_loss_coeff": 0.5, "vf_clip_param": 1e9,
        "use_kl_loss": False, "grad_clip": 0.5,
    }  # fmt: skip
    words = ["algo=ppo", "env=gym", f"env.id='{task.env}'", "env.name=benchmark", "algo.normalise=[]"]
    words += [f"algo.training.{name}={value}" for name, value in training.items()]
    words += [f"algo.env_runners.num_envs_per_env_runner={task.num_envs}"]
    return make_plan(read_request(compose_settings("run", RunConfig, words), words)).build.with_params({})


def make_config(name: str, kind: str, seed: int = 0) -> Any:
    """Return a task as RLlib's config, for rltune (``ours``) or for stock RLlib."""
    from rltune.algorithms.build import build_config

    config, task = build_config(make_build(name), {}, seed), TASKS[name]
    config.rl_module(model_config={**config.model_config, **LAYERS, **task.layers})
    config.reporting(metrics_num_episodes_for_smoothing=WINDOW, min_time_s_per_iteration=0)
    if kind == "rllib":  # As its own examples do: it has no network for discrete observations.
        from ray.rllib.connectors.env_to_module import FlattenObservations

        config.environment(task.env)
        config.env_runners(env_to_module_connector=lambda *_: FlattenObservations())
    return config


def build_sb3(name: str, seed: int | None = None, device: str = "cpu") -> Any:
    """Return a task's algorithm of Stable-Baselines3 or sb3-contrib."""
    import gymnasium as gym
    import stable_baselines3
    from sb3_contrib import MaskablePPO
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv

    task = TASKS[name]
    envs = DummyVecEnv([lambda: Monitor(gym.make(task.env))] * task.num_envs)
    cls = MaskablePPO if task.is_masked else stable_baselines3.PPO
    return cls(task.policy, envs, seed=seed, device=device, stats_window_size=WINDOW, **(PPO | task.settings))


def train_rllib(name: str, kind: str, seed: int) -> tuple[Act, float, int]:
    """Train in rltune or stock RLlib; return the greedy policy, the training return, and the steps."""
    from rltune.engine import build_algorithm
    from rltune.envs.observations import find_layout
    from rltune.policies.bundle_reader import BundlePolicy
    from rltune.policies.bundle_writer import write_bundle

    build, result = make_build(name), dict[str, Any]()
    algorithm = build_algorithm(make_config(name, kind, seed), "rllib" if kind == "rllib" else "fast")
    while result.get("num_env_steps_sampled_lifetime", 0) < TASKS[name].steps:
        result = algorithm.train()
    observation_space, action_space = build.facts.find_policy_spaces()
    with tempfile.TemporaryDirectory() as folder:
        write_bundle(
            algorithm.get_module(), folder, info={}, observation_space=observation_space, action_space=action_space,
            layout=find_layout(observation_space, build.env),
        )  # fmt: skip
        policy = BundlePolicy.load(folder)
    algorithm.stop()
    runners, steps = result["env_runners"], int(result["num_env_steps_sampled_lifetime"])
    return lambda obs, mask: policy.act(obs, action_mask=mask), float(runners["episode_return_mean"]), steps


def train_sb3(name: str, seed: int) -> tuple[Act, float, int]:
    """Train in Stable-Baselines3 or sb3-contrib; return the greedy policy, the training return, and the steps."""
    model = build_sb3(name, seed)
    model.learn(TASKS[name].steps)

    def act(obs: Any, mask: Any) -> Any:
        masks = {} if mask is None else {"action_masks": mask}
        return model.predict(obs, deterministic=True, **masks)[0]

    return act, float(np.mean([each["r"] for each in model.ep_info_buffer])), model.num_timesteps


def evaluate(task: Task, act: Act) -> float:
    """Return the mean return of the greedy policy over fresh episodes: the same code for all sides."""
    import gymnasium as gym

    env, returns = gym.make(task.env), []
    for episode in range(task.episodes):
        obs, total, over = env.reset(seed=1_000_000 + episode)[0], 0.0, False
        while not over:
            mask = env.get_wrapper_attr("action_masks")() if task.is_masked else None
            action = np.asarray(act(obs, mask))
            obs, reward, terminated, truncated, _ = env.step(action if action.ndim else int(action))
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    return float(np.mean(returns))


def work(side: str) -> None:
    """Train what each line of stdin names (task and seed), and print a row of the record."""
    import torch

    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore")
    if side != "sb3" and (site := peers.packages_folder()):
        sys.path.append(str(site))
    for line in sys.stdin:
        name, seed = line.split()
        act, training, steps = train_sb3(name, int(seed)) if side == "sb3" else train_rllib(name, side, int(seed))
        print(json.dumps({"final": evaluate(TASKS[name], act), "training": training, "env_steps": steps}), flush=True)


class Side:
    """The process in which one side trains, one task and seed after another; it begins with the first one.

    Args:
        name: A key of `SIDES`.
    """

    def __init__(self, name: str) -> None:
        self.name, self._process = name, None

    def train(self, task: str, seed: int) -> dict[str, Any]:
        """Train, and return the row of the record."""
        if self._process is None:
            paths = os.pathsep.join((str(ROOT), str(ROOT / "src")))
            self._process: Any = subprocess.Popen(
                [str(peers.PYTHON) if self.name == "sb3" else sys.executable, "-m", __spec__.name, "--work", self.name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths},
            )
        print(task, seed, file=self._process.stdin, flush=True)
        for line in self._process.stdout:
            if line.startswith("{"):
                return {"task": task, "side": self.name, "seed": seed, **json.loads(line), "commit": describe_commit()}
        raise RuntimeError(f"the process of {SIDES[self.name]} ended with {self._process.wait()}")

    def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.communicate()


def compare_returns(rows: list[dict[str, Any]]) -> str:
    """Return the table of returns in Markdown, a line for each task and peer."""
    from benchmarks.intervals import bound_mean  # The peers' environment may lack SciPy.

    head = ["task", "steps", "beside", "seeds", "final: rltune, median", "the other's", "difference of means"]
    lines = [f"| {' | '.join([*head, 'difference in training'])} |", "|---" * (len(head) + 1) + "|"]
    for name, task in TASKS.items():
        ours = [row for row in rows if (row["task"], row["side"]) == (name, "ours")]
        for side in task.sides[1:]:
            theirs = [row for row in rows if (row["task"], row["side"]) == (name, side)]
            if min(len(ours), len(theirs)) < 2:
                continue
            cells = [engine.ELSEWHERE[name].words, f"{task.steps:,}", SIDES[side], f"{len(ours)} and {len(theirs)}"]
            cells += [f"{np.median([row['final'] for row in group]):.2f}" for group in (ours, theirs)]
            pairs = [[[row[key] for row in group] for group in (ours, theirs)] for key in ("final", "training")]
            cells += [bound_mean(*pair).show("+.2f") for pair in pairs]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def compare_speeds(results: dict[str, Any]) -> str:
    """Return the table of steps per second in Markdown, at its end with the ratios by the processes' CPU time."""
    kinds = list(SIDES)
    lines = [engine.head(kinds).replace("\n", f" {' | '.join(f'by CPU time: / {SIDES[k]}' for k in kinds[1:])} |\n")]
    lines[0] += "---|" * (len(kinds) - 1)
    for case in TASKS:
        by_cpu = {kind: engine.speeds(each, of_cpu=True) for kind, each in results.get(case, {}).items()}
        cells = [str(compare_rounds(by_cpu["ours"], by_cpu[kind])) if kind in by_cpu else "" for kind in kinds[1:]]
        lines.append(f"{engine.row(case, results.get(case), kinds)} {' | '.join(cells)} |")
    return "\n".join(lines)


def table(record: dict[str, Any]) -> str:
    """Return the record as Markdown: a table of steps per second, and one of returns."""
    return f"{compare_speeds(record['results']['speed'])}\n\n{compare_returns(record['results']['returns'])}"


def main() -> None:
    """Measure what is asked for, print the tables, and keep the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="speed,returns", help="comma-separated")
    parser.add_argument("--tasks", default=",".join(TASKS), help="comma-separated")
    parser.add_argument("--sides", default=",".join(SIDES), help="of returns; comma-separated")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--again", choices=list(SIDES), action="append", default=[], help="drop this side's rows first")
    parser.add_argument("--json", type=Path, help="a file spaces.json in any folder; none: benchmarks/results/")
    parser.add_argument("--work", choices=list(SIDES), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        return work(arguments.work)
    peers.make_venv()
    tasks, parts = arguments.tasks.split(","), arguments.only.split(",")
    record = read_record("spaces", arguments.json.parent) if arguments.json else read_record("spaces")
    results = record["results"] if record else {"speed": {}, "returns": []}

    note = record.get("note") if record else None

    def keep() -> None:
        new = {**make_record("spaces", ROUNDS, results, peers.versions()), "command": "python -m benchmarks.spaces"}
        write_record(new | ({"note": note} if note else {}), arguments.json)

    times = read_cpu_times()
    for task in tasks if "speed" in parts else ():
        results["speed"][task] = engine.measure(task, ROUNDS, [*TASKS[task].sides])
        note = describe_load(times) or note
        keep()
        print(engine.row(task, results["speed"][task], list(SIDES)), flush=True)
    rows = results["returns"]
    rows[:] = [row for row in rows if not (row["side"] in arguments.again and row["task"] in tasks)]
    done, sides = {(row["task"], row["side"], row["seed"]) for row in rows}, {name: Side(name) for name in SIDES}
    for task in tasks if "returns" in parts else ():
        for seed in range(arguments.seeds if TASKS[task].steps else 0):
            for side in TASKS[task].sides:
                if side in arguments.sides.split(",") and (task, side, seed) not in done:
                    rows.append(sides[side].train(task, seed))
                    keep()
                    print(f"{task} {side} seed {seed}: {rows[-1]['final']:.2f}", flush=True)
    for side in sides.values():
        side.stop()
    print(table({"results": results}))


if __name__ == "__main__":
    main()
