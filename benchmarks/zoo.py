"""rl_zoo3's optimiser on PPO CartPole: one contender of ``benchmarks/sweep.py``.

    python -m benchmarks.zoo --trials 8 --env-steps 20000                               its own defaults
    python -m benchmarks.zoo --trials 8 --env-steps 20000 --n-evaluations 10 --pruner halving

About two minutes, or half a minute with halving, on two quiet cores; prints one JSON line. Space, settings and first
trial are those of the others (shared_settings.py). What is rl_zoo3's own and differs:

- It evaluates each trial apart from its training, 5 deterministic episodes in one environment at a time, and reads its
  objective there. By its default that happens once in 100,000 steps, at this budget once, at the end.
- Its default pruner, the median, stops nobody among the first n_startup_trials, 8 as ours has. Its halving has the
  factor 4, and saves nothing unless there is more than one evaluation.
- Two processes share one storage, as its documentation has it for several workers (``--storage``), with one trial each
  at a time. ``--n-jobs 2`` would run both trials as threads of one Python process, which takes much longer.
- The best policy is neither evaluated on fresh episodes nor registered, and nothing is tracked.
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

from benchmarks import peers
from benchmarks.records import ROOT
from benchmarks.shared_settings import ALGO, STARTUP

WORKERS = 2


def command(trials: int, env_steps: int, folder: Path, more: list[str]) -> list[str]:
    """Return what is typed, less its own defaults: ``more`` may replace them."""
    options = {
        "--algo": "ppo", "--env": "CartPole-v1", "-n": env_steps, "--max-total-trials": trials, "--n-jobs": 1,
        "--storage": folder / "study.log", "--study-name": "bench", "--n-startup-trials": STARTUP, "--num-threads": 1,
        "--device": "cpu", "-f": folder / "logs", "--verbose": 1,
    }  # fmt: skip
    typed = [str(peers.PYTHON), "-m", "benchmarks.zoo_train", "-optimize", "--no-optim-plots", *more]
    for name, value in options.items():
        typed += [name, str(value)]
    # Its CartPole file's own schedules and 8 environments give way to the settings of conf/algo/ppo.yaml.
    training, envs = ALGO["training"], ALGO["env_runners"]["num_envs_per_env_runner"]
    return [
        *typed, "-params", f"n_envs:{envs}", f"vf_coef:{training['vf_loss_coeff']}",
        f"max_grad_norm:{training['grad_clip']}", "policy:'MlpPolicy'",
    ]  # fmt: skip


def run(trials: int, env_steps: int, folder: Path, *more: str) -> dict[str, Any]:
    """Optimise, and say how long it took."""
    folder.mkdir(parents=True, exist_ok=True)
    # Without these the libraries of NumPy and torch would start threads for all cores in both processes.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    typed, began = command(trials, env_steps, folder, list(more)), time.time()
    logs = [folder / f"worker-{number}.txt" for number in range(WORKERS)]
    workers = []
    for path in logs:
        with path.open("w") as log:
            workers.append(subprocess.Popen(typed, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT))
    codes = [worker.wait() for worker in workers]
    wall_s, outputs = time.time() - began, [path.read_text() for path in logs]
    output = "".join(outputs)
    values = [float(v) for v in re.findall(r"finished with value: (-?[\d.]+)", output)]
    ended = len(values) + len(re.findall(r"Trial \d+ pruned", output))
    if any(codes) or ended < trials:
        raise RuntimeError(f"rl_zoo3 ended {ended} of {trials} trials (exit {codes}):\n{output[-2000:]}")
    counted = [json.loads(re.findall(r"^\{.*\}$", each, re.MULTILINE)[-1]) for each in outputs]
    steps = {name: sum(each[name] for each in counted) for name in counted[0]}
    return {"wall_s": wall_s, **steps, "stopped": ended - len(values), "best": max(values, default=None)}


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--env-steps", type=int, default=20_000)
    parser.add_argument("--folder", type=Path, default=Path("zoo"))
    arguments, more = parser.parse_known_args()
    peers.make_venv()
    print(json.dumps(run(arguments.trials, arguments.env_steps, arguments.folder.absolute(), *more)), flush=True)


if __name__ == "__main__":
    main()
