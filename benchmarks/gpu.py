"""Learners on a GPU: PPO and SAC against Stable-Baselines3 on the same GPU, and four trials that share it.

    python benchmarks/gpu.py [--quick] [--json results.json]

Steps per second as in engine.py, both with the learner on the GPU, and ours also compiled. Then the same four trials at
a quarter of the GPU each, and one after another with all of it. Without a GPU it says so and measures nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import engine

HERE = Path(__file__).resolve().parent
CASES = ("ppo_cartpole_32", "ppo_halfcheetah_norm", "sac_pendulum")
KINDS = ["ours", "sb3", "compiled"]
SWEEP = (
    "algo=sac", "env=pendulum", "~tuned", "budget.trials=4", "budget.reports=5", "scheduler=none", "searcher=random",
    "certify=off", "certify.top=0", "tracking=off", "report=false", "resources=gpu_fraction",
)  # fmt: skip


def has_gpu() -> bool:
    """Whether torch finds one."""
    import torch

    return torch.cuda.is_available()


def sweep(fraction: float, env_steps: int) -> float:
    """Wall seconds of four trials with this share of the GPU each."""
    typed = [sys.executable, "-m", "sweeps.run", *SWEEP, f"budget.env_steps={env_steps}"]
    typed += [f"resources.gpus_per_trial={fraction}"]
    paths = [str(HERE.parent), str(HERE.parent / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as folder:
        began = time.perf_counter()
        subprocess.run(typed, cwd=folder, env=environment, stdout=subprocess.DEVNULL, check=True)
        return time.perf_counter() - began


def shared(rounds: int, env_steps: int) -> dict[str, Any]:
    """Four at once against one after another, in turns."""
    pairs = [(sweep(1.0, env_steps), sweep(0.25, env_steps)) for _ in range(rounds)]
    ratio = statistics.median(alone / together for alone, together in pairs)
    print("\n| four trials on one GPU | one after another, s | a quarter each, s | ratio |\n|---|---|---|---|")
    alone, together = (statistics.median(side) for side in zip(*pairs, strict=True))
    print(f"| SAC Pendulum, {env_steps:,} steps each | {alone:.1f} | {together:.1f} | **{ratio:.2f}** |")
    return {"pairs": pairs, "ratio": ratio}


def main() -> None:
    """Parse, run, print, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three short rounds, one pair of sweeps")
    parser.add_argument("--json", type=Path, default=HERE / "results" / "gpu.json")
    arguments = parser.parse_args()
    results: dict[str, Any] = {"ran": has_gpu()}
    if has_gpu():
        engine.make_venv()
        rounds, shorten = (3, 0.5) if arguments.quick else (9, 1.0)
        print(engine.head(KINDS))
        for case in CASES:
            results[case] = engine.summary(case, engine.measure(case, rounds, KINDS, shorten, "cuda"))
            print(engine.row(case, results[case]), flush=True)
        results["shared"] = shared(1 if arguments.quick else 3, 3_000 if arguments.quick else 10_000)
    else:
        print("not run: torch finds no GPU on this machine")
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps({"date": time.strftime("%Y-%m-%d"), "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
