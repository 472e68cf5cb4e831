"""Compare finished sweeps on one environment, PPO against DQN say: a table to paste, and a figure.

    python -m sweeps.run algo=ppo name=with-ppo
    python -m sweeps.run algo=dqn name=with-dqn
    python examples/compare_algorithms.py with-ppo with-dqn

Certified sweeps are compared over their fresh seeds (``certify.seeds``), each to the first one named.
"""

import sys
from pathlib import Path

import rltune


def main(*sweeps: str) -> None:
    """Print who is ahead, and how sure that is; the figure goes into the folder ``comparison``."""
    found = rltune.compare_sweeps(sweeps)
    print(found.markdown())
    ahead = max(found.rows, key=lambda row: row.score)
    apart = all(row.high < ahead.low for row in found.rows if row is not ahead)
    print(f"{ahead.name} is ahead" + ("" if apart else ", but the intervals overlap: that may be chance"))
    found.save(Path("comparison"))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except rltune.RltuneError as error:
        sys.exit(error.pretty())
