"""``python -m sweeps.logs`` is ``rltune logs``."""

from rltune.cli.service import logs

if __name__ == "__main__":
    logs()
