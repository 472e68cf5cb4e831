"""The engine beside RLtools, whose whole training is compiled C++: environment steps per second at equal settings.

    python -m benchmarks.rltools

Five minutes on two quiet cores. RLtools (MIT licence) and MKL, which multiplies its matrices, are installed into the
peers' environment. It compiles each row for this processor, which needs g++ and Python's headers and is not timed. It
has a Pendulum of its own in C++, and a second column for Gymnasium's in Python, which the others step as well.
"""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path
from typing import Any

from benchmarks import engine, peers
from benchmarks.records import make_record, write_record

PINNED = {"rltools": "2.2.1", "mkl": "2026.2.0", "mkl-include": "2026.2.0"}
CASES = ("ppo_pendulum_4", "sac_pendulum_64")
KINDS = ["ours", "sb3", "rltools_gym", "rltools"]
ROUNDS = 5


def table(record: dict[str, Any]) -> str:
    """Return the record as Markdown."""
    rows = [engine.row(case, record["results"].get(case), KINDS) for case in CASES]
    return "\n".join([engine.head(KINDS), *rows])


def main() -> None:
    """Install, measure, print, and keep the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="where the record goes; none: benchmarks/results/rltools.json")
    arguments = parser.parse_args()
    peers.make_venv()
    packages = [f"{name}=={version}" for name, version in PINNED.items()]
    subprocess.run([str(peers.PYTHON), "-m", "pip", "install", "-q", *packages], check=True)
    results = {case: engine.measure(case, ROUNDS, KINDS) for case in CASES}
    record = make_record("rltools", ROUNDS, results, peers.versions() | PINNED)
    print(table(record))
    write_record(record, arguments.json)


if __name__ == "__main__":
    main()
