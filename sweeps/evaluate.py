"""``python -m sweeps.evaluate`` is ``rltune evaluate``."""

from rltune.cli.policies import evaluate

if __name__ == "__main__":
    evaluate()
