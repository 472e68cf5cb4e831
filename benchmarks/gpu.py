"""Everything about a GPU in one command: trials that share it, the limit of their memory, the peers on the same card.

    python -m benchmarks.gpu [--quick] [--parts engine,together,cap,precision]

At most ten minutes a part; three in all with --quick, which keeps no record.

- ``engine``: PPO and SAC against Stable-Baselines3, both with the learner on the GPU, and ours also compiled.
- ``together``: environment steps per second of 1, 2, 4, 8 and 16 SAC trials at once, each in a sweep that runs all of
  them with ``resources.trials_per_gpu``; where an MPS daemon runs, with it and without it.
- ``precision``: PPO on Breakout's images (extra atari) in float32 and in bfloat16.
- ``cap``: what a process with a quarter of the GPU can take of it, and whether its neighbour trains on meanwhile.

Without a GPU it exits with 2 and measures nothing.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks import engine, peers
from benchmarks.records import ROOT, compare_rounds, make_record, spread_of, write_record

PARTS = ("engine", "together", "cap", "precision")
CASES = ("ppo_cartpole_32", "ppo_halfcheetah_norm", "sac_pendulum")
KINDS = ["ours", "sb3", "compiled"]
TOGETHER = (1, 2, 4, 8, 16)
SHARE, BLOCK = 0.25, 64 * 2**20  # of the part `cap`
NO_GPU = 2  # the exit code
SAC = ("algo=sac", "env=pendulum", "~tuned")
ATARI = ("algo=ppo", "env=breakout")  # with its tuned settings
SWEEP = (
    "name=shared", "budget.reports=5", "scheduler=none", "searcher=random", "certify=off", "certify.top=0",
    "tracking=off", "report=false",
)  # fmt: skip


def has_gpu() -> bool:
    """Whether torch finds one."""
    import torch

    return torch.cuda.is_available()


def measure_engine(quick: bool) -> dict[str, Any]:
    """Let ours and Stable-Baselines3 take turns on the GPU."""
    peers.make_venv()
    rounds, shorten = (3, 0.5) if quick else (engine.ROUNDS, 1.0)
    return {case: engine.measure(case, rounds, KINDS, shorten, "cuda") for case in CASES}


def measure_together(quick: bool) -> dict[str, dict[str, list[float]]]:
    """Run so many trials at once; return the steps per second of each, by how many, with and without MPS."""
    from rltune.cluster.gpus import find_mps

    found: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as nowhere:
        ways = {"without MPS": {"CUDA_MPS_PIPE_DIRECTORY": nowhere}} | ({"with MPS": {}} if find_mps() else {})
        for way, settings in ways.items():
            counts = TOGETHER[::2] if quick else TOGETHER
            steps = 1_000 if quick else 3_000
            found[way] = {str(trials): run_sweep(SAC, trials, steps, settings) for trials in counts}
    return found


def measure_precision(quick: bool) -> dict[str, list[float]]:
    """Train the same trial in both precisions; return the steps per second of each round."""
    rounds, steps = (1, 20_000) if quick else (3, 100_000)
    found: dict[str, list[float]] = {"float32": [], "bfloat16": []}
    for _ in range(rounds):  # in turns
        for precision, rates in found.items():
            rates += run_sweep((*ATARI, f"precision={precision}"), 1, steps, {})
    return found


def run_sweep(what: Sequence[str], trials: int, env_steps: int, settings: dict[str, str]) -> list[float]:
    """Run a sweep of so many trials, all at once; return the environment steps per second of each."""
    from rltune.study.storage import open_ledger

    typed = [
        sys.executable,
        "-m",
        "rltune",
        "run",
        *what,
        *SWEEP,
        f"budget.trials={trials}",
        f"budget.env_steps={env_steps}",
    ]
    typed += [f"resources.trials_per_gpu={trials}"]
    paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **settings}
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as folder:
        subprocess.run(typed, cwd=folder, env=environment, stdout=subprocess.DEVNULL, check=True)
        ledger = open_ledger(Path(folder) / "outputs" / "shared")
        rates = [record.numbers.get("env_steps_per_s", 0.0) for record in ledger.trials.records()]
        ledger.close()
        return rates


def measure_cap(quick: bool) -> dict[str, float]:
    """Let a process fill its part of the GPU while another one computes; return what both came to, in MB."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    neighbour = spawn.Process(target=compute_on, args=(theirs,), daemon=True)
    neighbour.start()
    before = ours.recv()
    with spawn.Pool(1) as pool:
        taken, total = pool.apply(fill_share)
    ours.send("enough")
    after = ours.recv()
    neighbour.join(60)
    return {"total": total, "part": SHARE * total, "taken": taken, "before": before, "after": after}


def fill_share() -> tuple[float, float]:
    """Take a block after the other until it is refused; return what was taken and what the GPU has, in MB."""
    import torch

    from rltune.trial.gpu_memory import cap_memory

    cap_memory(SHARE)
    held = []
    try:
        while True:
            held.append(torch.empty(BLOCK, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError:
        return len(held) * BLOCK / 1e6, torch.cuda.get_device_properties(0).total_memory / 1e6


def compute_on(driver: Connection) -> None:
    """Multiply matrices until somebody says that it is enough; say how often, before and meanwhile."""
    import torch

    from rltune.trial.gpu_memory import cap_memory

    cap_memory(SHARE)
    matrix = torch.rand(1024, 1024, device="cuda")
    for is_second in (False, True):
        count = 0
        while count < 100 or (is_second and not driver.poll()):
            matrix = (matrix @ matrix).clamp_(0, 1)
            count += 1
        torch.cuda.synchronize()
        driver.send(float(count))


def make_tables(results: dict[str, Any]) -> str:
    """Return what was measured as Markdown."""
    lines: list[str] = []
    if cases := results.get("engine"):
        lines += [engine.head(KINDS), *(engine.row(case, cases.get(case), KINDS) for case in CASES), ""]
    if ways := results.get("together"):
        lines += ["| SAC Pendulum on one GPU | trials at once | env steps/s of each | of all |", "|---" * 4 + "|"]
        for way, by_count in ways.items():
            for trials, rates in by_count.items():
                lines.append(f"| {way} | {trials} | {spread_of(rates)} | {sum(rates):,.0f} |")
        lines.append("")
    if cap := results.get("cap"):
        kept = "is" if cap["taken"] <= cap["part"] else "is NOT"
        part = f"a part of {cap['part']:,.0f} MB of {cap['total']:,.0f} {kept} kept"
        refused = f"{cap['taken']:,.0f} MB were taken when {BLOCK / 2**20:.0f} more were refused"
        lines.append(f"{part}: {refused}; the neighbour computed {cap['after']:,.0f} products meanwhile")
    if rates := results.get("precision"):
        ratio = compare_rounds(rates["bfloat16"], rates["float32"])
        plain = spread_of(rates["float32"]).median
        lines.append(f"PPO Breakout: {plain:,.0f} env steps/s in float32, {ratio} times that in bfloat16")
    return "\n".join(lines).rstrip()


MEASURE = {
    "engine": measure_engine,
    "together": measure_together,
    "cap": measure_cap,
    "precision": measure_precision,
}


def main() -> None:
    """Parse, run, print, and keep the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="short rounds, fewer trials at once, no record")
    parser.add_argument("--parts", default=",".join(PARTS), help="comma-separated")
    parser.add_argument("--json", type=Path, help="where the record goes; none: benchmarks/results/gpu.json")
    arguments = parser.parse_args()
    if not has_gpu():
        print("not run: torch finds no GPU on this machine", file=sys.stderr)
        sys.exit(NO_GPU)
    results = {}
    for part in arguments.parts.split(","):
        results[part] = MEASURE[part](arguments.quick)
        print(make_tables({part: results[part]}), flush=True)
    rounds = 3 if arguments.quick else engine.ROUNDS
    if arguments.json or not arguments.quick:
        versions = peers.versions() if "engine" in results else None
        write_record(make_record("gpu", rounds, results, versions), arguments.json)


if __name__ == "__main__":
    main()
