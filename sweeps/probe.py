"""``python -m sweeps.probe`` is ``rltune probe``."""

from rltune.cli.run import probe

if __name__ == "__main__":
    probe()
