"""``python -m sweeps.submit`` is ``rltune submit``."""

from rltune.cli.service import submit

if __name__ == "__main__":
    submit()
