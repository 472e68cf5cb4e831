"""The engine against stock RLlib and Stable-Baselines3: interleaved rounds at equal settings, one table.

    python benchmarks/engine.py [--quick] [--cases ppo_cartpole_32,...] [--kinds ours,sb3] [--json results.json]
    python benchmarks/engine.py --kinds ours,compiled       # ours with torch.compile
    python benchmarks/engine.py --learning [--seeds 10]     # final returns of engine and stock RLlib

Each contender is a process that stays alive; they take turns, so that a noisy machine is noisy for all of
them, and a round's ratio is the statistic, not two averages of different minutes. One torch thread each.
Stable-Baselines3 lives in ``.bench-venv`` in the repository's root, made here when missing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
VENV = Path(os.environ.get("RLTUNE_BENCH_VENV", ROOT / ".bench-venv"))
PEERS = ["torch==2.13.0", "stable-baselines3==2.9.2", "gymnasium==1.2.2", "mujoco<4", "imageio", "packaging"]
KINDS = {"ours": "ours", "rllib": "stock RLlib", "sb3": "SB3", "compiled": "ours, torch.compile"}
CASES: dict[str, tuple[str, float, dict[str, float]]] = {
    "ppo_cartpole_32": ("PPO CartPole, 32 envs, batch 2048, 10 epochs, 64x64", 1.5, {"sb3": 1.5, "rllib": 2.5}),
    "ppo_cartpole_1": ("PPO CartPole, 1 env", 1.5, {"sb3": 1.2}),
    "ppo_halfcheetah_norm": ("PPO HalfCheetah, 4 envs, normalised observations", 2.0, {"sb3": 1.2}),
    "dqn_cartpole": ("DQN CartPole, batch 64, an update per 4 steps, 64x64", 1.5, {"sb3": 1.5, "rllib": 12.0}),
    "sac_pendulum": ("SAC Pendulum, batch 256, an update per step, 256x256", 3.0, {"sb3": 1.1, "rllib": 8.0}),
}
"""Case: words, seconds of a round, and the least ratios that we hold it to."""


class Contender:
    """One process of ``engine_worker.py``.

    Args:
        kind: ``ours``, ``rllib``, ``sb3`` or ``compiled``.
        case: What it trains.
        device: Of the learner: ``cpu`` or ``cuda``.
    """

    def __init__(self, kind: str, case: str, device: str = "cpu") -> None:
        python = VENV / "bin" / "python" if kind == "sb3" else Path(sys.executable)
        site = next((VENV / "lib").glob("python*/site-packages"), None)
        command = [str(python), str(ROOT / "benchmarks" / "engine_worker.py"), kind, case, "--device", device]
        command += ["--site", str(site)] if site and kind != "sb3" else []
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT / "src"),
        }
        # A file, not a pipe: nobody reads while the others work, and a full pipe would stop the contender.
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - lives as long as the process
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, env=environment
        )
        self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)  # type: ignore[no-any-return]
        self._errors.seek(0)
        raise RuntimeError(f"{self.process.args} ended:\n{self._errors.read()[-2000:]}")

    def round(self, seconds: float) -> float:
        """Train for ``seconds``; environment steps per second."""
        assert self.process.stdin is not None
        print(seconds, file=self.process.stdin, flush=True)
        answer = self._answer()
        return float(answer["steps"] / answer["seconds"])

    def stop(self) -> None:
        """End the process."""
        self.process.communicate()


def make_venv() -> None:
    """Install the peers into an environment of their own, once."""
    if (VENV / "bin" / "python").exists():
        return
    print(f"making {VENV} ...", flush=True)
    subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    subprocess.run([str(VENV / "bin" / "python"), "-m", "pip", "install", "-q", *PEERS], check=True)


def measure(case: str, rounds: int, kinds: list[str], shorten: float, device: str = "cpu") -> dict[str, list[float]]:
    """Steps per second of each contender in each round."""
    contenders = {kind: Contender(kind, case, device) for kind in kinds}
    rates: dict[str, list[float]] = {kind: [] for kind in kinds}
    try:
        for _ in range(rounds):
            for kind, contender in contenders.items():
                rates[kind].append(contender.round(CASES[case][1] * shorten))
    finally:
        for contender in contenders.values():
            contender.stop()
    return rates


def summary(case: str, rates: dict[str, list[float]]) -> dict[str, Any]:
    """Medians, and medians of the rounds' ratios with their quarters."""
    ratios = {}
    for kind in rates:
        if kind != "ours":
            each = sorted(a / b for a, b in zip(rates["ours"], rates[kind], strict=True))
            quarter = len(each) // 4
            ratios[kind] = {
                "median": statistics.median(each),
                "low": each[quarter],
                "high": each[-1 - quarter],
                "bar": CASES[case][2].get(kind),
            }
    return {"steps_per_s": {k: statistics.median(v) for k, v in rates.items()}, "ratios": ratios, "rounds": rates}


def head(kinds: list[str]) -> str:
    """The table's first lines."""
    names = [KINDS[kind] for kind in kinds] + [f"ours / {KINDS[kind]}" for kind in kinds if kind != "ours"]
    return f"| env steps/s, one process, one torch thread | {' | '.join(names)} |\n|---" + "|---" * len(names) + "|"


def row(case: str, result: dict[str, Any]) -> str:
    """One line of the table."""
    cells = [f"{speed:,.0f}" for speed in result["steps_per_s"].values()]
    for ratio in result["ratios"].values():
        bar = f" (>= {ratio['bar']})" if ratio["bar"] else ""
        cells.append(f"**{ratio['median']:.2f}** [{ratio['low']:.2f}, {ratio['high']:.2f}]{bar}")
    return f"| {CASES[case][0]} | {' | '.join(cells)} |"


def speed(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run the cases and print the table."""
    kinds = ["ours", *(kind for kind in arguments.kinds.split(",") if kind != "ours")]
    if "sb3" in kinds:
        make_venv()
    rounds, shorten = (3, 0.5) if arguments.quick else (9, 1.0)
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print(head(kinds))
    results = {}
    for case in arguments.cases.split(","):
        results[case] = summary(case, measure(case, rounds, kinds, shorten))
        print(row(case, results[case]), flush=True)
    return results


def main() -> None:
    """Parse, run, print, and write JSON where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three short rounds")
    parser.add_argument("--cases", default=",".join(CASES), help="comma-separated")
    parser.add_argument("--kinds", default="ours,rllib,sb3", help=f"comma-separated, of {', '.join(KINDS)}")
    parser.add_argument("--json", type=Path, default=ROOT / "outputs" / "benchmarks" / "engine.json")
    parser.add_argument("--learning", action="store_true", help="compare final returns instead of speed")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--tasks", default="ppo,dqn,sac", help="of --learning, comma-separated")
    arguments = parser.parse_args()
    if arguments.learning:
        import engine_learning

        results = engine_learning.compare(arguments.seeds, arguments.tasks.split(","))
    else:
        results = speed(arguments)
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    record = {"date": time.strftime("%Y-%m-%d"), "machine": platform.platform(), "results": results}
    arguments.json.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
