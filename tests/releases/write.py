"""Write what this version stores, a small sweep and a policy of each kind, for the tests of later versions.

``python -m tests.releases.write`` makes a folder of the version's name beside this file. A folder that is there is not
written again, because it shows what that release has left on its users' disks. Until it is published, it may be:
``rm -r tests/releases/0.1.0; python -m tests.releases.write``.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch

import rltune

HERE = Path(__file__).parent
RECORDED = "recorded.json"  # What the release itself said of the sweep, and did with the policies.
SWEEP = ("algo=ppo", "env=cartpole", "algo.rl_module.model_config.fcnet_hiddens=[8]", "name=first", "seed=1",
         "budget.trials=3", "budget.env_steps=2000", "budget.reports=4", "certify.top=1", "certify.seeds=2",
         "certify.episodes=5", "certify.champion_episodes=5", "tracking=off", "report=false")  # fmt: skip
# The file of the ledger has the names of this machine and its folders.
ANONYMIZE = """
PRAGMA journal_mode = DELETE;
UPDATE sweeps SET folder = '/home/user/outputs/first', git_commit = NULL;
UPDATE sweep_trials SET node = 'host';
UPDATE leases SET driver = NULL;
VACUUM;
"""
KEPT = ("config.yaml", "ledger.db", "summary.json", "certification.*", "trials", "certify")


def select_facts(sweep: Mapping[str, Any]) -> dict[str, Any]:
    """Select what later versions have to know of a sweep, from what ``rltune show json=true`` prints."""
    keys = ("name", "status", "algorithm", "environment", "seed", "env_steps", "command", "best")
    trial_keys = ("trial", "state", "score", "env_steps", "params")
    return {
        **{key: sweep[key] for key in keys},
        "certified": {key: value for key, value in sweep["certified"]["configurations"][0].items() if key != "scores"},
        "trials": [{key: trial[key] for key in trial_keys} for trial in sweep["trials_best_first"]],
        "winner": {key: sweep["winner"][key] for key in ("trial", "params", "objective", "checkpoint")},
    }


def play(policy: rltune.Policy, observations: np.ndarray) -> dict[str, Any]:
    """Return a policy's outputs and actions for observations that follow each other, one in each step."""
    steps: dict[str, Any] = {"outputs": [], "actions": []}
    state = None
    for observation in observations:
        rows, memory, _ = policy.prepare_inputs(observation, state)
        with torch.inference_mode():
            outputs, _ = policy.network.step(torch.from_numpy(rows), torch.from_numpy(memory))
        action, state = policy.predict(observation, state)
        steps["outputs"].append(outputs[0].tolist())
        steps["actions"].append(action.tolist())
    return steps


def write_policies(folder: Path) -> None:
    """Write an untrained policy of each kind of head, with an LSTM and with a filter of observations."""
    # Imported here, because the tests import this file and need no RLlib.
    from ray.rllib.algorithms.dqn import DQNConfig
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.algorithms.sac import SACConfig

    from rltune.policies.bundle_writer import write_bundle
    from tests.policies.rllib_modules import recurrent_runner, runner_of

    torch.manual_seed(0)
    small = {"fcnet_hiddens": [8], "head_fcnet_hiddens": [8]}
    distributional = DQNConfig().training(num_atoms=5, v_min=0.0, v_max=100.0)
    runners = {
        "dqn": runner_of(DQNConfig(), "CartPole-v1", **small),
        "rainbow": runner_of(distributional, "CartPole-v1", **small),
        "sac": runner_of(SACConfig(), "Pendulum-v1", **small),
        "lstm": recurrent_runner(PPOConfig, "CartPole-v1", **small),
        "filtered": runner_of(PPOConfig(), "Pendulum-v1", **small),
    }
    stats = {"mean": [0.1, -0.2, 0.5], "var": [0.5, 0.4, 9.0], "clip": 3.0}
    for name, runner in runners.items():
        env = {"id": runner.config.env, "kwargs": {}}
        filtered = stats if name == "filtered" else None
        write_bundle(runner.module, folder / name, info={"algo": name, "env": env}, observation_stats=filtered)


def write_sweep(folder: Path) -> None:
    """Run a sweep, and copy what it leaves without the names of this machine."""
    with tempfile.TemporaryDirectory() as home:
        programs = str(Path(sys.executable).parent)  # On PATH, so that no command that is kept has the path.
        environment = os.environ | {"PATH": os.pathsep.join((programs, os.environ["PATH"]))}
        subprocess.run(["rltune", "run", *SWEEP], cwd=home, env=environment, check=True)
        for pattern in KEPT:
            for path in Path(home, "outputs", "first").glob(pattern):
                (shutil.copytree if path.is_dir() else shutil.copy)(path, folder / path.name)
    with closing(sqlite3.connect(folder / "ledger.db")) as ledger:
        ledger.executescript(ANONYMIZE)


def drop_trainers(sweep: Path, kept: int) -> None:
    """Drop RLlib's own files, most of a checkpoint, because no later version has to read them.

    One trial keeps them: a policy of a trial loads only from a checkpoint whose files are those that the ledger has.
    """
    for trainer in [*sweep.glob("certify/*/*/*/algorithm"), *sweep.glob("trials/*/*/*/algorithm")]:
        if f"trials/{kept}/" not in trainer.as_posix():
            shutil.rmtree(trainer)


def read_facts(folder: Path) -> dict[str, Any]:
    """Read the sweep by the command."""
    command = [sys.executable, "-m", "rltune", "show", "sweep=first", f"output_dir={folder}", "json=true"]
    answer = subprocess.run(command, check=True, capture_output=True, text=True)
    return select_facts(json.loads(answer.stdout))


def main() -> None:
    """Write all of it."""
    folder = HERE / rltune.__version__
    (folder / "first").mkdir(parents=True)
    write_sweep(folder / "first")
    write_policies(folder / "policies")
    facts = read_facts(folder)
    drop_trainers(folder / "first", facts["best"]["trial"])
    rng, played = np.random.default_rng(0), {}
    bundles = sorted(f"policies/{path.name}" for path in (folder / "policies").iterdir())
    sweep = ("sweep:first", f"sweep:first/{facts['best']['trial']}", f"first/{facts['winner']['checkpoint']}")
    for uri in (*sweep, *bundles):
        policy = rltune.load_policy(uri if ":" in uri else folder / uri, output_dir=folder)
        observations = rng.normal(size=(5, *policy.observation_space.shape)).astype(np.float32)
        played[uri] = {"observations": observations.tolist(), **play(policy, observations)}
    (folder / RECORDED).write_text(json.dumps({"sweep": facts, "policies": played}, indent=1) + "\n")


if __name__ == "__main__":
    main()
