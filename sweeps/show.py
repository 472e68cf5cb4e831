"""``python -m sweeps.show`` is ``rltune show``."""

from rltune.cli.reading import show

if __name__ == "__main__":
    show()
