"""Everything side by side: ``make bench``, or ``python -m benchmarks.run [--quick] [--only engine,sweep,driver,gpu]``.

Runs engine.py, sweep.py, driver.py and gpu.py one after another, prints their tables and writes them into
benchmarks/results/<date>.json.
The peers are installed into an environment of their own (see engine.py) on the first run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
PARTS = ("engine", "sweep", "driver", "gpu")


def run(part: str, quick: bool) -> dict[str, Any]:
    """One part: its record, with its table under ``table``; its progress goes to standard error."""
    record = RESULTS / f"{part}.json"
    record.unlink(missing_ok=True)
    typed = [sys.executable, str(HERE / f"{part}.py"), "--json", str(record), *(["--quick"] if quick else [])]
    print(f"== {part} ==", file=sys.stderr, flush=True)
    done = subprocess.run(typed, cwd=HERE.parent, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode or not record.is_file():
        return {"failed": f"{part}.py ended with {done.returncode}", "table": done.stdout}
    found: dict[str, Any] = json.loads(record.read_text())
    return {**found, "table": done.stdout}


def main() -> None:
    """Parse, run, print, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="short rounds, for a look")
    parser.add_argument("--only", default=",".join(PARTS), help="comma-separated")
    arguments = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    date = time.strftime("%Y-%m-%d")
    machine = {"platform": platform.platform(), "cores": os.cpu_count(), "python": platform.python_version()}
    record: dict[str, Any] = {"date": date, "machine": machine, "quick": arguments.quick, "parts": {}}
    for part in arguments.only.split(","):
        record["parts"][part] = run(part, arguments.quick)
        (RESULTS / f"{date}.json").write_text(json.dumps(record, indent=1) + "\n")
    print(f"# {date}, {machine['cores']} cores, {machine['platform']}, Python {machine['python']}\n")
    for part, found in record["parts"].items():
        print(f"## {part}\n\n{found['table']}")
        if "failed" in found:
            print(found["failed"])
    sys.exit(any("failed" in found for found in record["parts"].values()))


if __name__ == "__main__":
    main()
