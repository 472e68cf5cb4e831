"""Whole sweeps side by side: ours, a plain Ray Tune + RLlib + Optuna + MLflow script, and rl_zoo3's optimiser.

    python benchmarks/sweep.py [--trials 8] [--env-steps 20000] [--repeats 3] [--full] [--quick]

PPO on CartPole over conf/space/ppo.yaml, the same trials, budget and early stopping; the contenders take turns, each
round in fresh folders, and a round's ratio is the statistic: a noisy machine is noisy for all of them. Wall seconds
are those of the whole command, from its start to its last process's end.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zoo

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
BARS = {"plain": 5.0, "zoo": 3.0, "first_report": 1.5}
"""The least ratios that we hold it to: the other's seconds over ours."""


def _command(typed: list[str], folder: Path) -> tuple[float, float, str]:
    """Run it in a folder: when it began, its wall seconds, its output."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [str(HERE.parent / "src"), str(HERE.parent), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    began = time.time()
    done = subprocess.run(typed, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    wall_s = time.time() - began
    (folder / "output.txt").write_text(done.stdout + done.stderr)
    if done.returncode:
        raise RuntimeError(f"{' '.join(typed)} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-2000:]}")
    return began, wall_s, done.stdout


def ours(trials: int, env_steps: int, folder: Path) -> dict[str, Any]:
    """``python -m sweeps.run algo=ppo env=cartpole certify=off``, everything else as it is shipped."""
    typed = [sys.executable, "-m", "sweeps.run", "algo=ppo", "env=cartpole", "name=bench"]
    typed += [f"budget.trials={trials}", f"budget.env_steps={env_steps}", "certify=off"]  # no peer retrains
    began, wall_s, _ = _command(typed, folder)
    summary = json.loads((folder / "outputs" / "bench" / "summary.json").read_text())
    with sqlite3.connect(folder / "mlflow.db") as store:  # a point carries the moment at which its report came
        (first_ms,) = store.execute("select min(timestamp) from metrics where key = 'objective'").fetchone()
    winner = summary["winner"] or {}
    return {
        "wall_s": wall_s,
        "first_report_s": first_ms / 1000 - began,
        "env_steps": summary["cost"]["env_steps"],
        "best": winner.get("objective"),
        "evaluated": (winner.get("evaluation") or {}).get("mean"),
        "efficiency": summary["cost"]["efficiency"],
    }


def plain(trials: int, env_steps: int, folder: Path) -> dict[str, Any]:
    """``plain_ray.py``."""
    typed = [sys.executable, str(HERE / "plain_ray.py"), "--trials", str(trials), "--env-steps", str(env_steps)]
    _, wall_s, output = _command([*typed, "--folder", str(folder / "plain"), "--began", str(time.time())], folder)
    answer: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    return {**answer, "wall_s": wall_s}


CONTENDERS: dict[str, Callable[[int, int, Path], dict[str, Any]]] = {"ours": ours, "plain": plain, "zoo": zoo.run}


def measure(kinds: list[str], trials: int, env_steps: int, repeats: int) -> dict[str, list[dict[str, Any]]]:
    """Every contender's figures, a list of rounds each."""
    rounds: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}
    for number in range(repeats):
        for kind in kinds:
            with tempfile.TemporaryDirectory(prefix=f"bench-{kind}-") as folder:
                rounds[kind].append(CONTENDERS[kind](trials, env_steps, Path(folder)))
            shown = {key: round(v, 3) if isinstance(v, float) else v for key, v in rounds[kind][-1].items()}
            print(f"round {number + 1} {kind}: {shown}", file=sys.stderr, flush=True)
    return rounds


def summarise(rounds: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Medians of each contender, and medians of the rounds' ratios to ours."""
    medians: dict[str, dict[str, float]] = {}
    for kind, each in rounds.items():
        names = [name for name in each[0] if isinstance(each[0][name], int | float)]
        medians[kind] = {name: statistics.median(float(one.get(name) or math.nan) for one in each) for name in names}
    ratios = {
        kind: statistics.median(a["wall_s"] / b["wall_s"] for a, b in zip(rounds[kind], rounds["ours"], strict=True))
        for kind in rounds
        if kind != "ours" and "ours" in rounds
    }
    if "plain" in ratios:
        pairs = zip(rounds["plain"], rounds["ours"], strict=True)
        ratios["first_report"] = statistics.median(a["first_report_s"] / b["first_report_s"] for a, b in pairs)
    return {"medians": medians, "ratios": ratios, "bars": BARS, "rounds": rounds}


def table(result: dict[str, Any]) -> str:
    """The figures as Markdown."""
    head = "| sweep | wall s | first report s | env steps | best return | wall / ours | bar |\n" + "|---" * 7 + "|"
    names = {"ours": "rltune", "plain": "plain Ray Tune + RLlib", "zoo": "rl_zoo3"}
    lines = [head]
    for kind, median in result["medians"].items():
        ratio, bar = result["ratios"].get(kind), BARS.get(kind)
        cells = [
            names[kind],
            f"{median['wall_s']:.1f}",
            f"{median['first_report_s']:.1f}" if "first_report_s" in median else "",
            f"{median['env_steps']:,.0f}" if "env_steps" in median else "",
            f"{median.get('best', math.nan):.0f}",
            f"**{ratio:.2f}**" if ratio else "",
            f">= {bar:g}" if bar else "",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    if "first_report" in result["ratios"]:
        first, bar = result["ratios"]["first_report"], BARS["first_report"]
        lines.append(f"\nfirst report, plain / ours: **{first:.2f}** (>= {bar:g})")
    if "ours" in result["medians"]:
        lines.append(f"our efficiency: {result['medians']['ours']['efficiency']:.2f}")
    return "\n".join(lines)


def main() -> None:
    """Parse, run, print, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--env-steps", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--full", action="store_true", help="24 trials of 100,000 steps")
    parser.add_argument("--quick", action="store_true", help="one round of 4 trials of 10,000 steps")
    parser.add_argument("--only", default=",".join(CONTENDERS), help="comma-separated")
    parser.add_argument("--json", type=Path, default=RESULTS / "sweep.json")
    arguments = parser.parse_args()
    trials, env_steps, repeats = arguments.trials, arguments.env_steps, arguments.repeats
    if arguments.full:
        trials, env_steps = 24, 100_000
    if arguments.quick:
        trials, env_steps, repeats = 4, 10_000, 1
    kinds = arguments.only.split(",")
    if "zoo" in kinds:
        zoo.make_zoo_venv()
    load = os.getloadavg()[0]
    print(f"{trials} trials x {env_steps:,} steps, {repeats} rounds, {os.cpu_count()} cores, load {load:.1f}")
    result = summarise(measure(kinds, trials, env_steps, repeats))
    print(table(result))
    machine = {"platform": platform.platform(), "cores": os.cpu_count()}
    record = {"date": time.strftime("%Y-%m-%d"), "machine": machine, "trials": trials, "env_steps": env_steps, **result}
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
