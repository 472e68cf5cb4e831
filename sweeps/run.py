"""``python -m sweeps.run`` is ``rltune run``."""

from rltune.cli.run import run

if __name__ == "__main__":
    run()
