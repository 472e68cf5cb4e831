"""``python -m sweeps.stop`` is ``rltune stop``."""

from rltune.cli.requests import stop

if __name__ == "__main__":
    stop()
