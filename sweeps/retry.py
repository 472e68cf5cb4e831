"""``python -m sweeps.retry`` is ``rltune retry``."""

from rltune.cli.requests import retry

if __name__ == "__main__":
    retry()
