"""rl_zoo3's optimiser over the space of conf/space/ppo.yaml: one contender of ``benchmarks/sweep.py``.

    python benchmarks/zoo.py --trials 8 --env-steps 20000

Runs ``python -m rl_zoo3.train --algo ppo --env CartPole-v1 -optimize`` in the peers' environment (see engine.py), with
its PPO sampler replaced by ours through ``zoo_space.py``, and prints one JSON line.

What differs from our sweep, because rl_zoo3 has no setting for it: both trials at once are threads of one process;
its objective is 5 deterministic episodes at each of 10 evaluations, which its halving pruner (factor 4, not 3) looks
at from the first on; the best policy is neither evaluated on fresh episodes nor registered; no tracking.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import time
from pathlib import Path
from typing import Any

from engine import VENV, make_venv

ZOO = ["rl_zoo3==2.9.0", "pandas", "optuna"]  # it writes its result with pandas, which it does not ask for


def make_zoo_venv() -> None:
    """Add rl_zoo3 to the peers' environment, once."""
    make_venv()
    python = str(VENV / "bin" / "python")
    if subprocess.run([python, "-c", "import rl_zoo3, pandas, optuna"], capture_output=True, check=False).returncode:
        subprocess.run([python, "-m", "pip", "install", "-q", *ZOO], check=True)


def command(trials: int, env_steps: int, folder: Path) -> list[str]:
    """What is typed."""
    options = {
        "--algo": "ppo", "--env": "CartPole-v1", "-n": env_steps, "--n-trials": trials, "--n-jobs": 2,
        "--sampler": "tpe", "--pruner": "halving", "--n-startup-trials": 8, "--n-evaluations": 10,
        "--num-threads": 1, "--device": "cpu", "-f": folder / "logs", "--verbose": 1,
    }  # fmt: skip
    typed = [str(VENV / "bin" / "python"), str(Path(__file__).with_name("zoo_space.py")), "-optimize"]
    typed += ["--no-optim-plots"]
    for name, value in options.items():
        typed += [name, str(value)]
    # Its CartPole file's own schedules and 8 environments give way to the settings of conf/algo/ppo.yaml.
    return [*typed, "-params", "n_envs:16", "vf_coef:0.5", "max_grad_norm:0.5", "policy:'MlpPolicy'"]


def run(trials: int, env_steps: int, folder: Path) -> dict[str, Any]:
    """Optimise, and say how long it took."""
    folder.mkdir(parents=True, exist_ok=True)
    # Without the thread settings of NumPy's and torch's libraries two threads of trials would take four cores.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    began = time.time()
    done = subprocess.run(
        command(trials, env_steps, folder), cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    wall_s = time.time() - began
    output = done.stdout + done.stderr
    (folder / "output.txt").write_text(output)
    values = [float(v) for v in re.findall(r"finished with value: (-?[\d.]+)", output)]
    ended = len(values) + len(re.findall(r"Trial \d+ pruned", output))
    if done.returncode or ended < trials:
        raise RuntimeError(f"rl_zoo3 ended {ended} of {trials} trials (exit {done.returncode}):\n{output[-2000:]}")
    return {"wall_s": wall_s, "trials": ended, "pruned": ended - len(values), "best": max(values, default=None)}


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--env-steps", type=int, default=20_000)
    parser.add_argument("--folder", type=Path, default=Path("zoo"))
    arguments = parser.parse_args()
    make_zoo_venv()
    print(json.dumps(run(arguments.trials, arguments.env_steps, arguments.folder.absolute())), flush=True)


if __name__ == "__main__":
    main()
