"""Everything side by side: ``make bench``, or this with options.

    python -m benchmarks.run [--quick] [--only engine,sweep,driver,gpu]

About half an hour on two quiet cores; a third of it with --quick, which keeps no record. Runs engine.py, sweep.py,
driver.py and gpu.py one after another, which print their tables and keep their records under benchmarks/results/, and
then makes the tables of README.md and docs/measurements.md from those (tables.py). The peers are installed into an
environment of their own on the first run (peers.py).
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from benchmarks.gpu import NO_GPU
from benchmarks.records import ROOT

PARTS = ("engine", "sweep", "driver", "gpu")


def run(module: str, *options: str) -> bool:
    """Run one module of benchmarks/; return whether it ended well."""
    print(f"\n## {module}\n", flush=True)
    typed = [sys.executable, "-m", f"benchmarks.{module}", *options]
    code = subprocess.run(typed, cwd=ROOT, check=False).returncode
    return code == 0 or (module == "gpu" and code == NO_GPU)


def main() -> None:
    """Parse, run each part whatever came of the others, make the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="short rounds, for a look")
    parser.add_argument("--only", default=",".join(PARTS), help="comma-separated")
    arguments = parser.parse_args()
    failed = [part for part in arguments.only.split(",") if not run(part, *["--quick"] * arguments.quick)]
    if not arguments.quick and not run("tables"):
        failed.append("tables")
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
