"""``python -m sweeps.record`` is ``rltune record``."""

from rltune.cli.policies import record

if __name__ == "__main__":
    record()
