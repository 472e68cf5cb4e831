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
    first, *others = found.rows
    for row in others:
        if row.difference is not None:
            is_better = row.difference.is_better(found.objective.direction)
            print(f"{row.name} is {'better than' if is_better else 'not shown to be better than'} {first.name}")
    found.save(Path("comparison"))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except rltune.RltuneError as error:
        sys.exit(error.pretty())
