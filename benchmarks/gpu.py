"""Everything about a GPU in one command: the peers on the same card, trials that share it, what starting them costs.

    python -m benchmarks.gpu [--quick] [--only engine,together,workers,cap,precision,waits]

At most ten minutes a part, and what does not fit into them is left out; three minutes in all with --quick, which keeps
no record. Without a GPU it exits with 2 and measures nothing; --device cpu runs the same code on the processor, all but
the limit of a GPU's memory, and keeps no record either.

- ``engine``: PPO, SAC, and PPO on Breakout's images (extra atari) against Stable-Baselines3, with the learner on the
  GPU; the first two also compiled.
- ``together``: environment steps per second of 1, 2, 4, 8 and 16 SAC trials at once, each in a sweep that runs all of
  them with ``resources.trials_per_gpu``; without MPS, and under MPS if its daemon runs.
- ``workers``: seconds until all trials of a sweep have reported, and the memory of their processes: forked by the fork
  server and started without it, both to train on the processor; and those on the GPU, which cannot be forked.
- ``cap``: what a process with a quarter of the GPU can take of it, and whether its neighbour trains on meanwhile.
- ``precision``: PPO on Breakout's images in float32 and in bfloat16.
- ``waits``: how often and how long the host copies, waits for the GPU and launches kernels in an iteration of PPO and
  of DQN on Breakout's images, by torch's profiler.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

from benchmarks import engine, peers
from benchmarks.commands import make_environment
from benchmarks.records import compare_rounds, make_record, spread_of, write_record

CASES = {  # the contenders of each
    "ppo_cartpole_32": ["ours", "sb3", "compiled"],
    "ppo_halfcheetah_norm": ["ours", "sb3", "compiled"],
    "sac_pendulum": ["ours", "sb3", "compiled"],
    "ppo_breakout": ["ours", "sb3"],
}
LIMIT_S = 600.0  # of a part
TOGETHER = (1, 2, 4, 8, 16)
SHARE, BLOCK = 0.25, 64 * 2**20  # of the part `cap`
NO_GPU = 2  # the exit code
MPS_PIPE, MPS_FOLDER = "CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"  # the default of the daemon
SAC = ("algo=sac", "env=pendulum", "~tuned")
SMALL = ("algo=ppo", "env=cartpole", "~tuned")
ATARI = ("algo=ppo", "env=breakout")  # with its tuned settings
SWEEP = (
    "name=shared", "budget.reports=5", "scheduler=none", "searcher=random", "certify=off", "certify.top=0",
    "tracking=off", "report=false",
)  # fmt: skip
WAITS = ("cudaMemcpyAsync", "cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaLaunchKernel")


@dataclass(frozen=True)
class Look:
    """How a part is measured.

    Attributes:
        quick: Short rounds, and fewer trials at once.
        device: ``cuda``, or ``cpu`` to run the code where there is no GPU.
        until: When the part has to be done, by `time.monotonic`.
    """

    quick: bool = False
    device: str = "cuda"
    until: float = field(default_factory=lambda: time.monotonic() + LIMIT_S)

    @property
    def left_s(self) -> float:
        """Seconds that are left."""
        return self.until - time.monotonic()

    def share(self, trials: int) -> list[str]:
        """Return the settings by which so many trials run at once, on one GPU."""
        if self.device == "cuda":
            return [f"resources.trials_per_gpu={trials}"]
        return [f"cluster.num_cpus={trials}", "cluster.num_gpus=0"]


@dataclass(frozen=True)
class Ran:
    """What came of a sweep.

    Attributes:
        rates: Environment steps per second of each trial that has reported.
        first_s: Seconds from the command to each trial's first report.
        memory_mb: The most that the processes of its trials had together; pages that they share count once.
    """

    rates: list[float]
    first_s: list[float]
    memory_mb: float


def has_gpu() -> bool:
    """Whether torch finds one."""
    import torch

    return torch.cuda.is_available()


def measure_engine(look: Look) -> dict[str, Any]:
    """Let ours and Stable-Baselines3 take turns."""
    peers.make_venv()
    rounds, shorten = (3, 0.5) if look.quick else (engine.ROUNDS, 1.0)
    kinds = CASES if look.device == "cuda" else {case: kinds[:2] for case, kinds in CASES.items()}
    return {case: engine.measure(case, rounds, kinds[case], shorten, look.device) for case in CASES if look.left_s > 0}


def measure_together(look: Look) -> dict[str, dict[str, list[float]]]:
    """Run so many trials at once; return the steps per second of each, by how many, under MPS and without it."""
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as nowhere:
        ways: dict[str, dict[str, str]] = {"without MPS": {MPS_PIPE: nowhere}}
        if look.device == "cuda" and (Path(os.environ.get(MPS_PIPE, MPS_FOLDER)) / "control").exists():
            ways["with MPS"] = {}
        found: dict[str, dict[str, list[float]]] = {way: {} for way in ways}
        steps = 1_000 if look.quick else 3_000
        counts = TOGETHER[:2] if look.device == "cpu" else TOGETHER[::2] if look.quick else TOGETHER
        for trials in counts:
            for way, settings in ways.items():  # in turns
                if look.left_s > 0 and (trials > 1 or way == "without MPS"):  # one trial alone has nobody beside it
                    typed = [*SAC, *look.share(trials)]
                    found[way][str(trials)] = run_sweep(typed, trials, steps, settings, look).rates
    return found


def measure_workers(look: Look) -> dict[str, dict[str, Any]]:
    """Run short trials whose processes begin in each of the three ways; return when they report, and their memory."""
    trials = 2 if look.quick else 4
    cpus = [f"cluster.num_cpus={trials}", "resources.gpus_per_trial=0"]
    ways = {
        "forked": [*cpus, "cluster.num_gpus=0"],
        "started": [*cpus, "cluster.num_gpus=1"],  # a machine with a GPU has no fork server
        "started, on the GPU": look.share(trials),
    }
    found: dict[str, dict[str, Any]] = {way: {"first_s": [], "memory_mb": []} for way in ways}
    for _ in range(1 if look.quick else 3):
        for way, words in ways.items():  # in turns
            if look.left_s > 0:
                ran = run_sweep([*SMALL, *words], trials, 10_000, {}, look)
                found[way]["first_s"].append(max(ran.first_s, default=LIMIT_S))
                found[way]["memory_mb"].append(ran.memory_mb / trials)
    return found


def measure_precision(look: Look) -> dict[str, list[float]]:
    """Train the same trial in both precisions; return the steps per second of each round."""
    what = ATARI if look.device == "cuda" else SMALL  # a processor would take minutes for one update on images
    rounds, steps = (1, 20_000) if look.quick else (3, 100_000)
    found: dict[str, list[float]] = {"float32": [], "bfloat16": []}
    for _ in range(rounds):
        if look.left_s > 0:
            for precision, rates in found.items():
                rates += run_sweep([*what, f"precision={precision}", *look.share(1)], 1, steps, {}, look).rates
    whole = min(map(len, found.values()))  # rounds are compared
    return {precision: rates[:whole] for precision, rates in found.items()}


def run_sweep(what: Sequence[str], trials: int, env_steps: int, settings: dict[str, str], look: Look) -> Ran:
    """Run a sweep of so many trials, all at once.

    Args:
        what: The settings that are measured.
        trials: How many.
        env_steps: Of each.
        settings: Variables of its environment.
        look: It ends when the part's time is over, with what was reported until then.
    """
    from rltune.ledger.storage import open_ledger

    typed = [sys.executable, "-m", "rltune", "run", *what, *SWEEP]
    typed += [f"budget.trials={trials}", f"budget.env_steps={env_steps}", f"budget.wall_time_s={max(60, look.left_s)}"]
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as folder:
        began = time.time()
        sweep = subprocess.Popen(typed, cwd=folder, env=make_environment(**settings), stdout=subprocess.DEVNULL)
        memory = Memory(sweep.pid)
        if sweep.wait():
            raise subprocess.CalledProcessError(sweep.returncode, typed)
        ledger = open_ledger(Path(folder) / "outputs" / "shared")
        told = [record.numbers.get("env_steps_per_s") for record in ledger.trials.records()]
        first: dict[int, float] = {}
        for report in ledger.trials.read_curves():
            first.setdefault(report.number, report.time_s - began)
        ledger.close()
        return Ran([rate for rate in told if rate is not None], list(first.values()), memory.most_mb)


class Memory(threading.Thread):
    """Looks each second at what the trials' processes below a process hold, as long as it lives.

    Args:
        pid: The driver.

    Attributes:
        most_mb: The most that it was.
    """

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._driver, self.most_mb = psutil.Process(pid), 0.0
        self.start()

    def run(self) -> None:
        """Look until the driver has ended."""
        while self._driver.is_running():
            try:
                below = self._driver.children(recursive=True)
                held = [one.memory_full_info().pss for one in below if " ".join(one.cmdline()).startswith("ray::")]
            except psutil.Error:  # one that has just ended
                held = []
            self.most_mb = max(self.most_mb, sum(held) / 1e6)
            time.sleep(1)


def measure_cap(look: Look) -> dict[str, float]:
    """Let a process fill its part of the GPU while another one computes; return what both came to, in MB."""
    if look.device != "cuda":
        return {}
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


def measure_waits(look: Look) -> dict[str, dict[str, Any]]:
    """Profile an iteration of PPO and of DQN in a process of its own each."""
    spawn = multiprocessing.get_context("spawn")
    found = {}
    for algo in ("ppo", "dqn"):
        with spawn.Pool(1) as pool:
            found[algo] = pool.apply(profile_iteration, (algo, look.device))
    return found


def profile_iteration(algo: str, device: str) -> dict[str, Any]:
    """Return the steps and seconds of an iteration on Breakout, and calls and seconds of what `WAITS` names."""
    from torch.profiler import ProfilerActivity, profile

    from benchmarks.engine_worker import breakout_config
    from rltune.engine import build_algorithm

    config = breakout_config(algo).learners(num_gpus_per_learner=int(device == "cuda"))
    if device == "cpu" and algo == "ppo":  # where its updates would take minutes
        config.training(train_batch_size_per_learner=64, minibatch_size=32, num_epochs=1)
    elif device == "cpu":
        config.training(train_batch_size_per_learner=4).reporting(min_sample_timesteps_per_iteration=8)
    if algo == "dqn":
        memory = {"type": "EpisodeReplayBuffer", "capacity": 2000}  # of 0.2 MB each
        config.training(num_steps_sampled_before_learning_starts=200, replay_buffer_config=memory)
    trained = build_algorithm(config)
    for _ in range(2):  # what is done once is not counted
        before = int(trained.train()["num_env_steps_sampled_lifetime"])
    began = time.perf_counter()
    with profile(activities=[ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * (device == "cuda")]) as seen:
        steps = int(trained.train()["num_env_steps_sampled_lifetime"]) - before
    spent = time.perf_counter() - began
    calls = {one.key: [one.count, one.self_cpu_time_total / 1e6] for one in seen.key_averages() if one.key in WAITS}
    trained.stop()
    return {"steps": steps, "seconds": spent, "calls": calls}


def make_tables(results: dict[str, Any]) -> str:
    """Return what was measured as Markdown."""
    lines: list[str] = []
    for case, found in (results.get("engine") or {}).items():
        lines += [engine.head(list(found)), engine.row(case, found, list(found)), ""]
    if ways := results.get("together"):
        lines += ["| SAC Pendulum on one GPU | trials at once | env steps/s of each | of all |", "|---" * 4 + "|"]
        for way, by_count in ways.items():
            for trials, rates in by_count.items():
                done = len(rates) == int(trials)  # before the part's time was over
                each = f"{spread_of(rates)} | {sum(rates):,.0f}" if done else "not done in time | "
                lines.append(f"| {way} | {trials} | {each} |")
        lines.append("")
    if ways := results.get("workers"):
        lines += ["| processes of trials | seconds until all have reported | MB of each |", "|---" * 3 + "|"]
        for way, one in ways.items():
            if one["first_s"]:
                lines.append(f"| {way} | {spread_of(one['first_s'])} | {spread_of(one['memory_mb'])} |")
        lines.append("")
    if cap := results.get("cap"):
        kept = "is" if cap["taken"] <= cap["part"] else "is NOT"
        part = f"a part of {cap['part']:,.0f} MB of {cap['total']:,.0f} {kept} kept"
        refused = f"{cap['taken']:,.0f} MB were taken when {BLOCK / 2**20:.0f} more were refused"
        lines.append(f"{part}: {refused}; the neighbour computed {cap['after']:,.0f} products meanwhile")
    if (rates := results.get("precision")) and rates["float32"]:
        ratio = compare_rounds(rates["bfloat16"], rates["float32"])
        plain = spread_of(rates["float32"]).median
        lines.append(f"PPO Breakout: {plain:,.0f} env steps/s in float32, {ratio} times that in bfloat16")
    for algo, one in (results.get("waits") or {}).items():
        spent = [f"{name} {calls:,} times, {s / one['seconds']:.1%}" for name, (calls, s) in one["calls"].items()]
        iteration = f"{algo} Breakout, an iteration of {one['steps']:,} steps in {one['seconds']:.2f} s"
        lines.append(f"{iteration}: {'; '.join(spent) or 'no call of CUDA'}")
    return "\n".join(lines).rstrip()


MEASURE = {
    "engine": measure_engine,
    "together": measure_together,
    "workers": measure_workers,
    "cap": measure_cap,
    "precision": measure_precision,
    "waits": measure_waits,
}


def main() -> None:
    """Parse, run, print, and keep the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="short rounds, fewer trials at once, no record")
    parser.add_argument("--only", default=",".join(MEASURE), help="comma-separated parts")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"], help="cpu: try the code, keep no record")
    parser.add_argument("--json", type=Path, help="where the record goes; none: benchmarks/results/gpu.json")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not has_gpu():
        print("not run: torch finds no GPU on this machine", file=sys.stderr)
        sys.exit(NO_GPU)
    if arguments.device == "cpu":
        print("on the processor, to try the code: no figure means anything")
    results = {}
    rounds = 3 if arguments.quick else engine.ROUNDS
    keeps_record = arguments.device == "cuda" and (arguments.json or not arguments.quick)
    for part in arguments.only.split(","):
        results[part] = MEASURE[part](Look(arguments.quick, arguments.device))
        print(make_tables({part: results[part]}) or f"{part}: needs a GPU", flush=True)
        if keeps_record:  # after each part: an hour on a GPU may end before the last one
            versions = peers.versions() if "engine" in results else None
            write_record(make_record("gpu", rounds, results, versions), arguments.json)


if __name__ == "__main__":
    main()
