"""Every algorithm with every classic environment that it can act in: does a whole sweep run through?

    python -m benchmarks.smoke                        every pair, one after another, and the offline algorithms
    python -m benchmarks.smoke ppo_cartpole bc_cartpole

About a minute a pair, three quarters of an hour in all, on two quiet cores.
Each pair is what a person types: ``sweeps.run experiment=smoke``, then ``sweeps.evaluate`` of its winner; an offline
algorithm is preceded by ``sweeps.record``. A row says whether there was a winner, a checkpoint, a registered model and
an evaluation; the exit code is 1 when one of them is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from rltune.algorithms.build import import_config_class
from rltune.config.capabilities import Capabilities, capabilities_of

ROOT = Path(__file__).resolve().parents[1]
ENVS = {"discrete": ("cartpole", "acrobot", "mountaincar"), "continuous": ("pendulum", "mountaincar_continuous")}
EPISODES = 5
LIMIT_S = 1800


@dataclass
class Outcome:
    """What came of one pair."""

    pair: str
    status: str = "no sweep"
    winner: str = "-"
    checkpoint: bool = False
    model: str = "-"
    evaluated: str = "-"
    seconds: float = 0.0
    words: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether there is all that was asked for."""
        return self.winner != "-" and self.checkpoint and self.evaluated != "-"

    def row(self) -> str:
        """One line of the table."""
        kept = "yes" if self.checkpoint else "no"
        cells = (self.pair, self.status, self.winner, kept, self.model, self.evaluated, f"{self.seconds:.0f}")
        return f"| {' | '.join(cells)} |"


def rows() -> dict[str, Capabilities]:
    """Return what each algorithm of conf/algo can do."""
    files = {path.stem: yaml.safe_load(path.read_text()) for path in sorted((ROOT / "conf" / "algo").glob("*.yaml"))}
    return {name: capabilities_of(import_config_class(algo)) for name, algo in files.items()}


def envs_of(row: Capabilities) -> tuple[str, ...]:
    """Return the environments in which an algorithm can act; one of them where it learns from a dataset."""
    fitting = [env for kind, envs in ENVS.items() if row.actions in (kind, "both") for env in envs]
    return tuple(fitting[:1] if row.offline else fitting)


def pairs(table: dict[str, Capabilities]) -> Iterator[tuple[str, str]]:
    """List algorithm and environment, those that act themselves first."""
    for algo, row in sorted(table.items(), key=lambda item: item[1].offline):
        yield from ((algo, env) for env in envs_of(row))


def command(folder: Path, name: str, *overrides: str) -> subprocess.CompletedProcess[str]:
    """Run one of rltune's commands in a folder."""
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    return subprocess.run(
        [sys.executable, "-m", "rltune", name, *overrides],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip


def run(algo: str, env: str, folder: Path, more: list[str]) -> Outcome:
    """Sweep and evaluate."""
    began, outcome = time.monotonic(), Outcome(f"{algo} {env}")
    name = f"{algo}_{env}"
    sweep = command(folder, "run", f"algo={algo}", f"env={env}", "experiment=smoke", f"name={name}", *more)
    outcome.status = f"exit {sweep.returncode}"
    outcome.words = [line for line in (sweep.stdout + sweep.stderr).splitlines() if line.strip()][-12:]
    summary = folder / "outputs" / name / "summary.json"
    if summary.is_file():
        _read(json.loads(summary.read_text()), summary.parent, outcome)
    if outcome.winner != "-":
        played = command(folder, "evaluate", f"policy=sweep:{name}", f"episodes={EPISODES}")
        means = [line for line in played.stdout.splitlines() if "mean" in line]
        if played.returncode == 0 and means:
            outcome.evaluated = " ".join(means[0].split())
        else:
            outcome.words = (played.stdout + played.stderr).splitlines()[-12:]
    outcome.seconds = time.monotonic() - began
    return outcome


def _read(summary: dict[str, object], folder: Path, outcome: Outcome) -> None:
    winner, model = summary.get("winner"), summary.get("model")
    if isinstance(winner, dict):
        outcome.winner = f"trial {winner['trial']}: {winner['objective']:.1f}"
        outcome.checkpoint = (folder / str(winner["checkpoint"]) / "state.json").is_file()
    if isinstance(model, dict):
        outcome.model = str(model["uri"])


def recorded(env: str, folder: Path) -> list[str]:
    """Return the overrides that name a dataset, made by a sweep of a teacher where there is none yet."""
    teacher = "ppo" if env in ENVS["discrete"] else "sac"
    data = folder / f"{env}.parquet"
    if not data.is_file():
        if not (folder / "outputs" / f"{teacher}_{env}" / "summary.json").is_file():
            run(teacher, env, folder, [])
        made = command(folder, "record", f"policy=sweep:{teacher}_{env}", "episodes=20", f"out={data}")
        print(made.stdout.strip() or made.stderr.strip(), flush=True)
    return [f"algo.offline_data.input_={data}"]


def main() -> int:
    """Run what was asked for; 1 when something is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", nargs="*", help="such as ppo_cartpole; none: all")
    parser.add_argument("--folder", type=Path, help="keep the sweeps here; none: a temporary folder")
    args = parser.parse_args()
    table = rows()
    wanted = [(algo, env) for algo, env in pairs(table) if not args.pairs or f"{algo}_{env}" in args.pairs]
    outcomes = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        print(
            "| pair | sweep | winner | checkpoint | model | evaluation | s |\n|---|---|---|---|---|---|---|", flush=True
        )
        for algo, env in wanted:
            more = recorded(env, folder) if table[algo].offline else []
            outcomes.append(run(algo, env, folder, more))
            print(outcomes[-1].row(), flush=True)
            if not outcomes[-1].good:
                print("\n".join(f"    {line}" for line in outcomes[-1].words), flush=True)
    return 0 if all(outcome.good for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
