"""``python -m sweeps.watch`` is ``rltune watch``."""

from rltune.cli.reading import watch

if __name__ == "__main__":
    watch()
