"""The environment of the packages that rltune is compared with: ``.bench-venv`` in the repository's root.

    python -m benchmarks.peers      make it, which takes a few minutes, once

``RLTUNE_BENCH_VENV`` names another folder. The benchmarks make it themselves where it is missing.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from benchmarks.records import ROOT

VENV = Path(os.environ.get("RLTUNE_BENCH_VENV", ROOT / ".bench-venv")).absolute()
PYTHON = VENV / "bin" / "python"
PINNED = {
    "torch": "2.13.0", "gymnasium": "1.2.2", "optuna": "5.0.0", "stable-baselines3": "2.9.2", "rl-zoo3": "2.9.0",
    "ale-py": "0.12.1", "sb3-contrib": "2.9.2", "jssenv": "1.1.0",
}  # fmt: skip
# rl_zoo3 does not ask for pandas, which it imports.
OTHERS = ["mujoco<4", "Box2D", "pygame", "imageio", "packaging", "pandas", "opencv-python-headless"]


def packages_folder() -> Path | None:
    """Return where the peers' packages lie; None where there is no environment."""
    return next((VENV / "lib").glob("python*/site-packages"), None)


def versions() -> dict[str, str]:
    """Return the versions of what is pinned and installed."""
    folder = packages_folder()
    found = metadata.distributions(path=[str(folder)]) if folder else []
    names = {re.sub(r"[-_.]+", "-", one.metadata["Name"]).lower(): one.version.partition("+")[0] for one in found}
    return {name: names[name] for name in PINNED if name in names}


def make_venv() -> None:
    """Make the environment, or add what it lacks."""
    if versions() == PINNED:
        return
    print(f"making {VENV} ...", file=sys.stderr, flush=True)
    if not PYTHON.exists():
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    wanted = [f"{name}=={version}" for name, version in PINNED.items()] + OTHERS
    subprocess.run([str(PYTHON), "-m", "pip", "install", "-q", *wanted], check=True)


def main() -> None:
    """Make it and say what is in it."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    make_venv()
    print(", ".join(f"{name} {version}" for name, version in versions().items()))


if __name__ == "__main__":
    main()
