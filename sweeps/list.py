"""``python -m sweeps.list`` is ``rltune list``."""

from rltune.cli.listing import list_sweeps

if __name__ == "__main__":
    list_sweeps()
