"""Does a certified interval hold? Whole sweeps, and fresh episodes of the policy that each of them registers.

    python -m benchmarks.certified [--sweeps 10] [overrides of sweeps.run ...]

About 3 minutes a sweep on two quiet cores.
Each sweep is the command with another seed. Its policy then plays 100 episodes with environment seeds that neither the
search nor certification has used; their mean should lie inside the interval that the sweep printed. The last columns
are what certification costs: its wall time over its runs' training seconds by slot.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.commands import run_command

EPISODES = 100
FIRST_EPISODE = 5_000_000  # far from certification's, and from those of training, which reach 2**31 at random


@dataclass(frozen=True)
class Row:
    """One sweep."""

    seed: int
    winner: str
    iqm: float
    iqm_low: float
    iqm_high: float
    baseline: str
    low: float
    high: float
    fresh: float
    runs: int
    train_s: float
    wall_s: float
    slots: int
    sweep_s: float

    @property
    def inside(self) -> bool:
        """Whether the fresh episodes' mean is where the sweep said."""
        return self.low <= self.fresh <= self.high

    @property
    def cost(self) -> float:
        """Wall seconds over training seconds by slot."""
        return self.wall_s * self.slots / self.train_s


def span(folder: Path) -> tuple[int, float]:
    """Certification's runs, and the seconds from the first one's beginning to the last one's end."""
    from rltune.study.storage import open_ledger

    ledger = open_ledger(folder)
    runs = ledger.runs.records()
    ledger.close()
    return len(runs), max(run.ended_s or 0.0 for run in runs) - min(run.began_s or 0.0 for run in runs)


def one(seed: int, overrides: list[str], folder: Path) -> Row:
    """Run one sweep and play its policy."""
    from rltune import evaluate, load_policy

    name = f"seed-{seed}"
    typed = [sys.executable, "-m", "rltune", "run", f"seed={seed}", f"name={name}", *overrides]
    run_command(typed, folder)
    sweep = folder / "outputs" / name
    summary: dict[str, Any] = json.loads((sweep / "summary.json").read_text())
    found, policy = summary["certified"], summary["certified"]["policy"]
    configurations = {row["name"]: row for row in found["configurations"]}
    best, baseline = configurations[found["winner"]], configurations.get("baseline")
    told = f"{baseline['iqm']:.1f} [{baseline['low']:.1f}, {baseline['high']:.1f}]" if baseline else "failed"
    fresh = evaluate(load_policy(str(sweep / policy["checkpoint"])), EPISODES, FIRST_EPISODE).mean
    runs, wall_s = span(sweep)
    return Row(
        seed, found["winner"], best["iqm"], best["low"], best["high"], told, policy["low"], policy["high"], fresh,
        runs, found["train_s"], wall_s, summary["cost"]["slots"], summary["cost"]["wall_s"],
    )  # fmt: skip


def main() -> None:
    """Parse, run, print, and write JSON where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweeps", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="append each sweep to this file as a line")
    parser.add_argument("overrides", nargs="*", help="of sweeps.run: algo=dqn budget.trials=8 ...")
    arguments = parser.parse_args()
    print("| seed | winner: IQM over seeds | baseline | its policy | fresh episodes | inside | runs | cost | sweep |")
    print("|---|---|---|---|---|---|---|---|---|")
    rows = []
    for seed in range(arguments.first_seed, arguments.first_seed + arguments.sweeps):
        with tempfile.TemporaryDirectory(prefix="bench-certified-") as folder:
            row = one(seed, arguments.overrides, Path(folder))
        rows.append(row)
        cells = [f"{seed}", f"{row.winner}: {row.iqm:.1f} [{row.iqm_low:.1f}, {row.iqm_high:.1f}]", row.baseline]
        cells += [f"{row.low:.1f} to {row.high:.1f}", f"{row.fresh:.1f}", "yes" if row.inside else "**no**"]
        cells += [f"{row.runs}", f"{row.cost:.2f}", f"{row.sweep_s:.0f} s"]
        print(f"| {' | '.join(cells)} |", flush=True)
        if arguments.json:
            with arguments.json.open("a") as file:
                file.write(json.dumps(asdict(row)) + "\n")
    print(f"inside: {sum(row.inside for row in rows)} of {len(rows)}")


if __name__ == "__main__":
    main()
