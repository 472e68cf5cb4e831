"""``python -m sweeps.compare`` is ``rltune compare``."""

from rltune.cli.reading import compare

if __name__ == "__main__":
    compare()
