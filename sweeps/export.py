"""``python -m sweeps.export`` is ``rltune export``."""

from rltune.cli.policies import export

if __name__ == "__main__":
    export()
