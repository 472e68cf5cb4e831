"""``python -m sweeps.report`` is ``rltune report``."""

from rltune.cli.reading import report

if __name__ == "__main__":
    report()
