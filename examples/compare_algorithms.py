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
    """Print which sweep is better than the first one; the figure goes into the folder ``comparison``."""
    found = rltune.compare_sweeps(sweeps)
    print(found.markdown())
    for row in found.rows[1:]:
        if row.num_pairs:
            print(f"{row.name} is {row.verdict or 'not shown to be better'} ({row.num_wins} of {row.num_pairs} seeds)")
    found.save(Path("comparison"))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except rltune.RltuneError as error:
        sys.exit(error.pretty())
