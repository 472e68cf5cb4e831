"""``python -m sweeps.enqueue`` is ``rltune enqueue``."""

from rltune.cli.requests import enqueue

if __name__ == "__main__":
    enqueue()
