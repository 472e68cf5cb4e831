"""Learners on a GPU: PPO and SAC against Stable-Baselines3 on the same GPU, and four trials that share it.

    python -m benchmarks.gpu [--quick]

About 10 minutes; 3 with --quick, which keeps no record. Steps per second as in engine.py, both with the learner on the
GPU, and ours also compiled. Then the same four trials at a quarter of the GPU each, and one after another with all of
it. Without a GPU it says so and measures nothing.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import engine, peers
from benchmarks.records import ROOT, compare_rounds, make_record, spread_of, write_record

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
    typed = [sys.executable, "-m", "rltune", "run", *SWEEP, f"budget.env_steps={env_steps}"]
    typed += [f"resources.gpus_per_trial={fraction}"]
    paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as folder:
        began = time.perf_counter()
        subprocess.run(typed, cwd=folder, env=environment, stdout=subprocess.DEVNULL, check=True)
        return time.perf_counter() - began


def table(record: dict[str, Any]) -> str:
    """Return the record as Markdown."""
    cases, pairs = record["results"]["engine"], record["results"]["shared_s"]
    lines = [engine.head(KINDS), *(engine.row(case, cases.get(case), KINDS) for case in CASES)]
    lines += ["", "| four trials on one GPU | one after another, s | a quarter each, s | ratio |", "|---" * 4 + "|"]
    alone, together = zip(*pairs, strict=True)
    medians = f"{spread_of(alone).median:.1f} | {spread_of(together).median:.1f}"
    return "\n".join([*lines, f"| SAC Pendulum | {medians} | {compare_rounds(alone, together)} |"])


def main() -> None:
    """Parse, run, print, and keep the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three short rounds, one pair of sweeps, no record")
    parser.add_argument("--json", type=Path, help="where the record goes; none: benchmarks/results/gpu.json")
    arguments = parser.parse_args()
    if not has_gpu():
        print("not run: torch finds no GPU on this machine")
        return
    peers.make_venv()
    rounds, shorten, env_steps = (3, 0.5, 3_000) if arguments.quick else (engine.ROUNDS, 1.0, 10_000)
    cases = {case: engine.measure(case, rounds, KINDS, shorten, "cuda") for case in CASES}
    # Four at once against one after another, in turns.
    pairs = [(sweep(1.0, env_steps), sweep(0.25, env_steps)) for _ in range(1 if arguments.quick else 3)]
    record = make_record("gpu", rounds, {"engine": cases, "shared_s": pairs}, peers.versions())
    print(table(record))
    if arguments.json or not arguments.quick:
        write_record(record, arguments.json)


if __name__ == "__main__":
    main()
